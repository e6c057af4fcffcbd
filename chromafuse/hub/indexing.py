"""Keeping an index of one tree: opening the one that is there, having what is missing built, mending it.

There is an index when every page of the tree is in it, and never half of one. A page that the store could not
give, or that is too large, is a candidate for everything, so it does not hold the others up.

Building is for nobody in particular, so it gives way: it starts a moment after the mount, takes pages from
memory where they are there, asks the store for little at a time, and while readers ask it rests for eight
times as long as it works.

Concurrency: one trio thread; files are opened in worker threads and built in a process (indexer.py). What one
hub builds serves the others of the same cache directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from ..errors import StoreError
from ..model.entry import TreeEntry
from ..store.location import StoreLocation
from .index import Index, IndexDamaged, open_newest
from .indexer import LENGTH, VERSION, packed
from .loading import Load, batches
from .treecache import check_private

log = logging.getLogger(__name__)

DELAY = 1.0  # s from the mount to the start of a build
BATCH_PAGES = 256
# Of pages asked for in one call; an embedded store lets nobody in before it is done.
BATCH_BYTES = 1 << 20
PAGE_MAX = 32 << 20  # bytes; a larger page is always a candidate
REST = 8  # times as long as a batch took, while somebody reads
RETRY, RETRY_MAX = 5.0, 600.0  # s from a build that failed to the next
_GRACE = 2.0  # s that a builder may take to seal what it has
_PACKAGES = Path(__file__).resolve().parents[2]


class _BuildFailed(Exception):
    """There is no index yet, and why. Quiet where something else says it."""

    def __init__(self, why: str, *, quiet: bool = False) -> None:
        super().__init__(why)
        self.quiet = quiet


def index_key(location: StoreLocation) -> str:
    """Return the name of the index of a collection."""
    return hashlib.sha256(f"{location}\0{location.collection}".encode()).hexdigest()[:32]


class Indexing:
    """The index of one tree, as long as `run` runs.

    `activity` counts what readers asked for: while it grows, building gives way to them.
    """

    def __init__(
        self,
        directory: Path | None,
        key: str,
        entries: Sequence[TreeEntry],
        load: Load,
        *,
        activity: Callable[[], int] = lambda: 0,
        delay: float = DELAY,
    ) -> None:
        self.index: Index | None = None  # None unless every page is in it
        self.unread: frozenset[bytes] = frozenset()  # versions that could not be indexed
        self.state = "starting"  # then "building", "ready", "failed" or "off"
        self.error = ""
        self.loads = 0  # loads made, for building
        self._directory = directory
        self._key = key
        self._entries = entries
        self._load = load
        self._activity = activity
        self._delay = delay
        self._warned = False
        self._wake = trio.Event()
        self._changed = trio.Event()

    async def leaves(self, *states: str) -> None:
        """Wait until the state is none of these."""
        while self.state in states:
            await self._changed.wait()

    def damaged(self, index: Index, exc: IndexDamaged) -> None:
        """Take a report of a search: that index is used no more, and another is made."""
        if index is not self.index:
            return  # it was replaced meanwhile
        self._complain(str(exc))
        _remove(index.path)
        self._drop()
        self._enter("building")
        self._wake.set()

    async def run(self) -> None:
        """See to it that there is an index; never returns."""
        if not await trio.to_thread.run_sync(self._is_usable):
            self._enter("off")
            await trio.sleep_forever()
        try:
            await self._open()
            await trio.sleep(self._delay)
            pause = RETRY
            while True:
                if await self._is_due():
                    pause = await self._try(pause)
                else:
                    await self._wake.wait()
                    self._wake = trio.Event()
        finally:
            self._drop()

    def _is_usable(self) -> bool:
        if self._directory is None:
            return False
        try:
            self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory.mkdir(mode=0o700, exist_ok=True)
            check_private(self._directory)
        except OSError as exc:
            self._complain(f"no index is kept: {exc}")
            return False
        return True

    async def _open(self) -> None:
        """Use the index that is there, if it is whole."""
        assert self._directory is not None, "asked only where there is a directory"
        index, wrong = await trio.to_thread.run_sync(open_newest, self._directory, self._key)
        for why in wrong:
            self._complain(f"{why}; the index is built again")
        if index is not None:
            await self._take(index)
        if self.index is None:
            self._enter("building")

    async def _take(self, index: Index) -> None:
        """Use an index if every page is in it; close it otherwise."""
        try:
            missing = await trio.to_thread.run_sync(index.missing, self._versions())
        except IndexDamaged as exc:
            self._complain(str(exc))
            _remove(index.path)
            missing = self._versions()
        if not self.unread.issuperset(missing):
            index.close()
            return
        self._drop()
        self.index, self.error, self._warned = index, "", False
        self._enter("ready")

    async def _is_due(self) -> bool:
        if self.index is None:
            return True
        try:
            return await trio.to_thread.run_sync(self.index.worn, self._versions())
        except IndexDamaged as exc:
            self.damaged(self.index, exc)
            return True

    async def _try(self, pause: float) -> float:
        """Build; return how long to wait after the next failure."""
        if self.index is None:
            self._enter("building")
        try:
            await self._build()
            return RETRY
        except _BuildFailed as exc:
            if exc.quiet:
                self.error = str(exc)
            else:
                self._complain(f"the index cannot be built: {exc}")
        except Exception:
            log.exception("the index cannot be built, by a bug")
        if self.index is None:
            self._enter("failed")
        await trio.sleep(pause)
        return min(pause * 2, RETRY_MAX)

    async def _build(self) -> None:
        """Have a process build the index and use it. Raises _BuildFailed."""
        ours, theirs = socket.socketpair()
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as stream:
            with theirs:
                process = await _start(theirs)
            try:
                await self._conduct(_Builder(stream))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise _BuildFailed("the process that builds it ended") from None
            finally:
                await _end(process, stream)

    async def _conduct(self, builder: _Builder) -> None:
        assert self._directory is not None, "asked only where there is a directory"
        where = {"directory": str(self._directory), "key": self._key}
        await builder.send(json.dumps(where).encode())
        await builder.send(b"".join(self._versions()))
        await builder.answer()
        versions = await builder.receive()
        missing = [versions[at : at + VERSION] for at in range(0, len(versions), VERSION)]
        by_version = {entry.version: entry for entry in self._entries}
        await self._feed(builder, [by_version[version] for version in missing])
        await builder.send(b"")
        path = self._directory / (await builder.answer())["sealed"]
        try:
            index = await trio.to_thread.run_sync(Index.open, path)
        except (OSError, IndexDamaged) as exc:
            raise _BuildFailed(str(exc)) from exc
        await self._take(index)
        if self.index is not index:
            raise _BuildFailed("pages are missing in what was built")

    async def _feed(self, builder: _Builder, missing: Sequence[TreeEntry]) -> None:
        """Send the builder the pages that it misses; fetch the next ones while it is at work."""
        unread = {entry.version for entry in missing if entry.size > PAGE_MAX}
        under_way = False
        wanted = [entry for entry in missing if entry.version not in unread]
        for batch in batches(wanted, BATCH_PAGES, BATCH_BYTES):
            started, readers = trio.current_time(), self._activity()
            pages = await self._fetch(batch)
            unread.update(entry.version for entry in batch if entry.version not in pages)
            if under_way:
                await builder.answer()
            await builder.send(packed(list(pages.items())))
            under_way = True
            if self._activity() != readers:
                await trio.sleep(REST * (trio.current_time() - started))
        if under_way:
            await builder.answer()
        self.unread = frozenset(unread)

    async def _fetch(self, batch: Sequence[TreeEntry]) -> dict[bytes, bytes]:
        """Return the pages of a batch that can be had."""
        self.loads += 1
        try:
            loaded = await self._load(batch)
        except StoreError as exc:
            raise _BuildFailed(str(exc), quiet=True) from exc
        if any(isinstance(outcome, StoreError) for outcome in loaded.values()):
            raise _BuildFailed("the store does not answer", quiet=True)
        return {version: page for version, page in loaded.items() if isinstance(page, bytes)}

    def _versions(self) -> list[bytes]:
        return [entry.version for entry in self._entries]

    def _drop(self) -> None:
        index, self.index = self.index, None
        if index is not None:
            index.close()

    def _enter(self, state: str) -> None:
        self.state = state
        self._changed.set()
        self._changed = trio.Event()

    def _complain(self, why: str) -> None:
        """Warn, once until there is an index again."""
        log.log(logging.INFO if self._warned else logging.WARNING, "%s", why)
        self._warned, self.error = True, why


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # not removed, its digest keeps it from being used again
        path.unlink()


class _Builder:
    """Frames to and from the process that builds. Raises _BuildFailed, trio.BrokenResourceError."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(LENGTH.pack(len(data)) + data)

    async def receive(self) -> bytes:
        (size,) = LENGTH.unpack(await self._exactly(LENGTH.size))
        return await self._exactly(size)

    async def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.receive())
        if "failed" in found:
            raise _BuildFailed(found["failed"])
        return found

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = await self._stream.receive_some(size - len(data))
            if not part:
                raise trio.BrokenResourceError("it ended")
            data += part
        return bytes(data)


async def _start(end: socket.socket) -> trio.Process:
    """Start a builder with its end of the socket; it imports nothing but what lies beside us."""
    try:
        return await trio.lowlevel.open_process(
            [sys.executable, "-P", "-S", "-m", "chromafuse.hub.indexer"],
            stdin=end.fileno(),
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={"PYTHONPATH": str(_PACKAGES)},
            start_new_session=True,
        )
    except OSError as exc:
        raise _BuildFailed(f"no process can be started: {exc.strerror}") from exc


async def _end(process: trio.Process, stream: trio.SocketStream) -> None:
    """Let the builder seal what it has; kill it when its time is up."""
    with trio.CancelScope(shield=True):
        await stream.aclose()
        with trio.move_on_after(_GRACE):
            await process.wait()
            return
        process.kill()
        await process.wait()


class Remembered:
    """Pages that are in memory already, as a cache to load from (loading.CachedLoad)."""

    def __init__(self, recall: Callable[[bytes], bytes | None]) -> None:
        self._recall = recall

    async def find(self, entries: Sequence[TreeEntry]) -> dict[bytes, bytes]:
        """Return those pages that are in memory."""
        found = ((entry.version, self._recall(entry.version)) for entry in entries)
        return {version: page for version, page in found if page is not None}

    def keep(self, pages: Mapping[bytes, bytes]) -> None:
        """Take nothing: what is read to be indexed is not what readers come back for."""
