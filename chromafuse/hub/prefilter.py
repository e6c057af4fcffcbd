"""Which pages can match a search: the index where there is one, else the store's own search, else nothing known.

It never loses a match: a page that fulfils the needs is among the candidates, always. No candidate means that
nothing matches. Who may see a page is looked at after the question was answered for the whole tree, so what one
identity is told depends on nothing that it may not see. Reasons name no page, no place and no number.

Concurrency: one trio thread; questions are answered in any number of tasks at once.
"""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import trio

from ..errors import StaleInode, StoreError
from ..search.needs import Need, Needs
from .index import Index, IndexDamaged
from .indexing import Indexing
from .scope import Scope
from .storesearch import NoAnswer, StoreSearch

log = logging.getLogger(__name__)

Mode = Literal["auto", "index", "chroma", "none"]
Source = Literal["index", "chroma"]

DEADLINE = 0.8  # s for one question; whoever asks gives up after 1
PAUSE = 30.0  # s until a store whose search took longer is searched again
KEPT_INODES = 1 << 20  # in all the answers that are kept; 4 bytes each
KEPT_VERSIONS = 1 << 16  # in all that the store answered; some 100 bytes each
THREADS = 2  # questions that the index answers at once

R = TypeVar("R")
_NOTHING = (Need((frozenset({"\ue000\ue001\ue002"}),)),)  # asked so that all is ready for others


@dataclass(frozen=True, slots=True)
class Unknown:
    """Every page can match; why, in a few words that anybody may read."""

    reason: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """The versions of all pages that can match, of this tree and maybe of others, and who says so."""

    versions: frozenset[bytes]
    source: Source


@dataclass(frozen=True, slots=True)
class Visible:
    """The pages that can match and that one identity sees: inodes of its view, ascending; and who says so."""

    inodes: Sequence[int]
    source: Source


T = TypeVar("T", Candidates, Visible)


class _Kept(Generic[R]):
    """Answers, least recently used out first, bounded by what they hold in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._answers: OrderedDict[Hashable, tuple[R, int]] = OrderedDict()

    def get(self, key: Hashable) -> R | None:
        answer = self._answers.get(key)
        if answer is None:
            return None
        self._answers.move_to_end(key)
        return answer[0]

    def put(self, key: Hashable, value: R, size: int) -> None:
        if key in self._answers:
            return
        self._answers[key] = value, size + 1
        self._size += size + 1
        while self._size > self._limit:
            _, (_, dropped) = self._answers.popitem(last=False)
            self._size -= dropped


class Prefilter:
    """Answers for one tree. `indexing` and `search` may be missing, then that way is not taken."""

    def __init__(
        self,
        indexing: Indexing | None,
        search: StoreSearch | None,
        *,
        mode: Mode = "auto",
        deadline: float = DEADLINE,
    ) -> None:
        self._indexing = indexing if mode in ("auto", "index") else None
        self._search = search if mode in ("auto", "chroma") else None
        self._mode = mode
        self._deadline = deadline
        self._silent_until = float("-inf")  # the store is not searched before
        self._threads = trio.CapacityLimiter(THREADS)
        self._visible: _Kept[Visible] = _Kept(KEPT_INODES)
        self._places: _Kept[_Place] = _Kept(KEPT_INODES)
        self._searched: _Kept[Candidates] = _Kept(KEPT_VERSIONS)

    async def run(self, *scopes: Scope) -> None:
        """Have what the first questions of these scopes will need ready, as soon as there is an index, too."""
        if self._indexing is not None:
            await self._indexing.leaves("starting")
        if self._search is not None and self._has_no_index():
            try:
                await self._search.prepare()
            except (NoAnswer, StoreError) as exc:
                log.debug("the store's search is not used: %s", exc)
        if self._indexing is not None:
            while self._indexing.index is None:
                await self._indexing.leaves(self._indexing.state)
            for scope in scopes:
                await self.candidates_for(scope, _NOTHING)

    async def candidates(self, needs: Needs) -> Candidates | Unknown:
        """Return all pages that can fulfil `needs`, whoever may see them."""
        known = self._known(needs)
        if known is not None:
            return known

        async def by_index(indexing: Indexing, index: Index) -> Candidates | None:
            rows = await self._in_thread(lambda: index.search(needs))
            if rows is None:
                return None
            found = await self._in_thread(lambda: index.versions_of(rows))
            return Candidates(found | indexing.unread, "index")

        return await self._answer(by_index, lambda search: self._search_for(search, needs))

    async def candidates_for(self, scope: Scope, needs: Needs) -> Visible | Unknown:
        """Return those pages of a view that can fulfil `needs`."""
        known = self._known(needs)
        if known is not None:
            return known if isinstance(known, Unknown) else Visible((), known.source)
        return await self._seen(
            scope,
            needs,
            lambda index: index.search(needs),
            lambda search: self._search_for(search, needs),
        )

    async def nul_for(self, scope: Scope) -> Visible | Unknown:
        """Return those pages of a view that may hold a NUL."""

        async def by_search(search: StoreSearch) -> Candidates:
            return Candidates(await search.nul(), "chroma")

        return await self._seen(scope, "nul", lambda index: index.nul, by_search)

    def _known(self, needs: Needs) -> Candidates | Unknown | None:
        """Return an answer for which nobody need be asked."""
        if self._mode == "none":
            return Unknown("filtering is switched off")
        if needs is None:
            return Unknown("nothing is known of what it needs")
        return None if needs else Candidates(frozenset(), "index")

    async def _seen(
        self,
        scope: Scope,
        what: Hashable,
        rows_by_index: Callable[[Index], array[int] | None],
        by_search: Callable[[StoreSearch], Awaitable[Candidates]],
    ) -> Visible | Unknown:
        # Two scopes of one digest have the same pages under the same inodes.
        whose = (scope.generation, scope.digest, scope.identity, scope.still_shown)
        kept = self._visible.get((whose, what))
        if kept is not None:
            return kept

        async def by_index(indexing: Indexing, index: Index) -> Visible | None:
            place = await self._place(index, scope, whose)
            found = await self._in_thread(lambda: place.inodes(rows_by_index(index)))
            unread = _inodes(scope, indexing.unread) if indexing.unread else ()
            return (
                None if found is None else Visible(array("I", sorted([*found, *unread])), "index")
            )

        async def by_search_seen(search: StoreSearch) -> Visible:
            found = await by_search(search)
            return Visible(_inodes(scope, found.versions), found.source)

        answer = await self._answer(by_index, by_search_seen)
        if isinstance(answer, Visible):
            self._visible.put((whose, what), answer, len(answer.inodes))
        return answer

    async def _place(self, index: Index, scope: Scope, whose: Hashable) -> _Place:
        key = (index.path, whose)
        place = self._places.get(key)
        if place is None:
            place = await self._in_thread(lambda: _Place.of(index, scope))
            self._places.put(key, place, len(place))
        return place

    async def _search_for(self, search: StoreSearch, needs: Needs) -> Candidates:
        """Ask the store, or what it said before. Raises NoAnswer, StoreError."""
        kept = self._searched.get(needs)
        if kept is None:
            kept = Candidates(await search.search(needs or ()), "chroma")
            self._searched.put(needs, kept, len(kept.versions))
        return kept

    async def _answer(
        self,
        by_index: Callable[[Indexing, Index], Awaitable[T | None]],
        by_search: Callable[[StoreSearch], Awaitable[T]],
    ) -> T | Unknown:
        with trio.move_on_after(self._deadline):
            answer = await self._by_index(by_index)
            if answer is not None or self._search is None:
                return answer or Unknown("there is no index yet")
            return await self._by_search(self._search, by_search)
        if self._search is not None and self._has_no_index():
            self._silent_until = trio.current_time() + PAUSE
        return Unknown("it took too long to find out")

    async def _by_index(
        self, ask: Callable[[Indexing, Index], Awaitable[T | None]]
    ) -> T | Unknown | None:
        """Ask the index; None where there is none."""
        indexing = self._indexing
        if indexing is None:
            return None
        await indexing.leaves("starting")
        while (index := indexing.index) is not None:
            try:
                answer = await ask(indexing, index)
            except IndexDamaged as exc:
                indexing.damaged(index, exc)  # or it was replaced, and the next one is asked
                continue
            return answer or Unknown("its literals are too short or too many for the index")
        return None

    async def _by_search(
        self, search: StoreSearch, ask: Callable[[StoreSearch], Awaitable[T]]
    ) -> T | Unknown:
        if trio.current_time() < self._silent_until:
            return Unknown("the store's search is slow")
        try:
            return await ask(search)
        except NoAnswer as exc:
            return Unknown(str(exc))
        except StoreError as exc:
            log.debug("a search failed: %s", exc)
            return Unknown("the store does not answer")

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)

    def _has_no_index(self) -> bool:
        return self._indexing is None or self._indexing.index is None


class _Place:
    """Which inode each row of an index has in a view: 0 where the identity does not see the page."""

    def __init__(self, inodes: array[int]) -> None:
        self._inodes = inodes

    @classmethod
    def of(cls, index: Index, scope: Scope) -> _Place:
        """Look every page of a view up, 60,000 in 60 ms. Raises IndexDamaged."""
        entries = scope.view.entries
        rows = index.rows_of(None if entry is None else entry.version for entry in entries)
        inodes = array("I", bytes(4 * (max(rows, default=0) + 1)))
        for inode, row in enumerate(rows, 1):
            if row and _is_shown(scope, inode):
                inodes[row] = inode
        return cls(inodes)

    def __len__(self) -> int:
        return len(self._inodes)

    def inodes(self, rows: array[int] | None) -> array[int] | None:
        """Return the inodes of those rows that the identity sees."""
        if rows is None:
            return None
        size = len(self._inodes)
        return array("I", filter(None, (self._inodes[row] for row in rows if row < size)))


def _inodes(scope: Scope, versions: frozenset[bytes]) -> array[int]:
    """Return the inodes of those pages that the identity sees now, ascending."""
    return array(
        "I",
        (
            inode
            for inode, entry in enumerate(scope.view.entries, 1)
            if entry is not None and entry.version in versions and _is_shown(scope, inode)
        ),
    )


def _is_shown(scope: Scope, inode: int) -> bool:
    try:
        scope.page(inode)
    except StaleInode:  # withdrawn by now
        return False
    return True
