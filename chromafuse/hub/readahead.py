"""Which pages to send a view after a read of one, before it asks. Pure: no I/O, no clock of its own.

A read that reaches the hub is one that the kernel could not answer. Then the pages around it in its directory
are sent along: 64 of them or 1 MiB, twice as many at the next read that falls outside. One `cat` costs no more
than that; `ls`, `find` and `stat` read nothing and so lead to nothing.

Reads in several directories within a moment are a walk of the tree (`grep -r`, `rg`, `tar`). Then the pages
that come next are sent, in readdir order or against it, whichever way the walk goes, and the view keeps them
until the kernel has heard of their names. One page in each STRIDE is held back: the read of it shows that the
walk has come there, and only that moves the window on. A `find` cannot.

A kernel short of memory gives pages up, a few here and there or all of them. The view says when it is asked
for a page that the kernel had: some of them close together mean that their neighbours went as well, and are
sent once more; single ones are answered and nothing else.

Concurrency: one object a session, used from one task at a time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..model.snapshot import Snapshot
from ..wire import PUSH_MAX

WINDOW_PAGES, WINDOW_BYTES = 64, 1 << 20  # sent after the first read in a directory
GROWTH = 16  # times as much at most after further ones
WALK = 3  # directories that were read in within a moment: somebody walks the tree
MOMENT = 2.0  # s
AHEAD_BYTES = 8 << 20  # sent and not passed by the walk; the view keeps no more than twice that
NEAR = 4  # inodes between two pages that the kernel gave up together
CROSSING = 32  # reads that may cross what is sent anew; with more of them that was lost as well
STRIDE = 1 << 20  # bytes; one page of each is held back


@dataclass(slots=True)
class _Directory:
    """How far one directory was sent."""

    scale: int = 1
    last: int = 0  # the inode that was read last
    anew: float = -math.inf  # when the kernel was found to have lost it, and sending began again


class ReadAhead:
    """The reads of one view so far."""

    def __init__(self, snapshot: Snapshot, budget: int = AHEAD_BYTES) -> None:
        self._snapshot = snapshot
        self._budget = budget
        self._sent = bytearray(len(snapshot) + 1)  # by inode
        self._directories: dict[int, _Directory] = {}
        self._recent: deque[tuple[float, int]] = deque(maxlen=WALK)  # reads in other directories
        self._window: deque[tuple[int, int]] = deque()  # (inode, bytes) sent and not passed yet
        self._outstanding = 0  # bytes of those
        self._position = 0  # the inode that the window reaches to
        self._since_held = 0  # bytes sent since a page was held back
        self._gone: deque[tuple[float, int]] = deque(maxlen=NEAR)  # what the kernel gave up last
        self._losses = 0  # directories of which it gave up more than one page
        self._anew = -math.inf  # when it was found to have lost all of them
        self._crossed = 0  # reads of pages that were sent anew within a moment

    def read(self, inode: int, now: float, *, again: bool = False) -> list[int]:
        """Note a read of a page at `now` (seconds); return the inodes to send, in order.

        `again`: the kernel had the page.
        """
        parent = self._snapshot.parent(inode)
        directory = self._directories.setdefault(parent, _Directory())
        if self._sent[inode] and not (again and self._lost(inode, parent, directory, now)):
            return []  # it crossed what was sent, or is a single one that was lost
        around = self._around(parent, directory, inode)
        for sent in (*around, inode):
            self._sent[sent] = 1
        directory.scale = min(directory.scale * 2, GROWTH)
        directory.last = inode
        return around + self._later(inode, parent, now)

    def named(self, inodes: Iterable[int]) -> list[int]:
        """Note pages that somebody is about to read; return those to send, as far as the budget goes."""
        ahead: list[int] = []
        room = self._budget
        for inode in inodes:
            size = self._snapshot.size(inode)
            if self._sent[inode] or not 0 < size <= PUSH_MAX:
                continue
            room -= size
            if room < 0:
                break
            self._sent[inode] = 1
            ahead.append(inode)
        return ahead

    def _lost(self, inode: int, parent: int, directory: _Directory, now: float) -> bool:
        """Note a page that the kernel gave up; say whether its neighbours went with it."""
        near = [gone for at, gone in self._gone if now - at < MOMENT and abs(inode - gone) <= NEAR]
        self._gone.append((now, inode))
        if not near:
            return False
        if now - max(self._anew, directory.anew) < MOMENT:
            self._crossed += 1
            if self._crossed <= CROSSING:
                return False
            self._losses = WALK
        self._losses += 1
        self._crossed = 0
        lost: Iterable[int] = self._snapshot.child_inodes(parent)
        if self._losses >= WALK:
            self._losses, self._anew = 0, now
            lost = range(len(self._sent))
            for known in self._directories.values():
                known.scale = 1
            self._leave()
        for page in lost:
            self._sent[page] = 0
        for _, gone in self._gone:
            self._sent[gone] = 1  # read since
        directory.scale, directory.last, directory.anew = 1, near[-1], now
        return True

    def _leave(self) -> None:
        self._window.clear()
        self._outstanding = self._position = 0

    def _around(self, parent: int, directory: _Directory, inode: int) -> list[int]:
        """Return the pages around `inode`: onwards first, or backwards where the last read came from above."""
        siblings = self._snapshot.child_inodes(parent)
        at = bisect_left(siblings, inode)
        onwards, backwards = range(at + 1, len(siblings)), range(at - 1, -1, -1)
        order = (backwards, onwards) if directory.last > inode else (onwards, backwards)
        pages = WINDOW_PAGES * directory.scale - 1
        room = WINDOW_BYTES * directory.scale - self._snapshot.size(inode)
        around: list[int] = []
        for sibling in (siblings[place] for side in order for place in side):
            size = self._snapshot.size(sibling)  # huge for a directory
            if self._sent[sibling] or not 0 < size <= PUSH_MAX:
                continue
            room -= size
            if room < 0 or len(around) == pages:
                break
            around.append(sibling)
        return around

    def _later(self, inode: int, parent: int, now: float) -> list[int]:
        """Return what a walk will come to, as far as the window has room, where there is a walk."""
        if not self._recent or self._recent[-1][1] != parent:
            self._recent.append((now, parent))
        if len(self._recent) < WALK or now - self._recent[0][0] > MOMENT:
            self._leave()
            return []
        backwards = parent < self._recent[0][1]
        while self._window and (self._window[0][0] > inode) == backwards:
            self._outstanding -= self._window.popleft()[1]
        later: list[int] = []
        for page in self._from(inode, backwards):
            if self._outstanding >= self._budget:
                break
            size = self._snapshot.size(page)
            self._position = page
            self._since_held += size
            if self._since_held >= STRIDE:
                self._since_held = 0
                continue
            self._sent[page] = 1
            self._window.append((page, size))
            self._outstanding += size
            later.append(page)
        return later

    def _from(self, inode: int, backwards: bool) -> Iterator[int]:
        """Yield the pages behind the window that can be sent and were not."""
        start = self._position or inode
        last = len(self._snapshot)
        order = (
            range(min(start, inode) - 1, 0, -1)
            if backwards
            else range(max(start, inode) + 1, last + 1)
        )
        for page in order:
            if not self._sent[page] and 0 < self._snapshot.size(page) <= PUSH_MAX:
                yield page
