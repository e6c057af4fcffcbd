"""A writer process for races: publishes what it is told to, one line of JSON in, one out, until killed.

In:  {"source": {path: text}, "lease": s, "wait": s, "grace": s}
Out: {"holds": true} when it has the lock, then {"published": generation} or {"failed": "Type: message"};
     the first line is {"ready": true}.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import trio

from chromafuse.errors import ChromafuseError
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.location import StoreLocation, open_store
from chromafuse.store.protocol import Store
from chromafuse.store.publish import TreeChanged, find_root, publish
from tests.support.publishing import plan


async def attempt(store: Store, order: dict[str, Any]) -> dict[str, Any]:
    """Publish; plan again as long as the tree changes meanwhile."""
    source = {path: text.encode() for path, text in order.pop("source").items()}
    order["progress"] = holding()
    try:
        while True:
            expected = await find_root(store)
            try:
                done = await publish(
                    store, ConstantEmbedder(), plan(source), expected=expected, **order
                )
            except TreeChanged:
                continue
            return {"published": done.generation}
    except ChromafuseError as exc:
        return {"failed": f"{type(exc).__name__}: {exc}"}


def holding() -> Callable[[str, int, int], None]:
    """Return a progress callback that says once that the lock is held."""
    steps = itertools.count()
    return lambda *step: say({"holds": True}) if next(steps) == 0 else None


async def main() -> None:
    """Serve orders until standard input ends."""
    location = StoreLocation.from_json(json.loads(sys.argv[1]))
    async with open_store(location) as store:
        say({"ready": True})
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            say(await attempt(store, json.loads(line)))


def say(answer: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
