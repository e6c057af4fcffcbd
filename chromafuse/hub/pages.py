"""Page bytes: a cache by version, one fetch for all who wait, many pages in one call.

Keyed by page version, so nothing here can be stale. Who may see a page is decided before anything here
is asked (session.py).

A fetch belongs to nobody: it runs in the nursery of the hub, readers wait for its outcome, and a reader that
gives up does not cancel it. While as many calls as allowed are under way, pages that are wanted queue up and
go together in the next one; that is what turns a cold `grep -r` from a call a page into a call a batch. A
page that nobody waits for any more when its turn comes is left out, so an outage leaves no queue behind.

Concurrency: one trio thread; state changes only between two awaits.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from ..errors import ChromafuseError, PageGone, RecordDamaged, StoreError
from ..model.entry import TreeEntry
from .health import Health

log = logging.getLogger(__name__)

MEMORY = 256 << 20  # bytes of pages kept
CALLS = 4  # store calls under way; an embedded store answers one at a time, Cloud allows 10
BATCH_PAGES = 256
BATCH_BYTES = 4 << 20  # of page bytes asked for in one call; a larger page goes alone

Outcome = bytes | ChromafuseError
Load = Callable[[Sequence[TreeEntry]], Awaitable[dict[bytes, Outcome]]]
_Wrong = tuple[TreeEntry, ChromafuseError]
Listed = Callable[[], Awaitable[Collection[bytes]]]


class PageCache:
    """Pages by version, least recently used out first, bounded by bytes.

    One page over the bound is kept besides, the latest: a reader takes a large page in many reads, and each
    would fetch it whole again.
    """

    def __init__(self, limit: int = MEMORY) -> None:
        self._limit = limit
        self._small = 0  # bytes
        self._pages: OrderedDict[bytes, bytes] = OrderedDict()
        self._large: tuple[bytes, bytes] = (b"", b"")

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._small + len(self._large[1])

    def get(self, version: bytes) -> bytes | None:
        """Return a page and mark it as used."""
        page = self._pages.get(version)
        if page is not None:
            self._pages.move_to_end(version)
        elif version == self._large[0]:
            page = self._large[1]
        return page

    def put(self, version: bytes, page: bytes) -> None:
        """Keep a page; drop what no longer fits."""
        if len(page) > self._limit:
            self._large = (version, page)
            return
        if version in self._pages:
            return
        self._pages[version] = page
        self._small += len(page)
        while self._small > self._limit:
            _, dropped = self._pages.popitem(last=False)
            self._small -= len(dropped)


@dataclass(eq=False)
class _Fetch:
    """One page that is wanted. `outcome` is set before `done`."""

    entry: TreeEntry
    readers: int = 0
    done: trio.Event = field(default_factory=trio.Event)
    outcome: Outcome | None = None


class Pages:
    """Hands out page bytes, from memory or through `load` (reader.load_pages over a store).

    `listed` tells the versions in the tree that is published now: what is missing and listed is damaged.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        health: Health,
        load: Load,
        listed: Listed,
        *,
        memory: int = MEMORY,
    ) -> None:
        self.cache = PageCache(memory)
        self.fetches = 0  # store calls made
        self._nursery = nursery
        self._health = health
        self._load = load
        self._listed = listed
        self._wanted: OrderedDict[bytes, _Fetch] = OrderedDict()  # not yet asked for
        self._pending: dict[bytes, _Fetch] = {}  # wanted or asked for
        self._calls = 0
        self._named: set[bytes] = set()  # damaged pages that the log has named; b"" for the root

    async def get(self, entry: TreeEntry) -> bytes:
        """Return the bytes of a page, checked against its version.

        Raises StoreError where the store does not answer, RecordDamaged where it holds other bytes, PageGone
        where this version was replaced and collected.
        """
        page = self.cache.get(entry.version)
        if page is not None:
            return page
        fetch = self._pending.get(entry.version) or self._want(entry)
        fetch.readers += 1
        try:
            await fetch.done.wait()
        finally:
            fetch.readers -= 1
        assert fetch.outcome is not None
        if isinstance(fetch.outcome, bytes):
            return fetch.outcome
        # One exception for many readers: each begins its own traceback.
        raise fetch.outcome.with_traceback(None)

    def _want(self, entry: TreeEntry) -> _Fetch:
        fetch = self._pending[entry.version] = self._wanted[entry.version] = _Fetch(entry)
        if self._calls < CALLS:
            self._calls += 1
            self._nursery.start_soon(self._serve)
        return fetch

    async def _serve(self) -> None:
        """Make calls until nothing is wanted."""
        try:
            # Let readers that run in this very tick say what they want, so that it goes in one call.
            await trio.lowlevel.checkpoint()
            while batch := self._next_batch():
                await self._fetch(batch)
        finally:
            self._calls -= 1

    def _next_batch(self) -> list[_Fetch]:
        batch: list[_Fetch] = []
        size = 0
        while self._wanted and len(batch) < BATCH_PAGES:
            version, fetch = next(iter(self._wanted.items()))
            if batch and size + fetch.entry.size > BATCH_BYTES:
                break
            del self._wanted[version]
            if not fetch.readers:
                del self._pending[version]
                continue
            batch.append(fetch)
            size += fetch.entry.size
        return batch

    async def _fetch(self, batch: Sequence[_Fetch]) -> None:
        waiting = {fetch.entry.version: fetch for fetch in batch}
        try:
            settled, wrong = await self._ask([fetch.entry for fetch in batch])
            self._settle(waiting, settled)
            if wrong:
                self._settle(waiting, await self._explain(wrong))
        except Exception:
            log.exception("a fetch failed by a bug")
        finally:
            given_up = StoreError("the fetch of this page was given up")
            self._settle(waiting, dict.fromkeys(waiting, given_up))

    def _settle(self, waiting: dict[bytes, _Fetch], outcomes: Mapping[bytes, Outcome]) -> None:
        for version, outcome in outcomes.items():
            fetch = waiting.pop(version)
            fetch.outcome = outcome
            del self._pending[version]
            fetch.done.set()

    async def _ask(self, entries: Sequence[TreeEntry]) -> tuple[dict[bytes, Outcome], list[_Wrong]]:
        """Make one call; return what it settles, and the pages that the store answered wrongly."""
        self.fetches += 1
        started = trio.current_time()
        try:
            loaded = await self._load(entries)
        except StoreError as exc:
            self._health.note(exc, started)
            return dict.fromkeys((entry.version for entry in entries), exc), []
        if any(entry.chunks for entry in entries):  # else nothing was asked: empty pages have none
            self._health.note(None, started)
        settled: dict[bytes, Outcome] = {}
        wrong: list[_Wrong] = []
        for entry in entries:
            page = loaded[entry.version]
            if isinstance(page, bytes):
                self.cache.put(entry.version, page)
                self._named.discard(entry.version)
                settled[entry.version] = page
            else:
                wrong.append((entry, page))
        return settled, wrong

    async def _explain(self, wrong: Sequence[_Wrong]) -> dict[bytes, Outcome]:
        """Tell pages that were replaced, and collected in whole or part, from those that ought to be there."""
        started = trio.current_time()
        try:
            listed = await self._listed()
        except ChromafuseError as exc:
            if isinstance(exc, StoreError):
                self._health.note(exc, started)
            else:
                self._complain(b"", "what is published cannot be read: %s", exc)
            return dict.fromkeys((entry.version for entry, _ in wrong), exc)
        self._named.discard(b"")
        outcomes: dict[bytes, Outcome] = {}
        for entry, why in wrong:
            if entry.version in listed:
                outcomes[entry.version] = RecordDamaged(str(why))
                self._complain(entry.version, "damaged page: %s", why)
            else:
                outcomes[entry.version] = PageGone(f"{entry.path} was replaced: {why}")
        return outcomes

    def _complain(self, about: bytes, text: str, exc: ChromafuseError) -> None:
        if about not in self._named:
            self._named.add(about)
            log.error(text, exc)
