"""Page bytes: a cache by version, one fetch for all who wait, many pages in one call.

Keyed by page version, so nothing here can be stale (D7). Who may see a page is decided before anything here
is asked (session.py).

A fetch belongs to nobody: it runs in the nursery of the hub, readers wait for its outcome, and a reader that
gives up does not cancel it. While as many calls as allowed are under way, pages that are wanted queue up and
go together in the next one; that is what turns a cold `grep -r` from a call a page into a call a batch.

Concurrency: one trio thread; state changes only between two awaits.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from ..errors import ChromafuseError, PageGone, RecordDamaged, StoreError
from ..model.records import TreeEntry

log = logging.getLogger(__name__)

MEMORY = 256 << 20  # bytes of pages kept
CALLS = 4  # store calls under way; an embedded store answers one at a time, Cloud allows 10
BATCH_PAGES = 256
BATCH_BYTES = 4 << 20  # of page bytes asked for in one call; a larger page goes alone

Loader = Callable[[Sequence[TreeEntry]], Awaitable[dict[bytes, bytes | ChromafuseError]]]


class PageCache:
    """Pages by version, least recently used out first, bounded by bytes.

    The newest page stays even when it alone is over the bound: a reader takes a large page in many reads, and
    each would fetch it whole again.
    """

    def __init__(self, limit: int = MEMORY) -> None:
        self.limit = limit
        self.bytes = 0
        self._pages: OrderedDict[bytes, bytes] = OrderedDict()

    def get(self, version: bytes) -> bytes | None:
        """Return a page and mark it as used."""
        page = self._pages.get(version)
        if page is not None:
            self._pages.move_to_end(version)
        return page

    def put(self, version: bytes, page: bytes) -> None:
        """Keep a page; drop what no longer fits."""
        if version in self._pages:
            return
        self._pages[version] = page
        self.bytes += len(page)
        while self.bytes > self.limit and len(self._pages) > 1:
            _, dropped = self._pages.popitem(last=False)
            self.bytes -= len(dropped)


@dataclass(eq=False)
class _Fetch:
    """One page that is wanted. `outcome` is set before `done`."""

    entry: TreeEntry
    done: trio.Event = field(default_factory=trio.Event)
    outcome: bytes | ChromafuseError | None = None


class Pages:
    """Hands out page bytes, from memory or through `load` (reader.load_pages over a store)."""

    def __init__(
        self,
        load: Loader,
        nursery: trio.Nursery,
        *,
        is_current: Callable[[TreeEntry], Awaitable[bool]],
        on_store: Callable[[StoreError | None], None],
        memory: int = MEMORY,
    ) -> None:
        self.cache = PageCache(memory)
        self.fetches = 0  # store calls made
        self._load = load
        self._nursery = nursery
        self._is_current = is_current
        self._on_store = on_store
        self._wanted: OrderedDict[bytes, _Fetch] = OrderedDict()  # not yet asked for
        self._pending: dict[bytes, _Fetch] = {}  # wanted or asked for
        self._calls = 0

    async def get(self, entry: TreeEntry) -> bytes:
        """Return the bytes of a page, checked against its version.

        Raises StoreError where the store does not answer, RecordDamaged where it holds other bytes, PageGone
        where this version was replaced and collected.
        """
        page = self.cache.get(entry.version)
        if page is not None:
            return page
        fetch = self._pending.get(entry.version)
        if fetch is None:
            fetch = self._pending[entry.version] = self._wanted[entry.version] = _Fetch(entry)
            if self._calls < CALLS:
                self._calls += 1
                self._nursery.start_soon(self._serve)
        await fetch.done.wait()
        assert fetch.outcome is not None
        if isinstance(fetch.outcome, bytes):
            return fetch.outcome
        raise fetch.outcome

    async def _serve(self) -> None:
        """Make calls until nothing is wanted."""
        # Let readers that run in this very tick say what they want, so that it goes in one call.
        await trio.lowlevel.checkpoint()
        while self._wanted:
            batch = self._next_batch()
            try:
                await self._fetch(batch)
            finally:
                for fetch in batch:
                    if fetch.outcome is None:  # cancelled, or a bug: nobody may wait for ever
                        fetch.outcome = StoreError("the fetch of this page was given up")
                    del self._pending[fetch.entry.version]
                    fetch.done.set()
        self._calls -= 1

    def _next_batch(self) -> list[_Fetch]:
        batch: list[_Fetch] = []
        size = 0
        while self._wanted and len(batch) < BATCH_PAGES:
            fetch = next(iter(self._wanted.values()))
            if batch and size + fetch.entry.size > BATCH_BYTES:
                break
            del self._wanted[fetch.entry.version]
            batch.append(fetch)
            size += fetch.entry.size
        return batch

    async def _fetch(self, batch: list[_Fetch]) -> None:
        self.fetches += 1
        try:
            pages = await self._load([fetch.entry for fetch in batch])
        except ChromafuseError as exc:
            if isinstance(exc, StoreError):
                self._on_store(exc)
            for fetch in batch:
                fetch.outcome = exc
            return
        self._on_store(None)
        for fetch in batch:
            outcome = pages[fetch.entry.version]
            if isinstance(outcome, bytes):
                self.cache.put(fetch.entry.version, outcome)
            else:
                outcome = await self._explain(fetch.entry, outcome)
            fetch.outcome = outcome

    async def _explain(self, entry: TreeEntry, exc: ChromafuseError) -> ChromafuseError:
        """Tell a page that was replaced and collected from one that ought to be there."""
        if isinstance(exc, PageGone):
            try:
                current = await self._is_current(entry)
            except ChromafuseError as fault:
                return fault
            if not current:
                return exc
            exc = RecordDamaged(f"{exc}, though the published tree lists it")
        log.error("damaged page: %s", exc)
        return exc
