"""Which pages can match a search: the index where there is one, else the store's own search, else nothing known.

It never loses a match: a page that fulfils the needs is among the candidates, always. No candidate means that
nothing matches. Who may see a page is looked at after the question was answered for the whole tree, so what one
identity is told depends on nothing that it may not see. Reasons name no page, no place and no number.

Concurrency: one trio thread; questions are answered in any number of tasks at once.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import trio

from ..errors import StaleInode, StoreError
from ..search.needs import Needs
from .index import Index, IndexDamaged
from .indexing import Indexing
from .scope import Scope
from .storesearch import NoAnswer, StoreSearch

log = logging.getLogger(__name__)

Mode = Literal["auto", "index", "chroma", "none"]
Source = Literal["index", "chroma"]

DEADLINE = 0.8  # s for one question; whoever asks gives up after 1
PAUSE = 30.0  # s until a store whose search took longer is searched again
CACHED = 1 << 20  # inodes in all the answers that are kept; 4 bytes each
CACHED_VERSIONS = 1 << 16  # page versions, likewise; some 100 bytes each
THREADS = 2  # questions that the index answers at once

V = TypeVar("V", bound=Collection[object])


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


class _Kept(Generic[V]):
    """Answers, least recently used out first, bounded by what they hold in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._answers: OrderedDict[Hashable, tuple[V, Source]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[V, Source] | None:
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: Hashable, value: V, source: Source) -> None:
        if key in self._answers:
            return
        self._answers[key] = value, source
        self._size += 1 + len(value)
        while self._size > self._limit:
            _, (dropped, _) = self._answers.popitem(last=False)
            self._size -= 1 + len(dropped)


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
        self._answers: _Kept[frozenset[bytes]] = _Kept(CACHED_VERSIONS)
        self._visible: _Kept[array[int]] = _Kept(CACHED)

    async def run(self) -> None:
        """Have the store's search ready for the first question, where there is no index. It ends."""
        if self._indexing is not None:
            await self._indexing.leaves("starting")
            if self._indexing.index is not None:
                return
        if self._search is not None:
            try:
                await self._search.prepare()
            except (NoAnswer, StoreError) as exc:
                log.debug("the store's search is not used: %s", exc)

    async def candidates(self, needs: Needs) -> Candidates | Unknown:
        """Return all pages that can fulfil `needs`, whoever may see them."""
        if self._mode == "none":
            return Unknown("filtering is switched off")
        if needs is None:
            return Unknown("nothing is known of what it needs")
        if not needs:
            return Candidates(frozenset(), "index")
        kept = self._answers.get(needs)
        if kept is not None:
            return Candidates(*kept)
        answer = await self._answer(
            lambda index: index.search(needs), lambda search: search.search(needs)
        )
        if isinstance(answer, Candidates):
            self._answers.put(needs, answer.versions, answer.source)
        return answer

    async def candidates_for(self, scope: Scope, needs: Needs) -> Visible | Unknown:
        """Return those pages of a view that can fulfil `needs`."""
        return await self._seen(scope, needs, lambda: self.candidates(needs))

    async def nul_for(self, scope: Scope) -> Visible | Unknown:
        """Return those pages of a view that may hold a NUL."""
        return await self._seen(
            scope,
            "nul",
            lambda: self._answer(lambda index: index.nul, lambda search: search.nul()),
        )

    async def _seen(
        self, scope: Scope, what: Hashable, ask: Callable[[], Awaitable[Candidates | Unknown]]
    ) -> Visible | Unknown:
        # Two scopes of one digest have the same pages under the same inodes.
        key = (scope.generation, scope.digest, scope.identity, scope.still_shown, what)
        kept = self._visible.get(key)
        if kept is not None:
            return Visible(*kept)
        answer = await ask()
        if isinstance(answer, Unknown):
            return answer
        inodes = _inodes(scope, answer.versions)
        self._visible.put(key, inodes, answer.source)
        return Visible(inodes, answer.source)

    async def _answer(
        self,
        by_index: Callable[[Index], frozenset[bytes] | None],
        by_search: Callable[[StoreSearch], Awaitable[frozenset[bytes]]],
    ) -> Candidates | Unknown:
        with trio.move_on_after(self._deadline):
            answer = await self._by_index(by_index)
            if answer is not None or self._search is None:
                return answer or Unknown("there is no index yet")
            return await self._by_search(self._search, by_search)
        if self._search is not None and self._has_no_index():
            self._silent_until = trio.current_time() + PAUSE
        return Unknown("it took too long to find out")

    async def _by_index(
        self, ask: Callable[[Index], frozenset[bytes] | None]
    ) -> Candidates | Unknown | None:
        """Ask the index; None where there is none."""
        indexing = self._indexing
        if indexing is None:
            return None
        await indexing.leaves("starting")
        while (index := indexing.index) is not None:
            unread = indexing.unread
            try:
                found = await trio.to_thread.run_sync(
                    ask, index, abandon_on_cancel=True, limiter=self._threads
                )
            except IndexDamaged as exc:
                indexing.damaged(index, exc)  # or it was replaced, and the next one is asked
                continue
            if found is None:
                return Unknown("its literals are too short or too many for the index")
            return Candidates(found | unread, "index")
        return None

    async def _by_search(
        self, search: StoreSearch, ask: Callable[[StoreSearch], Awaitable[frozenset[bytes]]]
    ) -> Candidates | Unknown:
        if trio.current_time() < self._silent_until:
            return Unknown("the store's search is slow")
        try:
            return Candidates(await ask(search), "chroma")
        except NoAnswer as exc:
            return Unknown(str(exc))
        except StoreError as exc:
            log.debug("a search failed: %s", exc)
            return Unknown("the store does not answer")

    def _has_no_index(self) -> bool:
        return self._indexing is None or self._indexing.index is None


def _inodes(scope: Scope, versions: frozenset[bytes]) -> array[int]:
    """Return the inodes of those pages that the identity sees now."""
    found = array("I")
    for inode, entry in enumerate(scope.view.entries, 1):
        if entry is not None and entry.version in versions:
            with contextlib.suppress(StaleInode):  # withdrawn by now
                scope.page(inode)
                found.append(inode)
    return found
