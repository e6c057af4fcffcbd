"""The hub of one mount: it opens the store, prunes the tree for one identity, and serves that view's link.

Everything it must know comes as one JSON line on the control socket, nothing by argv. It answers there with
`ready` or `failed`, and with `status` when asked. The end of the control socket is the end of the hub, so it
never outlives its supervisor; SIGINT is the supervisor's to act on, for a terminal sends it to all of us.

A link that broke while its view lives would leave a mount that can read nothing new: the hub then fails, so
that its supervisor starts another with a fresh link.

A hub that was started again gets a `pin`, the tree its predecessor served: it serves that one, so that the
view's inodes stay true, and refuses what the published tree no longer shows to the identity.

Concurrency: one trio thread; `Hub` is changed only between two awaits.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ..errors import ChromafuseError, ProtocolError, UserError
from ..model.access import Identity, Kind
from ..model.records import PathTree
from ..store.explain import explain
from ..store.location import StoreLocation, open_store
from ..store.protocol import Store
from ..store.reader import load_root
from .health import Health
from .indexing import Indexing, Remembered, index_key
from .loading import CachedLoad, Load, StoreLoad
from .pagecache import MEMORY
from .pages import Pages
from .prefilter import Mode, Prefilter
from .queries import Queries
from .redislocation import RedisSettings
from .redisserver import RedisServer
from .scope import Scope
from .session import Session
from .shared import SharedCache
from .storesearch import StoreSearch
from .treecache import TreeCache
from .trees import Trees

log = logging.getLogger(__name__)

LINGER = 2.0  # s from the end of the link to that of the hub
WARNINGS = 100  # told one by one; a site with more of them has one cause


@dataclass(frozen=True, slots=True)
class Start:
    """What the supervisor says."""

    location: StoreLocation
    identity: Identity
    link_fd: int
    cache_dir: Path | None
    memory: int
    rows_per_call: int | None
    redis: RedisSettings | None
    prefilter: Mode
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
            RedisSettings.from_json(raw["redis"]) if raw.get("redis") else None,
            raw.get("prefilter", "auto"),
            (pin["generation"], pin["sha256"]) if pin else None,
        )


class Control:
    """JSON lines to and from the supervisor."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._sending = trio.Lock()

    async def receive(self) -> bytes | None:
        """Return the next line, None at the end."""
        while (at := self._buffer.find(b"\n")) < 0:
            try:
                data = await self._stream.receive_some(65536)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        return line

    async def send(self, event: str, **facts: Any) -> None:
        """Send one event; a supervisor that is gone is noticed by `receive`."""
        line = json.dumps({"event": event, **facts}).encode() + b"\n"
        async with self._sending:
            try:
                await self._stream.send_all(line)
            except trio.BrokenResourceError:
                log.debug("nobody hears %s", event)


class Hub:
    """One mount's hub, from the start line on."""

    def __init__(self, start: Start, control: Control) -> None:
        self._start = start
        self._control = control
        self._health = Health()
        self._facts: dict[str, Any] = {}  # of the tree, when it is loaded
        self._pages: Pages | None = None
        self._session: Session | None = None
        self._load: StoreLoad | None = None
        self._indexing: Indexing | None = None
        self._shared = _shared(start.redis) if start.redis else None

    async def run(self) -> int:
        """Serve until cancelled; return the exit code where that cannot be."""
        failure: UserError | None = None
        try:
            async with (
                _running(self._shared),
                open_store(self._start.location, rows_per_call=self._start.rows_per_call) as store,
            ):
                await self._serve(store)
        except* (ChromafuseError, UserError) as group:
            failure = _explained(group, self._start.location)
        except* Exception:
            log.exception("internal error")
            failure = UserError("internal error in the hub; its log has the traceback")
        if failure is None:
            return 0
        await self._control.send("failed", message=str(failure), exit_code=failure.exit_code)
        return failure.exit_code

    def status(self) -> dict[str, Any]:
        """Return what the operator may know."""
        location, pages, session = self._start.location, self._pages, self._session
        indexing = self._indexing
        return {
            **self._facts,
            "identity": str(self._start.identity),
            "store": str(location),
            "collection": location.collection,
            "store_up": self._health.up,
            "store_error": self._health.error,
            "cache_bytes": pages.cache.size if pages else 0,
            "requests": session.requests if session else 0,
            "fetches": pages.fetches if pages else 0,
            "store_calls": self._load.calls if self._load else 0,
            "index": indexing.state if indexing else "starting",
            "index_error": indexing.error if indexing else "",
            **self._shared_status(),
        }

    def _shared_status(self) -> dict[str, Any]:
        shared, settings = self._shared, self._start.redis
        if shared is None or settings is None:
            return {"redis": "off"}
        return {
            "redis": shared.state,
            "redis_server": str(settings.location),
            "redis_error": shared.health.error or shared.refusal,
            "redis_hits": shared.hits,
            "redis_misses": shared.misses,
            "redis_wrong": shared.wrong,
            "redis_written": shared.written,
        }

    async def _serve(self, store: Store) -> None:
        trees = Trees(store, TreeCache(self._start.cache_dir))
        tree, scope = await self._scope(trees)
        self._facts = {
            "generation": tree.generation,
            "sha256": tree.sha256,
            "tree_pages": len(tree.entries),
            "visible_pages": scope.pages,
        }
        self._load = load = StoreLoad(store, self._health)
        stream = _stream(self._start.link_fd)
        async with trio.open_nursery() as nursery:
            cached = CachedLoad(self._shared, load) if self._shared else load
            self._pages = Pages(
                nursery,
                self._health,
                load,
                trees.listed,
                memory=self._start.memory,
                shared=self._shared,
            )
            remembered = CachedLoad(Remembered(self._pages.cache.get), cached)
            self._indexing = indexing = self._index(tree, remembered)
            prefilter = Prefilter(indexing, StoreSearch(store, tree), mode=self._start.prefilter)
            queries = Queries(scope, prefilter)
            self._session = Session(stream, scope, self._pages, self._health, queries)
            nursery.start_soon(indexing.run)
            nursery.start_soon(prefilter.run, scope)
            nursery.start_soon(self._speak, self._session)
            nursery.start_soon(self._health.probe, lambda: load_root(store))
            await self._control.send(
                "ready", **self._facts, pages=scope.pages, warnings=_warnings(tree, scope)
            )

    def _index(self, tree: PathTree, load: Load) -> Indexing:
        """Return what keeps the index of a tree; it gives way to the reads of the view."""
        cache_dir = self._start.cache_dir
        wanted = cache_dir is not None and self._start.prefilter in ("auto", "index")
        return Indexing(
            cache_dir / "index" if cache_dir and wanted else None,
            index_key(self._start.location),
            tree.entries,
            load,
            activity=lambda: self._session.requests if self._session else 0,
        )

    async def _speak(self, session: Session) -> None:
        """Serve the link; without it this hub is of no use, and its successor gets a new one.

        A view that ends takes the supervisor along, and so this hub, long before the time is up.
        """
        await session.run()
        await trio.sleep(LINGER)
        raise ProtocolError("the link between hub and view broke")

    async def _scope(self, trees: Trees) -> tuple[PathTree, Scope]:
        """Return the tree to serve, and what the identity sees of it."""
        published, pin = await trees.published(), self._start.pin
        if pin is None or pin == (published.generation, published.sha256):
            return published, Scope.of(published, self._start.identity)
        pinned = await trees.pinned(*pin)
        if pinned is None:
            log.warning("the tree of generation %d is gone: mount again to see the new one", pin[0])
            return published, Scope.of(published, self._start.identity)
        return pinned, Scope.of(pinned, self._start.identity, published)


def main(argv: list[str]) -> int:
    """Run the hub to its end; return the exit code."""
    parser = argparse.ArgumentParser(prog="chromafuse-hub")
    parser.add_argument("--control-fd", type=int, required=True)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="hub: %(levelname)s: %(message)s")
    # httpx says every request at INFO, URLs and all.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return trio.run(_main, args.control_fd)


async def _main(control_fd: int) -> int:
    control = Control(_stream(control_fd))
    code = 0  # told to end: by SIGTERM, or by the end of the control socket
    async with trio.open_nursery() as nursery:
        await nursery.start(_until_signal, nursery.cancel_scope)
        line = await control.receive()
        if line is not None:
            hub = Hub(Start.parse(line), control)
            nursery.start_soon(_listen, control, hub, nursery.cancel_scope)
            code = await hub.run()
        nursery.cancel_scope.cancel()
    return code


async def _listen(control: Control, hub: Hub, scope: trio.CancelScope) -> None:
    """Answer the supervisor; end with it."""
    while (line := await control.receive()) is not None:
        if json.loads(line).get("ask") == "status":
            await control.send("status", **hub.status())
    scope.cancel()


async def _until_signal(
    scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


def _shared(settings: RedisSettings) -> SharedCache:
    return SharedCache(RedisServer(settings.location, settings.timeout / 1000), settings)


@asynccontextmanager
async def _running(shared: SharedCache | None) -> AsyncIterator[None]:
    """Have the shared cache run. Entered before the store is opened: that takes longer than the first look."""
    async with trio.open_nursery() as nursery:
        if shared is not None:
            nursery.start_soon(shared.run)
        yield
        nursery.cancel_scope.cancel()


def _explained(exc: BaseException, location: StoreLocation) -> UserError:
    """Return the one line that the supervisor shows."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, ChromafuseError):
        return explain(exc, location)
    assert isinstance(exc, UserError)
    return exc


def _stream(fd: int) -> trio.SocketStream:
    os.set_inheritable(fd, False)
    found = socket.socket(fileno=fd)
    found.setblocking(False)  # it came from a process that may have wanted it otherwise
    return trio.SocketStream(trio.socket.from_stdlib_socket(found))


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
    if len(found) > WARNINGS:
        found[WARNINGS:] = [f"and {len(found) - WARNINGS} more"]
    return found
