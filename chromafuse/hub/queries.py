"""Answers the searches that a view passes on: what to run, and which of its pages can match.

Whatever is not certain is Plain, and the real tool looks at every page. An answer depends on the question and on
what the identity sees, on nothing else: no time, no count of anything hidden.

Concurrency: one trio thread; questions are answered in any number of tasks at once. What may take long, for a
long command line or many pages, is done in worker threads: it is pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from ..errors import ProtocolError, StaleInode
from ..search import gnu, ripgrep
from ..search.needs import Needs
from ..search.plan import Plain, Plan, Request, Send
from ..search.query import (
    ANSWER_MAX,
    Filtered,
    Question,
    encode_answer,
    parse_question,
)
from .prefilter import Unknown, Visible
from .scope import Scope

MOST = 0.6  # share of the pages from which it is not worth the while to name them one by one
FEW = 20  # pages that are named however many match
LONG = 1_000  # bytes of a question, or candidates, from which a thread is worth its while
THREADS = 2  # at once
T = TypeVar("T")
Planner = Callable[[Request], Plan | Plain | Send]
Push = Callable[[Sequence[int]], None]  # sends pages of these inodes ahead; returns at once

PLANNERS: Mapping[str, Planner] = {
    "grep": gnu.plan,
    "egrep": gnu.plan,
    "fgrep": gnu.plan,
    "rg": ripgrep.plan,
}


class Prefilter(Protocol):
    """Who says what can match (prefilter.py)."""

    async def candidates_for(self, scope: Scope, needs: Needs) -> Visible | Unknown:
        """Return the pages of a view that can fulfil `needs`."""
        ...

    async def nul_for(self, scope: Scope) -> Visible | Unknown:
        """Return the pages of a view that may hold a NUL."""
        ...


class Queries:
    """Answers the questions of one view."""

    def __init__(
        self, scope: Scope, prefilter: Prefilter, planners: Mapping[str, Planner] = PLANNERS
    ) -> None:
        self._scope = scope
        self._prefilter = prefilter
        self._planners = planners
        self._counts: dict[int, int] = {}  # pages below, by directory
        self._threads = trio.CapacityLimiter(THREADS)

    async def answer(self, directory: int, data: bytes, push: Push) -> bytes:
        """Answer a question about the pages below a directory; have those sent that can match.

        Raises StaleInode where there is no such directory.
        """
        snapshot = self._scope.view.snapshot
        if not snapshot.has(directory) or not snapshot.is_directory(directory):
            raise StaleInode(f"inode {directory} is no directory of this view")
        try:
            encoded = await self._answer(directory, data, push)
        except ProtocolError as exc:
            encoded = encode_answer(Plain(str(exc)))
        if len(encoded) > ANSWER_MAX:
            encoded = encode_answer(Plain("too many pages can match"))
        return encoded

    async def _answer(self, directory: int, data: bytes, push: Push) -> bytes:
        question = parse_question(data)
        planner = self._planners[question.request.tool]
        plan = await self._run(lambda: planner(question.request), len(data))
        if not isinstance(plan, Plan):
            return encode_answer(plan)
        place = _Place(self._scope, directory, question.where)
        named = [place.page(operand) for operand in plan.operands]
        if not place.is_walked(plan) and not any(named):
            return encode_answer(_filtered(place, plan, question, named))
        found = await self._prefilter.candidates_for(self._scope, plan.needs)
        if isinstance(found, Unknown):
            return encode_answer(Plain(found.reason))
        binaries = await self._binaries(place, plan, found)
        if isinstance(binaries, Plain):
            return encode_answer(binaries)
        pages = self._count(place)
        size = pages if question.whole else len(place.below(found.inodes))
        answer = await self._run(
            lambda: _filtered(place, plan, question, named, found, binaries, pages), size
        )
        _push(place, answer, named, found, push)
        return await self._run(lambda: encode_answer(answer), size)

    async def _binaries(self, place: _Place, plan: Plan, found: Visible) -> Sequence[int] | Plain:
        """Return the pages that the plan minds; Plain where it is not worth the while, or not known."""
        if not place.is_walked(plan):
            return ()
        pages, chosen = self._count(place), len(place.below(found.inodes))
        if chosen > max(FEW, MOST * pages):
            return Plain(f"{chosen} of {pages} pages can match")
        if not plan.plain_on_nul:
            return ()
        nul = await self._prefilter.nul_for(self._scope)
        return Plain(nul.reason) if isinstance(nul, Unknown) else place.below(nul.inodes)

    def _count(self, place: _Place) -> int:
        """Return how many pages lie below a directory."""
        count = self._counts.get(place.directory)
        if count is None:
            count = self._counts[place.directory] = place.pages()
        return count

    async def _run(self, work: Callable[[], T], size: int) -> T:
        """Do some work of this size, in a thread where it may take long."""
        if size < LONG:
            return work()
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory of a view, and how a command line calls it."""

    scope: Scope
    directory: int
    where: bytes

    def is_walked(self, plan: Plan) -> bool:
        """Say whether the tool walks this very directory."""
        asked = self.where in plan.operands or (not plan.operands and self.where == b".")
        return plan.recursive and asked

    def pages(self) -> int:
        """Return how many pages lie below."""
        snapshot = self.scope.view.snapshot
        entries = self.scope.view.entries[self.directory : snapshot.ends[self.directory - 1]]
        return sum(entry is not None for entry in entries)

    def below(self, inodes: Sequence[int]) -> Sequence[int]:
        """Return those of ascending inodes that lie below."""
        end = self.scope.view.snapshot.ends[self.directory - 1]  # the last inode of the subtree
        return inodes[bisect_left(inodes, self.directory + 1) : bisect_left(inodes, end + 1)]

    def path(self, inode: int) -> bytes:
        """Return the path of what lies below, relative to this directory."""
        snapshot, parts = self.scope.view.snapshot, []
        while inode != self.directory:
            parts.append(snapshot.name(inode))
            inode = snapshot.parent(inode)
        return b"/".join(reversed(parts))

    def page(self, operand: bytes) -> int:
        """Return the inode of the page that an operand means; 0 where it is none, or none that lies below."""
        if self.where != b".":
            if not operand.startswith(self.where + b"/"):
                return 0
            operand = operand[len(self.where) + 1 :]
        elif operand.startswith(b"/"):
            return 0
        inode, snapshot = self.directory, self.scope.view.snapshot
        for name in operand.split(b"/"):
            if name == b".." or not snapshot.is_directory(inode):
                return 0
            if name not in (b"", b"."):
                inode = snapshot.lookup(inode, name)
                if not inode:
                    return 0
        return 0 if snapshot.is_directory(inode) else inode

    def directories(self) -> tuple[tuple[int, bytes], ...]:
        """Return the directories that lie below: inode, path."""
        snapshot = self.scope.view.snapshot
        inodes = range(self.directory + 1, snapshot.ends[self.directory - 1] + 1)
        return tuple((inode, self.path(inode)) for inode in inodes if snapshot.is_directory(inode))


def _filtered(
    place: _Place,
    plan: Plan,
    question: Question,
    named: Sequence[int],
    found: Visible | None = None,
    binaries: Sequence[int] = (),
    pages: int = 0,
) -> Filtered:
    """Return the answer for what was found; None where nothing was looked for."""
    candidates: list[bytes] = []
    walked = found is not None and place.is_walked(plan)
    if found is not None and walked:
        candidates = [place.path(inode) for inode in place.below(found.inodes)]
        if plan.selection is not None:
            candidates = [path for path in candidates if plan.selection.admits(path)]
    can_match = frozenset(found.inodes) if found is not None and any(named) else frozenset()
    return Filtered(
        plan,
        tuple(
            _is_looked_at(plan, operand) and (not inode or found is None or inode in can_match)
            for operand, inode in zip(plan.operands, named, strict=True)
        ),
        pages if walked else 0,
        found.source if found is not None else "",
        tuple(candidates),
        tuple(place.path(inode) for inode in binaries),
        place.directories() if question.whole and found is not None else (),
    )


def _is_looked_at(plan: Plan, operand: bytes) -> bool:
    return plan.selection is None or plan.selection.admits_operand(operand)


def _push(
    place: _Place, answer: Filtered, named: Sequence[int], found: Visible, push: Push
) -> None:
    """Have the pages sent that the tool will read."""
    inodes = [inode for inode, kept in zip(named, answer.kept, strict=True) if inode and kept]
    if place.is_walked(answer.plan):
        inodes += place.below(found.inodes)
    if inodes:
        push(sorted(set(inodes)))
