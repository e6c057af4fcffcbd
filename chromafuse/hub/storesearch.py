"""The store's own search as a prefilter, while there is no index: one regular expression, all chunks.

It is trusted where it is known to read every document (Chroma on SQLite, see Store.searches_all) and after a
look at what it sees: every chunk of the tree must be found by a pattern that fits any text. It says nothing of
these pages, which are always candidates:

- a page with a chunk that was not found so;
- a page with a line over several chunks: a literal may lie across the cut;
- a page in base64, for what is stored is not its text;
- a page with NUL or a byte order mark, which every tool reads in its own way.

Other texts are cut behind line feeds, so no literal without one lies across a cut. `$regex` and never
`$contains`, which finds nothing behind a NUL and is not faster: 19 against 20 ms for 16,000 chunks.

The chunks of a tree are all there as long as it is the published one, which is looked at after every search.

Concurrency: one trio thread; long answers are taken apart in a worker thread. Searches wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import trio

from ..errors import RecordDamaged, StoreRejected
from ..model.entry import TreeEntry
from ..model.records import PathTree
from ..search.needs import Need, fold
from ..store.protocol import Store
from ..store.reader import load_root

T = TypeVar("T")

PATTERN_MAX = 20_000  # characters; far below what the engine refuses, and a longer one is slow
_META = frozenset(r"\.+*?()|[]{}^$#&-~")  # of regex-syntax
# Beyond the last letter that any tool takes for one of ASCII, the sign for kelvin.
_LETTERS_END = 0x2130
_ANY = r"(?s:.)"
_CUT = r"[^\n]\z"  # a chunk that is not the last of its page and ends so is a piece of a line
_NUL = r"\x00"
_ODD = rf"\A\ufeff|{_NUL}"
_LONG = 2_000  # ids; more are taken apart in a thread


class NoAnswer(Exception):
    """The store's search says nothing of this. The text may be shown to anybody."""


# -- patterns ----------------------------------------------------------------------------------------------


def pattern_of(needs: tuple[Need, ...]) -> str | None:
    """Return what every page that fulfils `needs` matches, within a line; None where there is nothing."""
    alternatives: dict[str, None] = {}
    for need in needs:
        usable = [clause for clause in need.clauses if _is_usable(clause, need.fold)]
        if not usable:
            return None
        best = max(usable, key=lambda clause: (min(map(len, clause)), -len(clause)))
        alternatives |= dict.fromkeys(_regex(literal, need.fold) for literal in sorted(best))
    pattern = "|".join(alternatives)
    return pattern if 0 < len(pattern) <= PATTERN_MAX else None


def _is_usable(clause: Collection[str], folded: bool) -> bool:
    return bool(clause) and all(_is_searchable(literal, folded) for literal in clause)


def _is_searchable(literal: str, folded: bool) -> bool:
    if not literal or any(char in "\n\0" or "\ud800" <= char <= "\udfff" for char in literal):
        return False
    return literal.isascii() or not folded


def _regex(literal: str, folded: bool) -> str:
    return "".join(_char(char, folded) for char in literal)


def _char(char: str, folded: bool) -> str:
    if folded and char.isalpha():
        return f"[{_forms()[fold(char)]}]"
    return f"\\{char}" if char in _META else char


@cache
def _forms() -> dict[str, str]:
    """Return all that the tools take for each letter."""
    forms: dict[str, str] = {}
    for char in map(chr, range(_LETTERS_END)):
        letter = fold(char)
        if letter.isascii() and letter.isalpha():
            forms[letter] = forms.get(letter, "") + char
    return forms


# -- asking ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Survey:
    always: frozenset[bytes]  # versions that the search says nothing of
    binary: frozenset[bytes]  # those of them in base64


class StoreSearch:
    """Searches for the pages of one tree."""

    def __init__(self, store: Store, tree: PathTree) -> None:
        self.calls = 0  # searches made
        self._store = store
        self._tree = tree
        self._survey: _Survey | None = None
        self._nul: frozenset[bytes] | None = None
        self._lock = trio.Lock()

    async def search(self, needs: tuple[Need, ...]) -> frozenset[bytes]:
        """Return the versions that can fulfil `needs`, of this tree and of others.

        Raises NoAnswer, and StoreError where the store does not answer.
        """
        pattern = pattern_of(needs)
        if pattern is None:
            raise NoAnswer("its literals say nothing to the store's search")
        async with self._lock:
            survey = await self._surveyed()
            ids = await self._ids(pattern)
            await self._check_published()
        return survey.always | await _taken_apart(lambda: _versions(ids), len(ids))

    async def nul(self) -> frozenset[bytes]:
        """Return the versions of pages that may hold a NUL. Raises NoAnswer, StoreError."""
        async with self._lock:
            if self._nul is None:
                binary = (await self._surveyed()).binary
                found = _versions(await self._ids(_NUL))
                await self._check_published()
                self._nul = binary | found
            return self._nul

    async def prepare(self) -> None:
        """Look at what the search sees, so that the first search need not. Raises NoAnswer, StoreError."""
        async with self._lock:
            await self._surveyed()

    async def _surveyed(self) -> _Survey:
        if self._survey is None:
            if not await self._store.searches_all():
                raise NoAnswer("this store's search is not known to find everything")
            await self._check_published()
            found = [await self._ids(pattern) for pattern in (_ANY, _CUT, _ODD)]
            found.append(await self._store.tagged("encoding", "base64"))
            survey = await _taken_apart(lambda: _judged(self._tree.entries, *found), len(found[0]))
            await self._check_published()
            self._survey = survey
        return self._survey

    async def _ids(self, pattern: str) -> list[str]:
        self.calls += 1
        try:
            return await self._store.search(pattern)
        except StoreRejected as exc:
            raise NoAnswer("the store refused the search") from exc

    async def _check_published(self) -> None:
        """Raise NoAnswer unless our tree is the published one: parts of any other may have been collected."""
        try:
            root = await load_root(self._store)
        except RecordDamaged as exc:
            raise NoAnswer("what is published cannot be read") from exc
        if root.sha256 != self._tree.sha256:
            raise NoAnswer("another tree is published by now")


async def _taken_apart(work: Callable[[], T], ids: int) -> T:
    """Take an answer of so many ids apart."""
    return await trio.to_thread.run_sync(work) if ids > _LONG else work()


def _chunks(ids: Iterable[str]) -> Iterator[tuple[bytes, int]]:
    """Yield version and number of those ids that are of chunks."""
    for id in ids:
        version, colon, number = id.partition(":")
        if colon and len(version) == 32 and number.isdecimal():
            try:
                yield bytes.fromhex(version), int(number)
            except ValueError:
                continue  # somebody else's


def _versions(ids: list[str]) -> frozenset[bytes]:
    return frozenset(version for version, _ in _chunks(ids))


def _judged(
    entries: tuple[TreeEntry, ...],
    every: list[str],
    cut: list[str],
    odd: list[str],
    binary: list[str],
) -> _Survey:
    """Return what the answers to the survey mean for a tree."""
    seen = Counter(version for version, _ in _chunks(every))
    last = {entry.version: entry.chunks - 1 for entry in entries}
    always = {entry.version for entry in entries if seen[entry.version] != entry.chunks}
    always |= {version for version, number in _chunks(cut) if number < last.get(version, 0)}
    packed = _versions(binary)
    return _Survey(frozenset(always) | _versions(odd) | packed, packed)
