"""What a large tree costs: memory of hub and view, and the first listings. `python -m bench.memory`.

The store is a real Chroma server that holds a generated tree and nothing else: neither memory nor listings
depend on the bytes of pages. Beside sections of twenty pages a directory, as sites have them, the tree has
two flat directories, one ten times the other, to show that a listing is linear.

Memory is private memory (Private_Clean + Private_Dirty) and Pss of smaps_rollup, see proc_pid_smaps(5), once
after the first `ls` and once after a walk of everything; the hub's peak is VmHWM, reached while it loads.

Concurrency: one thread; a mount's processes are daemons that end with the unmount.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.table import Table

import chromafuse
from chromafuse.model import access
from chromafuse.model.entry import TreeEntry
from chromafuse.model.records import ROOT_ID, Root, encode_root, encode_tree, split_tree
from chromafuse.store.location import open_store, parse_store
from chromafuse.store.protocol import Row

from . import mounted
from .workplace import child, workplace

FLAT = (1_000, 10_000)  # entries of the flat directories
_ACCESSES = (
    *(access.PUBLIC,) * 7,
    access.AUTHENTICATED,
    access.Access(True, frozenset({"staff"})),
    access.Access(False, frozenset({"beta", "staff"})),
)
_VECTOR = (1.0, 0.0)
_MB = 1 << 20


def tree(pages: int) -> list[TreeEntry]:
    """Return a tree of `pages` pages of mixed access, seeded; the flat directories are part of it."""
    chance = random.Random(1)
    paths = [
        f"flat-{size:05}/entry-{n:05}.md" for size in FLAT if pages > size for n in range(size)
    ]
    paths += [
        f"section-{n // 300:03}/topic-{n // 20 % 15:02}/page-{n:06}.mdx"
        for n in range(pages - len(paths))
    ]
    return [_entry(path, chance) for path in paths]


def _entry(path: str, chance: random.Random) -> TreeEntry:
    size = chance.randint(200, 40_000)
    version = hashlib.sha256(path.encode()).digest()[:16]
    mtime_ns = 1_700_000_000_000_000_000 + chance.randrange(10**16)
    return TreeEntry(path, chance.choice(_ACCESSES), version, -(-size // 4_000), size, mtime_ns)


async def store_tree(url: str, entries: Sequence[TreeEntry]) -> None:
    """Write the records of a tree, without its pages."""
    canonical = encode_tree(entries)
    parts, digest = split_tree(canonical)
    root = Root(1, digest, len(parts), len(canonical), "constant", len(_VECTOR))
    rows = [
        Row(id, part, {"part": k}, _VECTOR)
        for k, (id, part) in enumerate(zip(root.part_ids(), parts, strict=True))
    ]
    async with open_store(parse_store(url), create=True, deadline=60) as store:
        await store.upsert(rows)
        document, metadata = encode_root(root)
        await store.upsert([Row(ROOT_ID, document, metadata, _VECTOR)])


def memory_of(pid: int) -> dict[str, float]:
    """Return private memory, Pss and the peak of a process, in MB."""
    fields: dict[str, int] = {}
    for name in ("smaps_rollup", "status"):
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            key, _, value = line.partition(":")
            if value.endswith(" kB"):
                fields[key] = int(value.split()[0]) << 10
    private = fields["Private_Clean"] + fields["Private_Dirty"]
    found = {"private": private, "pss": fields["Pss"], "peak": fields["VmHWM"]}
    return {name: round(size / _MB, 1) for name, size in found.items()}


def measure(url: str, path: Path) -> dict[str, Any]:
    """Mount a store, list it, walk it; return seconds, counts and memory."""
    with mounted.mount(url, path) as mount:
        status = mount.status()
        pids = {name: int(status[f"{name}_pid"]) for name in ("view", "hub")}
        found: dict[str, Any] = {"pages": status["visible_pages"], "mount_s": mount.first_ls}
        found["at_first"] = {name: memory_of(pid) for name, pid in pids.items()}
        for size in FLAT:
            directory = mount.path / f"flat-{size:05}"
            if directory.is_dir():
                found[f"ls_{size}_s"], names, found[f"ls_{size}_requests"] = _timed(
                    mount, "ls", "-lU", directory
                )
                assert names == size + 1, names
        found["find_s"], found["find_names"], found["find_requests"] = _timed(
            mount, "find", mount.path
        )
        found["after_walk"] = {name: memory_of(pid) for name, pid in pids.items()}
    return found


def _timed(mount: mounted.Mount, *command: object) -> tuple[float, int, int]:
    """Run a listing; return its seconds, the lines it printed, and the requests that it made."""
    before = sum(mount.status()["counters"].values())
    start = time.perf_counter()
    out = subprocess.run(list(map(str, command)), check=True, capture_output=True).stdout
    seconds = time.perf_counter() - start
    return seconds, out.count(b"\n"), sum(mount.status()["counters"].values()) - before


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Run a Chroma server for as long as the block lasts; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    directory.mkdir()
    chroma = Path(sys.executable).with_name("chroma")
    command = [str(chroma), "run", f"--path={directory}", "--host=127.0.0.1", f"--port={port}"]
    url = f"http://127.0.0.1:{port}"
    with child(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/api/v2/heartbeat", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url


def run(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Measure trees of these sizes, one after the other."""
    results = []
    # As `pip install` does: a process that compiles what it imports takes more memory.
    compileall.compile_dir(Path(chromafuse.__file__).parent, quiet=1)
    with workplace() as root:
        mounted.settle_in(root)
        for size in sizes:
            with server(root / f"chroma-{size}") as url:
                trio.run(store_tree, url, tree(size))
                results.append(measure(url, root / f"mount-{size}"))
    return results


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(title="large trees, Chroma server; MB private (Pss), seconds")
    table.add_column("what")
    for result in results:
        table.add_column(f"{result['pages']:,} pages", justify="right")
    for when in ("at_first", "after_walk"):
        for name in ("view", "hub"):
            memory = [result[when][name] for result in results]
            cells = [f"{one['private']} ({one['pss']})" for one in memory]
            table.add_row(f"{name}, {when.replace('_', ' ')}", *cells)
    table.add_row("hub, peak", *(str(result["after_walk"]["hub"]["peak"]) for result in results))
    timed = ("mount_s", *(f"ls_{size}_s" for size in FLAT), "find_s")
    for name in timed:
        cells = [f"{result[name]:.3f}" if name in result else "" for result in results]
        table.add_row(name.removesuffix("_s"), *cells)
    Console().print(table)


def main() -> int:
    """Measure; print the table, and the JSON where a file is named."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--pages", type=int, nargs="+", default=[4_000, 100_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = run(options.pages)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
