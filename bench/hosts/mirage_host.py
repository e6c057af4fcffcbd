"""Mirage over a collection in its own layout, on a Chroma server. Runs in Mirage's own environment.

    mirage_host.py PORT COLLECTION [MOUNTPOINT]

With a mountpoint it serves its FUSE mount there until stdin ends; `{"do": "shell", "line": "grep -r …"}` runs
one line of its own shell at the top of the tree.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from mirage import Mount, MountMode, Workspace
from mirage.vfs.chroma import ChromaConfig, ChromaVFS


async def main(port: int, collection: str, mountpoint: str | None) -> None:
    """Answer until stdin ends."""
    config = ChromaConfig(host="127.0.0.1", port=port, collection_name=collection)
    vfs = ChromaVFS(config)
    mount = Mount(vfs=vfs, mode=MountMode.READ, **kernel(mountpoint))
    workspace = Workspace({"/docs": mount})
    try:
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await answer(workspace, json.loads(line)["line"])), flush=True)
    finally:
        await workspace.close()


def kernel(mountpoint: str | None) -> dict[str, str]:
    """Return what asks for a real mount."""
    return {} if mountpoint is None else {"backend": "fuse", "mountpoint": mountpoint}


async def answer(workspace: Workspace, line: str) -> dict[str, object]:
    """Run a line of the shell."""
    start = time.perf_counter()
    result = await workspace.shell(f"cd /docs && {line}")
    out = await result.stdout_str()
    seconds = time.perf_counter() - start
    if result.exit_code > 1:
        return {"error": f"exit {result.exit_code}: {await result.stderr_str()}"[:300]}
    return {"seconds": seconds, "lines": out.count("\n")}


if __name__ == "__main__":
    point = sys.argv[3] if len(sys.argv) > 3 else None
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], point))
