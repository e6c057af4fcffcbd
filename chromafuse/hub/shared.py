"""The shared cache: pages by version in a Redis that the hubs of several hosts have in common. Optional.

    chromafuse:1:<v>    one page: a zstd frame of its bytes, until its time is up. v = page version, hex

Keyed by page version, so nothing in it can be stale. Who may see a page is decided before anything here is
asked. A page is checked against its version when it comes in; what has other bytes is a miss and is written
again. Whatever Redis does costs a reader a short deadline once: then nothing is asked of it until it answers
again, which a background task finds out.

Compressed because that pays: on 4,248 pages (43 MB) a third of the memory and of the traffic, for 30 us of
reading a page (0.12 s become 0.16 s for all of them by Unix socket) and 80 us of writing, in the background.

Concurrency: one trio thread; Redis is asked, and pages are packed and checked, in worker threads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import trio
import zstandard

from ..errors import CacheError
from ..model.entry import TreeEntry
from ..model.records import page_version
from .health import Health
from .loading import batches
from .redislocation import RedisSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

PREFIX = "chromafuse:1:"  # the number is that of the format: raised, old values are never looked at
BATCH_PAGES = 512  # in one MGET, or one pipeline of SETs
BATCH_BYTES = 4 << 20  # of pages in one; a larger page goes alone
WAITING = 32 << 20  # bytes of pages that wait to be written, or one page; what is over is left out
PAUSE = 10.0  # s until a server that took no page is given one again
THREADS = 8  # that ask at once; pages.py has at most six loads under way
WHOLE = 4  # timeouts of the client that a whole call may take, besides the time for its bytes
RATE = 8 << 20  # bytes/s; a server that is slower than this is no cache
_LEVEL = 1
# A look asks for two keys of two slots: where they cannot be asked for together, many pages cannot either.
_LOOK = (f"{PREFIX}look:a", f"{PREFIX}look:b")


class Server(Protocol):
    """What is asked, in threads. Every call but the first may raise CacheError."""

    def prepare(self) -> None: ...

    def get(self, keys: Sequence[str]) -> list[bytes | None]: ...

    def put(self, values: Mapping[str, bytes], ttl: int) -> str:
        """Return why some values were not taken, "" where all were."""

    def drop(self) -> None:
        """End the calls that are under way."""


class SharedCache:
    """Finds and keeps pages, as long as `run` runs."""

    def __init__(self, server: Server, settings: RedisSettings) -> None:
        self.health = Health("the shared cache", CacheError)
        self.refusal = ""  # why it takes no pages
        self.hits = self.misses = self.wrong = self.written = 0  # pages
        self.calls = 0  # MGETs for pages
        self._server = server
        self._ttl = settings.ttl
        self._value_max = settings.value_max
        self._slack = WHOLE * settings.timeout / 1000  # s
        self._looked = trio.Event()  # the first look is over
        self._threads = trio.CapacityLimiter(THREADS)
        self._send, self._receive = trio.open_memory_channel[tuple[bytes, bytes]](math.inf)
        self._waiting = 0  # bytes of pages in the channel
        self._silent_until = -math.inf  # nothing is written before

    @property
    def state(self) -> str:
        """Say "starting", "up" or "down"."""
        if not self._looked.is_set():
            return "starting"
        return "up" if self.health.up else "down"

    async def run(self) -> None:
        """Look whether the server answers, write what is to be kept; never returns."""
        await trio.to_thread.run_sync(self._server.prepare, abandon_on_cancel=True)
        started = trio.current_time()
        try:
            await self._look()
        except CacheError as exc:
            self.health.note(exc, started)
        self._looked.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.health.probe, self._look)
            nursery.start_soon(self._write)

    # -- reading

    async def find(self, entries: Sequence[TreeEntry]) -> dict[bytes, bytes]:
        """Return those pages that are there, checked; nothing where the server does not answer."""
        await self._looked.wait()
        found: dict[bytes, bytes] = {}
        wanted = [entry for entry in entries if self._takes(entry.size)]
        for batch in batches(wanted, BATCH_PAGES, BATCH_BYTES):
            if not self.health.up:
                break
            started = trio.current_time()
            self.calls += 1
            try:
                size = sum(entry.size for entry in batch)
                pages, wrong = await self._ask(partial(_read, self._server, batch), size)
            except CacheError as exc:
                self.health.note(exc, started)
                break
            found |= pages
            self._count(len(batch), len(pages), wrong)
        return found

    def _count(self, asked: int, found: int, wrong: int) -> None:
        self.hits += found
        self.misses += asked - found
        if wrong and not self.wrong:
            log.warning("the shared cache has wrong bytes under a key of ours; they are not served")
        self.wrong += wrong

    def _takes(self, size: int) -> bool:
        # An empty page has no chunks: it costs no call anyway.
        return 0 < size <= self._value_max

    async def _look(self) -> None:
        await self._ask(partial(self._server.get, _LOOK), 0)

    # -- writing

    def keep(self, pages: Mapping[bytes, bytes]) -> None:
        """Have pages, by version, written in the background; left out where that does not go well."""
        if not self.health.up or trio.current_time() < self._silent_until:
            return
        for version, page in pages.items():
            fits = not self._waiting or self._waiting + len(page) <= WAITING
            if fits and self._takes(len(page)):
                self._waiting += len(page)
                self._send.send_nowait((version, page))

    async def _write(self) -> None:
        async for first in self._receive:
            batch, size = [first], len(first[1])
            while len(batch) < BATCH_PAGES and size < BATCH_BYTES:
                try:
                    batch.append(self._receive.receive_nowait())
                except trio.WouldBlock:
                    break
                size += len(batch[-1][1])
            self._waiting -= size
            if self.health.up and trio.current_time() >= self._silent_until:
                await self._put(batch, size)

    async def _put(self, batch: Sequence[tuple[bytes, bytes]], size: int) -> None:
        values = await trio.to_thread.run_sync(_packed, batch, abandon_on_cancel=True)
        started = trio.current_time()
        try:
            refusal = await self._ask(partial(self._server.put, values, self._ttl), size)
        except CacheError as exc:
            self.health.note(exc, started)
            return
        if refusal:
            self._silent_until = trio.current_time() + PAUSE
        else:
            self.written += len(batch)
        if refusal and not self.refusal:
            log.warning("the shared cache takes no pages: %s", refusal)
        elif self.refusal and not refusal:
            log.warning("the shared cache takes pages again")
        self.refusal = refusal

    async def _ask(self, call: Callable[[], T], size: int) -> T:
        """Make a call that carries `size` bytes of pages. Raises CacheError where its time is up, too."""
        deadline = self._slack + size / RATE
        with trio.move_on_after(deadline):
            return await trio.to_thread.run_sync(
                call, abandon_on_cancel=True, limiter=self._threads
            )
        self._server.drop()
        raise CacheError(f"no whole answer within {deadline:.1f} s")


def _key(version: bytes) -> str:
    return PREFIX + version.hex()


# -- in worker threads


def _read(server: Server, entries: Sequence[TreeEntry]) -> tuple[dict[bytes, bytes], int]:
    """Return the pages that are there and right, by version, and how many are there and wrong."""
    values = server.get([_key(entry.version) for entry in entries])
    unpack = zstandard.ZstdDecompressor()
    pages: dict[bytes, bytes] = {}
    for entry, value in zip(entries, values, strict=True):
        page = None if value is None else _unpacked(unpack, value, entry)
        if page is not None:
            pages[entry.version] = page
    return pages, len(values) - values.count(None) - len(pages)


def _unpacked(unpack: zstandard.ZstdDecompressor, value: bytes, entry: TreeEntry) -> bytes | None:
    """Return the page that a value is, None where it is another or none."""
    try:
        # Looked at first: what a frame says of its size is what the decompressor takes memory for.
        if zstandard.get_frame_parameters(value).content_size != entry.size:
            return None
        page = unpack.decompress(value)
    except zstandard.ZstdError:
        return None
    return page if page_version(entry.path, page) == entry.version else None


def _packed(pages: Sequence[tuple[bytes, bytes]]) -> dict[str, bytes]:
    pack = zstandard.ZstdCompressor(level=_LEVEL)
    return {_key(version): pack.compress(page) for version, page in pages}
