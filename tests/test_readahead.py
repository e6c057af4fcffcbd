"""Which pages are sent after a read: bounded for one, few requests for a walk in any order, none for a listing."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.hub.readahead import (
    AHEAD_BYTES,
    CROSSING,
    MOMENT,
    NEAR,
    STRIDE,
    WALK,
    WINDOW_BYTES,
    WINDOW_PAGES,
    ReadAhead,
)
from chromafuse.model.access import PUBLIC
from chromafuse.model.entry import TreeEntry
from chromafuse.model.names import sort_key
from chromafuse.model.snapshot import Snapshot, build
from chromafuse.wire import PUSH_MAX

TICK = 0.0001  # s between two reads


def tree(sizes: dict[str, int]) -> Snapshot:
    """Return the snapshot of pages by path and size."""
    entries = [TreeEntry(path, PUBLIC, path.encode(), 1, size, 5) for path, size in sizes.items()]
    return build(1, sorted(entries, key=lambda entry: sort_key(entry.path))).snapshot


def site(directories: int, pages: int, size: int = 10_000) -> Snapshot:
    """Return directories of pages, four levels deep."""
    return tree(
        {
            f"{number % 3}/{number % 7}/{number}/{page:05}.md": size
            for number in range(directories)
            for page in range(pages)
        }
    )


class Kernel:
    """A reader over a cache: it asks for what was neither sent nor read."""

    def __init__(self, snapshot: Snapshot, lag: int = 0) -> None:
        self.snapshot = snapshot
        self.lag = lag  # reads until what was sent is there
        self.ahead = ReadAhead(snapshot)
        self.now = 100.0
        self.cached: set[int] = set()
        self.had: set[int] = set()
        self.sent: list[int] = []
        self.asked = 0
        self._under_way: deque[list[int]] = deque()

    def read(self, inode: int) -> list[int]:
        """Read a page; return what was sent along."""
        self.now += TICK
        if inode in self.cached or not self.snapshot.size(inode):
            return []
        self.asked += 1
        sent = self.ahead.read(inode, self.now, again=inode in self.had)
        self.sent += sent
        self._under_way.append(sent)
        arrived = {inode}
        while len(self._under_way) > self.lag:
            arrived.update(self._under_way.popleft())
        self.cached |= arrived
        self.had |= arrived
        return sent

    def lose(self, inodes: set[int], pause: float = 10) -> None:
        """Give up pages, as a kernel short of memory does."""
        self.cached -= inodes
        self.now += pause


def grep_order(snapshot: Snapshot) -> list[int]:
    """Return the pages as grep -r and tar read them: depth first."""
    return list(snapshot.pages())


def ripgrep_order(snapshot: Snapshot, seed: int = 1) -> list[int]:
    """Return the pages as two threads over one stack read them."""
    chance, order, stack = random.Random(seed), [], [1]
    while stack:
        inode = stack.pop(-1 - min(len(stack) - 1, chance.choice([0, 0, 1])))
        if snapshot.is_directory(inode):
            stack.extend(snapshot.child_inodes(inode))
        else:
            order.append(inode)
    return order


@given(
    sizes=st.lists(st.integers(0, 3 << 20), min_size=1, max_size=200),
    place=st.integers(0, 199),
)
def test_one_read_brings_a_bounded_part_of_its_directory(sizes: list[int], place: int) -> None:
    """After one read at most 63 neighbours are sent, with the page at most 1 MiB, none empty or too large."""
    snapshot = tree({f"d/{number:03}": size for number, size in enumerate(sizes)} | {"e/x": 9})
    inode = 3 + place % len(sizes)
    sent = ReadAhead(snapshot).read(inode, 5.0)
    assert len(sent) < WINDOW_PAGES
    assert not sent or snapshot.size(inode) + sum(map(snapshot.size, sent)) <= WINDOW_BYTES
    assert all(0 < snapshot.size(other) <= PUSH_MAX and other != inode for other in sent)
    assert {snapshot.parent(other) for other in sent} <= {snapshot.parent(inode)}
    assert len(set(sent)) == len(sent)


def test_a_small_directory_is_sent_whole() -> None:
    """Whichever page is read first, all others of a small directory follow, the next ones first."""
    snapshot = tree({f"d/{number}": 10 for number in range(6)})
    assert ReadAhead(snapshot).read(5, 0.0) == [6, 7, 8, 4, 3]


def test_a_large_directory_is_sent_in_growing_windows() -> None:
    """Whoever reads on through 10,000 pages of one directory asks a few times, not once a page."""
    snapshot = tree({f"d/{number:05}": 100 for number in range(10_000)})
    for order in (grep_order(snapshot), grep_order(snapshot)[::-1]):
        kernel = Kernel(snapshot)
        for inode in order:
            kernel.read(inode)
        assert kernel.asked <= 15
        assert len(set(kernel.sent)) == len(kernel.sent)


@pytest.mark.parametrize("order", [grep_order, ripgrep_order])
@pytest.mark.parametrize("shape", [(300, 14), (2_000, 2), (4, 3_000)])
def test_a_walk_asks_for_few_pages(order: object, shape: tuple[int, int]) -> None:
    """A walk of the tree in either direction asks for one page in a megabyte, and is sent no page twice."""
    snapshot = site(*shape)
    kernel = Kernel(snapshot)
    for inode in order(snapshot):  # type: ignore[operator]
        kernel.read(inode)
    megabytes = shape[0] * shape[1] * 10_000 / STRIDE
    assert kernel.asked <= 1.3 * megabytes + 12
    assert len(set(kernel.sent)) == len(kernel.sent)


def test_a_walk_is_not_run_ahead_of_without_bound() -> None:
    """What was sent and not passed stays within the budget at every read; a page is not sent that was read."""
    snapshot = site(300, 14)
    kernel = Kernel(snapshot)
    for inode in grep_order(snapshot):
        sent = kernel.read(inode)
        assert inode not in sent
        beyond = sum(snapshot.size(page) for page in kernel.cached if page > inode)
        assert beyond <= AHEAD_BYTES + WINDOW_BYTES + STRIDE


def test_reads_here_and_there_are_no_walk() -> None:
    """Reads in directories that are minutes apart bring their own directory each and nothing else."""
    snapshot = site(50, 5)
    kernel = Kernel(snapshot)
    for inode in list(snapshot.pages())[::25]:
        kernel.now += MOMENT
        sent = kernel.read(inode)
        assert len(sent) == 4
        assert {snapshot.parent(other) for other in sent} == {snapshot.parent(inode)}


def test_a_walk_that_stops_was_sent_little_more() -> None:
    """Whoever stops after 200 pages was sent those and what the budget allows beyond."""
    snapshot = site(300, 14)
    kernel = Kernel(snapshot)
    pages = grep_order(snapshot)
    for inode in pages[:200]:
        kernel.read(inode)
    assert len(kernel.sent) <= 200 + (AHEAD_BYTES + WINDOW_BYTES) / 10_000


def test_single_lost_pages_are_answered_alone() -> None:
    """Pages that the kernel gives up here and there are asked for again one by one, and nothing is resent."""
    snapshot = site(300, 14)
    kernel = Kernel(snapshot)
    pages = grep_order(snapshot)
    for inode in pages:
        kernel.read(inode)
    before, asked = len(kernel.sent), kernel.asked
    lost = set(pages[:: 4 * NEAR])
    kernel.lose(lost)
    for inode in pages:
        kernel.read(inode)
    assert (len(kernel.sent), kernel.asked) == (before, asked + len(lost))


@pytest.mark.parametrize("pause", [0, 10])
@pytest.mark.parametrize("lag", [0, 4])
@pytest.mark.parametrize("order", [grep_order, ripgrep_order])
@pytest.mark.parametrize("shape", [(300, 14), (4, 3_000)])
def test_a_kernel_that_lost_everything_is_sent_everything(
    order: object, shape: tuple[int, int], lag: int, pause: float
) -> None:
    """After all pages are gone a second walk asks for hardly more than the first did, and so does a third.

    It is sent hardly more: reads that cross what is on its way do not have it sent once more.
    """
    snapshot = site(*shape)
    kernel = Kernel(snapshot, lag)
    counts, sent = [], []
    for _ in range(3):
        before = kernel.asked, len(kernel.sent)
        for inode in order(snapshot):  # type: ignore[operator]
            kernel.read(inode)
        counts.append(kernel.asked - before[0])
        sent.append(len(kernel.sent) - before[1])
        kernel.lose(set(kernel.cached), pause)
    assert max(counts[1:]) <= counts[0] + 12 * WALK + CROSSING
    assert max(sent) <= 1.2 * shape[0] * shape[1]


@given(
    reads=st.lists(st.tuples(st.integers(0, 63), st.booleans(), st.floats(0, 3)), max_size=80),
)
def test_any_reads_are_answered_with_pages_of_the_tree(
    reads: list[tuple[int, bool, float]],
) -> None:
    """Whatever is read in whatever order, what is sent are other pages of the tree, each once."""
    snapshot = site(9, 7, size=300_000)
    pages = grep_order(snapshot)
    ahead, now = ReadAhead(snapshot), 0.0
    for place, again, pause in reads:
        now += pause
        inode = pages[place % len(pages)]
        sent = ahead.read(inode, now, again=again)
        assert len(set(sent)) == len(sent)
        assert set(sent) <= set(pages) - {inode}
        assert sum(map(snapshot.size, sent)) <= AHEAD_BYTES + 17 * WINDOW_BYTES
