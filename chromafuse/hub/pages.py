"""Page bytes: from memory, or one fetch for all who wait, many pages in one call.

Keyed by page version, so nothing here can be stale. Who may see a page is decided before anything here
is asked (session.py).

A fetch belongs to nobody: it runs in the nursery of the hub, readers wait for its outcome, and a reader that
gives up does not cancel it. While as many calls as allowed are under way, pages that are wanted queue up and
go together in the next one. A page that nobody waits for any more when its turn comes is left out, so an
outage leaves no queue behind. What is fetched ahead of readers has calls of its own and never delays theirs.

Concurrency: one trio thread; state changes only between two awaits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import trio

from ..errors import ChromafuseError, PageGone, RecordDamaged, StoreError
from ..model.entry import TreeEntry
from .health import Health
from .loading import Cache, Load, Outcome
from .pagecache import MEMORY, PageCache
from .wanted import Client, Fetch, Wanted

log = logging.getLogger(__name__)

CALLS = 4  # store calls under way; an embedded store answers one at a time, Cloud allows 10
BATCH_PAGES = 256
BATCH_BYTES = 4 << 20  # of page bytes asked for in one call; a larger page goes alone
AHEAD_CALLS = 2  # store calls under way, besides, for pages that nobody waits for
AHEAD_BYTES = 1 << 20  # of such a call; an embedded store lets nobody in before it is done

_Wrong = tuple[TreeEntry, ChromafuseError]
Listed = Callable[[], Awaitable[Collection[bytes]]]


class Pages:
    """Hands out page bytes: from memory, from `shared`, or through `load`, which notes how the store is.

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
        shared: Cache | None = None,
    ) -> None:
        self.cache = PageCache(memory)
        self.fetches = 0  # loads made, of what the shared cache did not have
        self._nursery = nursery
        self._health = health
        self._load = load
        self._listed = listed
        self._shared = shared
        self._wanted, self._ahead = Wanted(), Wanted()  # not yet asked for
        self._pending: dict[bytes, Fetch] = {}  # wanted or asked for
        self._calls = self._ahead_calls = 0
        self._named: set[bytes] = set()  # damaged pages that the log has named; b"" for the root

    async def get(self, entry: TreeEntry, client: Client = None) -> bytes:
        """Return the bytes of a page, checked against its version.

        Raises StoreError where the store does not answer, RecordDamaged where it holds other bytes, PageGone
        where this version was replaced and collected.
        """
        page = self.cache.get(entry.version)
        if page is not None:
            return page
        (outcome,) = await self._outcomes([self._want(entry, client)])
        if isinstance(outcome, bytes):
            return outcome
        # One exception for many readers: each begins its own traceback.
        raise outcome.with_traceback(None)

    async def get_ahead(self, entries: Sequence[TreeEntry], client: Client) -> list[Outcome]:
        """Return the bytes of pages that nobody waits for yet, or why not, in their order.

        In as few calls as their size allows, behind everything that readers do wait for.
        """
        cached = [self.cache.get(entry.version) for entry in entries]
        missing = [entry for entry, page in zip(entries, cached, strict=True) if page is None]
        fetches = [self._want(entry, client, ahead=True) for entry in missing]
        fetched = iter(await self._outcomes(fetches))
        return [next(fetched) if page is None else page for page in cached]

    def _want(self, entry: TreeEntry, client: Client, *, ahead: bool = False) -> Fetch:
        """Return the fetch of a page, a new one or one under way, with one more reader."""
        fetch = self._pending.get(entry.version)
        if fetch is None:
            fetch = self._pending[entry.version] = Fetch(entry, client, ahead)
            (self._ahead if ahead else self._wanted).add(fetch)
        elif fetch.ahead and not ahead and self._ahead.remove(fetch):
            fetch.ahead, fetch.client = False, client
            self._wanted.add(fetch)
        fetch.readers += 1
        if self._wanted and self._calls < CALLS:
            self._calls += 1
            self._nursery.start_soon(self._serve)
        if self._ahead and self._ahead_calls < AHEAD_CALLS:
            self._ahead_calls += 1
            self._nursery.start_soon(self._serve_ahead)
        return fetch

    async def _outcomes(self, fetches: Sequence[Fetch]) -> list[Outcome]:
        try:
            for fetch in fetches:
                await fetch.done.wait()
        finally:
            for fetch in fetches:
                fetch.readers -= 1
        return [fetch.outcome for fetch in fetches if fetch.outcome is not None]

    async def _serve(self) -> None:
        """Make calls until nobody waits."""
        try:
            # Let readers that run in this very tick say what they want, so that it goes in one call.
            await trio.lowlevel.checkpoint()
            while self._wanted:
                await self._fetch(self._wanted.take(BATCH_PAGES, BATCH_BYTES))
        finally:
            self._calls -= 1

    async def _serve_ahead(self) -> None:
        try:
            await trio.lowlevel.checkpoint()
            while self._ahead:
                await self._fetch(self._ahead.take(BATCH_PAGES, AHEAD_BYTES))
        finally:
            self._ahead_calls -= 1

    async def _fetch(self, batch: Sequence[Fetch]) -> None:
        waiting: dict[bytes, Fetch] = {}
        for fetch in batch:
            if fetch.readers:
                waiting[fetch.entry.version] = fetch
            else:
                del self._pending[fetch.entry.version]
        if not waiting:
            return
        try:
            # First and by itself: what the shared cache has must not wait for a store that hangs.
            self._settle(waiting, await self._find([fetch.entry for fetch in waiting.values()]))
            if not waiting:
                return
            settled, wrong = await self._ask([fetch.entry for fetch in waiting.values()])
            self._settle(waiting, settled)
            if wrong:
                self._settle(waiting, await self._explain(wrong))
        except Exception:
            log.exception("a fetch failed by a bug")
        finally:
            given_up = StoreError("the fetch of this page was given up")
            self._settle(waiting, dict.fromkeys(waiting, given_up))

    def _settle(self, waiting: dict[bytes, Fetch], outcomes: Mapping[bytes, Outcome]) -> None:
        for version, outcome in outcomes.items():
            fetch = waiting.pop(version)
            fetch.outcome = outcome
            del self._pending[version]
            fetch.done.set()

    async def _find(self, entries: Sequence[TreeEntry]) -> dict[bytes, bytes]:
        """Return what the shared cache has."""
        if self._shared is None:
            return {}
        found = await self._shared.find(entries)
        for version, page in found.items():
            self.cache.put(version, page)
        return found

    async def _ask(
        self, entries: Sequence[TreeEntry]
    ) -> tuple[Mapping[bytes, Outcome], list[_Wrong]]:
        """Make one call; return what it settles, and the pages that the store answered wrongly."""
        self.fetches += 1
        try:
            loaded = await self._load(entries)
        except StoreError as exc:
            return dict.fromkeys((entry.version for entry in entries), exc), []
        settled: dict[bytes, bytes] = {}
        wrong: list[_Wrong] = []
        for entry in entries:
            page = loaded[entry.version]
            if isinstance(page, bytes):
                self.cache.put(entry.version, page)
                self._named.discard(entry.version)
                settled[entry.version] = page
            else:
                wrong.append((entry, page))
        if self._shared is not None:
            self._shared.keep(settled)
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
