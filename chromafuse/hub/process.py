"""The hub of one mount: it opens the store, prunes the tree for one identity, and serves that view's link.

Everything it must know comes as one JSON line on the control socket, nothing by argv. It answers there with
`ready` or `failed`, and then with `status` when asked. The end of the control socket is the end of the hub,
so it never outlives its supervisor.

A hub that was started again gets a `pin`, the tree its predecessor served: it serves that one, so that the
view's inodes stay true, and refuses what the published tree no longer shows to the identity.

Concurrency: one trio thread; `_Hub` is changed only between two awaits.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ..errors import ChromafuseError, RecordDamaged, StoreError, UserError
from ..model.access import Identity, Kind
from ..model.records import PathTree, Root, TreeEntry, decode_tree
from ..store.explain import explain
from ..store.location import StoreLocation, open_store
from ..store.protocol import Store
from ..store.reader import load_pages, load_root, load_tree
from .pages import MEMORY, Pages
from .session import Scope, Session
from .treecache import TreeCache

log = logging.getLogger(__name__)

PROBE = 2.0  # s between two looks at a store that did not answer


@dataclass(frozen=True, slots=True)
class Start:
    """What the supervisor says."""

    location: StoreLocation
    identity: Identity
    link_fd: int
    cache_dir: Path | None
    memory: int
    rows_per_call: int | None
    pin: tuple[int, str] | None  # generation and sha256 of the tree to go on with

    @classmethod
    def parse(cls, line: bytes) -> Start:
        """Read the start line."""
        raw: dict[str, Any] = json.loads(line)
        identity, pin = raw["identity"], raw.get("pin")
        return cls(
            StoreLocation.from_json(raw["location"]),
            Identity(Kind(identity["kind"]), frozenset(identity["groups"])),
            raw["link_fd"],
            Path(raw["cache_dir"]) if raw.get("cache_dir") else None,
            raw.get("memory") or MEMORY,
            raw.get("rows_per_call"),
            (pin["generation"], pin["sha256"]) if pin else None,
        )


class Control:
    """JSON lines to and from the supervisor."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def receive(self) -> bytes | None:
        """Return the next line, None at the end."""
        while (at := self._buffer.find(b"\n")) < 0:
            data = await self._stream.receive_some(65536)
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        return line

    async def send(self, event: str, **facts: Any) -> None:
        """Send one event."""
        await self._stream.send_all(json.dumps({"event": event, **facts}).encode() + b"\n")


def main(argv: list[str]) -> int:
    """Run the hub to its end; return the exit code."""
    parser = argparse.ArgumentParser(prog="chromafuse-hub")
    parser.add_argument("--control-fd", type=int, required=True)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="hub: %(levelname)s: %(message)s")
    # httpx says every request at INFO, URLs and all.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return trio.run(_main, args.control_fd)


async def _main(control_fd: int) -> int:
    control = Control(_stream(control_fd))
    line = await control.receive()
    if line is None:
        return 1
    start = Start.parse(line)
    try:
        async with open_store(start.location, rows_per_call=start.rows_per_call) as store:
            scope, facts = await _load(store, start)
            await _serve(store, start, scope, facts, control)
    except* (ChromafuseError, UserError) as group:
        await _report(_first(group), start, control)
    except* trio.BrokenResourceError:
        log.debug("the supervisor is gone")
    else:
        return 0
    return 1


async def _report(exc: BaseException, start: Start, control: Control) -> None:
    failure = explain(exc, start.location) if isinstance(exc, ChromafuseError) else exc
    await control.send("failed", message=str(failure), exit_code=1)


def _first(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def _stream(fd: int) -> trio.SocketStream:
    # socket.socket(fileno=…) keeps what was inherited; trio wants it non-blocking.
    return trio.SocketStream(trio.socket.from_stdlib_socket(_socket(fd)))


def _socket(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)
    found = socket.socket(fileno=fd)
    found.setblocking(False)
    return found


# -- the tree ------------------------------------------------------------------------------------------


async def _load(store: Store, start: Start) -> tuple[Scope, dict[str, Any]]:
    """Load the tree to serve, pruned; and what the supervisor is told of it."""
    cache = TreeCache(start.cache_dir)
    root = await load_root(store)
    tree = await _tree(store, cache, root)
    served, newer = tree, None
    if start.pin is not None and start.pin != (root.generation, root.sha256):
        pinned = await _pinned(cache, *start.pin)
        if pinned is not None:
            served, newer = pinned, tree
    scope = Scope.of(served, start.identity, newer)
    facts = {
        "generation": served.generation,
        "sha256": served.sha256,
        "pages": scope.pages,
        "tree_pages": len(served.entries),
        "warnings": _warnings(served, scope),
    }
    return scope, facts


async def _tree(store: Store, cache: TreeCache, root: Root) -> PathTree:
    canonical = await trio.to_thread.run_sync(cache.load, root.sha256)
    if canonical is None:
        canonical = await load_tree(store, root)
        await trio.to_thread.run_sync(cache.save, root.sha256, canonical)
    return decode_tree(canonical, root.generation)


async def _pinned(cache: TreeCache, generation: int, sha256: str) -> PathTree | None:
    canonical = await trio.to_thread.run_sync(cache.load, sha256)
    if canonical is None:
        log.warning(
            "the tree of generation %d is no longer in the cache: reads of this mount fail with "
            "ESTALE until it is mounted again",
            generation,
        )
        return None
    return decode_tree(canonical, generation)


def _warnings(tree: PathTree, scope: Scope) -> list[str]:
    found = [f"{path!r} is not shown: {why}" for path, why in tree.problems]
    found += [
        f"{entry.path!r} is for the operator alone: {entry.access.malformed}"
        for entry in tree.entries
        if entry.access.malformed
    ]
    found += [
        f"{key!r} is shown as {shown!r}, a directory has its name"
        if shown
        else f"{key!r} is not shown: a directory has its name, and a longer one does not fit"
        for key, shown in scope.view.renamed
    ]
    return found


# -- serving -------------------------------------------------------------------------------------------


class _StoreState:
    """Whether the store answers; says so in the log once a change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.error = ""
        self._changed = changed

    @property
    def up(self) -> bool:
        return not self.error

    def note(self, exc: StoreError | None) -> None:
        """Take note of how a call went."""
        if exc is None and self.error:
            log.warning("the store answers again")
        elif exc is not None and not self.error:
            log.warning("the store does not answer: %s: %s", type(exc).__name__, exc)
        was_up, self.error = self.up, "" if exc is None else f"{type(exc).__name__}: {exc}"
        if was_up != self.up:
            self._changed()


async def _serve(
    store: Store, start: Start, scope: Scope, facts: dict[str, Any], control: Control
) -> None:
    async with trio.open_nursery() as nursery:
        changed = trio.Event()

        def on_change() -> None:
            nonlocal changed
            changed.set()
            changed = trio.Event()

        state = _StoreState(on_change)

        async def load(entries: Any) -> Any:
            return await load_pages(store, entries)

        async def is_current(entry: TreeEntry) -> bool:
            return await _lists(store, start, entry)

        pages = Pages(
            load, nursery, is_current=is_current, on_store=state.note, memory=start.memory
        )
        session = Session(_stream(start.link_fd), scope, pages, lambda: state.up)

        async def follow_store() -> None:
            while True:
                await changed.wait()
                await session.tell_store_state()

        async def probe() -> None:
            while True:
                await trio.sleep(PROBE)
                if not state.up:
                    await _probe(store, state)

        def status() -> dict[str, Any]:
            return {
                **facts,
                "identity": str(start.identity),
                "store": str(start.location),
                "collection": start.location.collection,
                "store_up": state.up,
                "store_error": state.error,
                "cache_bytes": pages.cache.bytes,
                "requests": session.requests,
                "fetches": pages.fetches,
            }

        nursery.start_soon(_until_signal, nursery.cancel_scope)
        nursery.start_soon(session.run)
        nursery.start_soon(follow_store)
        nursery.start_soon(probe)
        await control.send("ready", **facts)
        while (line := await control.receive()) is not None:
            if json.loads(line).get("ask") == "status":
                await control.send("status", **status())
        nursery.cancel_scope.cancel()


async def _lists(store: Store, start: Start, entry: TreeEntry) -> bool:
    """Say whether the tree that is published now lists this very version of the page."""
    root = await load_root(store)
    tree = await _tree(store, TreeCache(start.cache_dir), root)
    return any(
        found.path == entry.path and found.version == entry.version for found in tree.entries
    )


async def _probe(store: Store, state: _StoreState) -> None:
    try:
        await load_root(store)
    except StoreError as exc:
        state.note(exc)
    except RecordDamaged:
        state.note(None)  # it answers; what it answers is for readers to find out
    else:
        state.note(None)


async def _until_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
