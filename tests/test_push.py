"""Pages on their way to the kernel: handed over once its names are known, at hand until then, never waited for."""

from __future__ import annotations

import errno
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pyfuse3
import pytest
import trio
import trio.testing

from chromafuse.errors import ProtocolError
from chromafuse.view.push import HOLD, KEPT, LIMIT, Pusher
from tests.support.fake_hub import make_view

PAGES = {
    "a/1": b"one",
    "a/2": b"two two",
    "a/3": b"three",
    "b/1": b"other",
    "big": bytes(LIMIT // 2 + 1),
    "big too": bytes(LIMIT // 2),
}
SNAPSHOT = make_view(PAGES).snapshot
A, A1, A2, A3, B, B1, BIG, BIG_TOO = range(2, 10)
CONTENT = dict(zip((A1, A2, A3, B1, BIG, BIG_TOO), PAGES.values(), strict=True))


@dataclass
class Hub:
    """Answers reads, when the test lets it."""

    asked: list[tuple[int, bool]] = field(default_factory=list)
    open: trio.Event = field(default_factory=trio.Event)

    async def read(self, inode: int, offset: int, size: int, *, again: bool) -> bytes:
        self.asked.append((inode, again))
        await self.open.wait()
        return CONTENT[inode][offset : offset + size]


class Kernel:
    """Takes the pages whose names it knows, when the test lets it."""

    def __init__(self) -> None:
        self.knows = set(CONTENT)
        self.taken: dict[int, bytes] = {}
        self.refused: list[int] = []
        self.error = 0
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def store(self, inode: int, offset: int, page: memoryview) -> None:
        self.entered.set()
        assert self.open.wait(20)
        if self.error:
            raise OSError(self.error, "scripted")
        if inode not in self.knows:
            self.refused.append(inode)
            raise FileNotFoundError
        assert offset == 0
        self.taken[inode] = bytes(page)


@dataclass
class Rig:
    """A pusher between a hub and a kernel."""

    pusher: Pusher
    hub: Hub
    kernel: Kernel
    clock: trio.testing.MockClock

    def send(self, *inodes: int) -> None:
        self.pusher.take([(inode, memoryview(CONTENT[inode])) for inode in inodes])

    async def held_read(self, inode: int) -> bytes:
        """Read a page whose turn comes; after HOLD it is there, whatever the kernel does."""
        got: list[bytes] = []

        async def read() -> None:
            got.append(bytes(await self.pusher.read(inode, 0, 100)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert got == []
            self.clock.jump(HOLD)
        return got[0]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the worker thread."""
        for _ in range(4_000):
            if holds():
                return
            await trio.to_thread.run_sync(threading.Event().wait, 0.005)
        raise AssertionError("the worker did not get there")


def with_rig(monkeypatch: pytest.MonkeyPatch, body: Callable[[Rig], Awaitable[None]]) -> None:
    """Run `body` on a pusher that works."""
    kernel = Kernel()
    monkeypatch.setattr(pyfuse3, "notify_store", kernel.store)

    clock = trio.testing.MockClock()

    async def main() -> None:
        hub = Hub()
        rig = Rig(Pusher(SNAPSHOT, hub), hub, kernel, clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.pusher.run)
            await trio.testing.wait_all_tasks_blocked()
            await body(rig)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_pages_wait_until_their_names_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is given a directory's pages when it was listed, not before, and those of others later."""

    async def body(rig: Rig) -> None:
        rig.send(A1, A2, B1)
        assert rig.kernel.taken == {}
        rig.pusher.listed(A)
        await rig.until(lambda: len(rig.kernel.taken) == 2)
        assert rig.kernel.taken == {A1: CONTENT[A1], A2: CONTENT[A2]}
        rig.send(A3)
        await rig.until(lambda: A3 in rig.kernel.taken)
        assert rig.kernel.refused == []

    with_rig(monkeypatch, body)


def test_a_page_at_hand_answers_reads_without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that waits is read from here, in any part; one that is not here is asked of the hub."""

    async def body(rig: Rig) -> None:
        rig.hub.open.set()
        rig.send(A2)
        assert bytes(await rig.pusher.read(A2, 0, 100)) == b"two two"
        assert bytes(await rig.pusher.read(A2, 4, 2)) == b"tw"
        assert bytes(await rig.pusher.read(A1, 1, 100)) == b"ne"
        assert rig.hub.asked == [(A1, False)]

    with_rig(monkeypatch, body)


def test_a_page_that_the_kernel_had_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is told when a page is read that was read or handed over before; once, not for each part."""

    async def body(rig: Rig) -> None:
        rig.hub.open.set()
        rig.send(A1)
        rig.pusher.listed(A)
        await rig.until(lambda: A1 in rig.kernel.taken)
        await rig.until(lambda: A1 not in rig.pusher._held)
        for inode, offset in ((A1, 0), (A1, 2), (A2, 0), (A2, 0)):
            await rig.pusher.read(inode, offset, 10)
        assert rig.hub.asked == [(A1, True), (A1, False), (A2, False), (A2, True)]

    with_rig(monkeypatch, body)


def test_a_page_that_is_being_read_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a read of a page waits for the hub the kernel is given its neighbours only."""

    async def body(rig: Rig) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.pusher.read, A2, 0, 10)
            await trio.testing.wait_all_tasks_blocked()
            rig.pusher.listed(A)
            rig.send(A1, A2, A3)
            await rig.until(lambda: A3 in rig.kernel.taken)
            assert sorted(rig.kernel.taken) == [A1, A3]
            rig.hub.open.set()

    with_rig(monkeypatch, body)


def test_a_kernel_that_takes_its_time_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the kernel does not take a page, that page and others are read, and more may come."""

    async def body(rig: Rig) -> None:
        rig.hub.open.set()
        rig.kernel.open.clear()
        rig.pusher.listed(A)
        rig.send(A1, A2)
        await rig.until(rig.kernel.entered.is_set)
        assert bytes(await rig.pusher.read(A1, 0, 10)) == b"one"
        assert bytes(await rig.pusher.read(B1, 0, 10)) == b"other"
        assert bytes(await rig.held_read(A2)) == b"two two"
        rig.send(A3)
        rig.kernel.open.set()
        await rig.until(lambda: A3 in rig.kernel.taken)

    with_rig(monkeypatch, body)


def test_a_forgotten_name_makes_its_pages_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that the kernel forgot is asked about once; its pages are given when it is listed again."""

    async def body(rig: Rig) -> None:
        rig.pusher.listed(A)
        rig.kernel.knows.clear()
        rig.send(A1, A2, A3)
        await rig.until(lambda: rig.kernel.refused == [A1])
        assert bytes(await rig.pusher.read(A3, 0, 10)) == b"three"
        rig.kernel.knows = set(CONTENT)
        rig.pusher.listed(A)
        await rig.until(lambda: sorted(rig.kernel.taken) == [A1, A2, A3])
        assert rig.kernel.refused == [A1]

    with_rig(monkeypatch, body)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that would exceed the bound is dropped, and asked of the hub when it is read."""

    async def body(rig: Rig) -> None:
        rig.hub.open.set()
        rig.send(BIG, BIG_TOO, A1)
        await rig.pusher.read(BIG, 0, 10)
        await rig.pusher.read(BIG_TOO, 0, 10)
        await rig.pusher.read(A1, 0, 10)
        assert rig.hub.asked == [(BIG_TOO, False)]

    with_rig(monkeypatch, body)


def test_what_nobody_comes_for_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of directories that nobody lists are held for a moment, and are no longer there afterwards."""

    async def body(rig: Rig) -> None:
        rig.hub.open.set()
        rig.send(BIG, B1)
        await trio.testing.wait_all_tasks_blocked()
        rig.clock.jump(KEPT)
        await trio.testing.wait_all_tasks_blocked()
        rig.clock.jump(KEPT)
        await rig.until(lambda: not rig.pusher._held)
        rig.send(BIG_TOO)
        rig.pusher.listed(B)
        await rig.pusher.read(B1, 0, 10)
        assert (rig.hub.asked, rig.kernel.taken) == ([(B1, False)], {})

    with_rig(monkeypatch, body)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENODEV, errno.ENOMEM])
def test_a_kernel_that_refuses_is_asked_in_vain(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Whatever the kernel says, pages that it does not take are dropped, and reads go on."""

    async def body(rig: Rig) -> None:
        rig.hub.open.set()
        rig.kernel.error = code
        rig.pusher.listed(A)
        rig.send(A1, A2)
        await rig.until(lambda: not rig.pusher._held)
        assert bytes(await rig.pusher.read(A1, 0, 10)) == b"one"

    with_rig(monkeypatch, body)


@pytest.mark.parametrize(
    ("inode", "page"),
    [(0, b"x"), (99, b"x"), (A, b""), (A1, b"on"), (A1, b"one "), (1 << 60, b"x")],
)
def test_what_is_no_page_of_this_tree_is_refused(inode: int, page: bytes) -> None:
    """An unknown inode, a directory and another length are the fault of the hub, and nothing is kept of it."""
    pusher = Pusher(SNAPSHOT, Hub())
    with pytest.raises(ProtocolError, match=f"a push of {len(page)} bytes for inode {inode}"):
        pusher.take([(inode, memoryview(page))])
    assert not pusher._held
