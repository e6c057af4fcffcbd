"""Pages that the hub sends before anybody asks: put into the kernel's cache, at hand until they are there.

The kernel takes a page (notify_store) only if it knows the name, and only while no read of the page waits for
an answer; until then it makes the caller wait. So a worker thread does it, no handler waits for it without a
bound, and pages that are being read are left out. It knows the names in a directory when whoever lists it
comes back for more. Until then a page is kept here, for KEPT seconds and within LIMIT bytes, and answers reads.

Concurrency: `_work` runs in a thread of its own, the rest on the trio thread. `_held`, `_queued`, `_unlisted`,
`_listed` and `_known` are changed by both, in steps that the GIL makes atomic. Between two steps the other thread
may come in; what is lost then is a push, never a page: only the worker takes pages out of `_held`, and a page
that waits for a listing which was just told is dropped after KEPT seconds. A read first says which page it waits
for (`_reading`), then looks what is being handed over (`_current`); the worker does the same the other way
round. So never do both wait for one page.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
from typing import NoReturn, Protocol

import pyfuse3
import trio
from pyfuse3 import InodeT

from ..errors import ProtocolError
from ..model.snapshot import Snapshot

log = logging.getLogger(__name__)

LIMIT = 16 << 20  # bytes that wait for the kernel
KEPT = 2.0  # s without any page coming or going, after which those that wait are dropped
JOIN = 2.0  # s that the end waits for the worker
HOLD = 0.02  # s that a read waits for the neighbours of its page to be handed over
Pages = Sequence[tuple[int, memoryview]]


class Hub(Protocol):
    """Where the bytes come from that are not at hand."""

    async def read(self, inode: int, offset: int, size: int, *, again: bool) -> bytes | memoryview:
        """Return bytes of a page, `again` where the kernel had it. Raises Refused or another ChromafuseError."""
        ...


class Pusher:
    """A reader that has some pages at hand, and hands them to the kernel."""

    def __init__(self, snapshot: Snapshot, hub: Hub) -> None:
        self._snapshot = snapshot
        self._hub = hub
        self._held: dict[int, memoryview] = {}  # by inode
        self._came = 0  # bytes ever held; changed on the trio thread alone
        self._went = 0  # bytes held no longer; changed by the worker alone
        # By inode: the kernel knows a directory's names; the kernel had the page.
        self._listed, self._known = bytearray(len(snapshot) + 1), bytearray(len(snapshot) + 1)
        self._unlisted: dict[int, list[int]] = {}  # by directory: pages that wait for its listing
        # What to hand over next; an empty one: drop all that is held; None: the end.
        self._due: SimpleQueue[Sequence[int] | None] = SimpleQueue()
        self._queued: set[int] = set()  # what is in there
        self._reading: dict[int, int] = {}  # inode -> reads that wait
        self._current = 0  # the inode that is being handed over
        self._ended = False
        self._done = trio.Event()

    def take(self, pages: Pages) -> None:
        """Take pages that the hub sent. Raises ProtocolError for what is no whole page of this tree."""
        due = []
        for inode, page in pages:
            known = self._snapshot.has(inode) and not self._snapshot.is_directory(inode)
            if not known or len(page) != self._snapshot.size(inode):
                raise ProtocolError(f"a push of {len(page)} bytes for inode {inode}")
            if inode in self._held or self._came - self._went + len(page) > LIMIT:
                continue
            self._held[inode] = page
            self._came += len(page)
            directory = self._snapshot.parent(inode)
            if self._listed[directory]:
                due.append(inode)
            else:
                self._unlisted.setdefault(directory, []).append(inode)
        self._queue(due)

    def listed(self, directory: int) -> None:
        """Learn that the kernel knows the names in a directory."""
        self._listed[directory] = 1
        self._queue(self._unlisted.pop(directory, ()))

    async def read(self, inode: int, offset: int, size: int) -> bytes | memoryview:
        """Return bytes of a page, as the handlers ask for them. Raises what the hub's read raises."""
        self._reading[inode] = self._reading.get(inode, 0) + 1
        try:
            page = self._held.get(inode)
            if page is None:
                return await self._ask(inode, offset, size)
            self._known[inode] = 1
            if inode in self._queued and self._current != inode:
                # Whoever reads a page reads its neighbours next, and would ask for each of them.
                with trio.move_on_after(HOLD):
                    await self._done.wait()
            return page[offset : offset + size]
        finally:
            self._reading[inode] -= 1
            if not self._reading[inode]:
                del self._reading[inode]

    async def run(self) -> NoReturn:
        """Hand pages to the kernel as long as the mount lives."""
        token = trio.lowlevel.current_trio_token()
        worker = Thread(target=self._work, args=(token,), name="push", daemon=True)
        worker.start()
        try:
            while True:
                seen = self._came, self._went
                await trio.sleep(KEPT)
                if self._held and seen == (self._came, self._went):
                    self._due.put(())  # whoever was on the way to them has stopped
        finally:
            self._ended = True
            self._due.put(None)
            # The session must not be closed under it. A kernel that keeps it longer is left to the supervisor.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(worker.join, JOIN)

    async def _ask(self, inode: int, offset: int, size: int) -> bytes | memoryview:
        again = bool(self._known[inode]) and not offset
        data = await self._hub.read(inode, offset, size, again=again)
        self._known[inode] = 1
        return data

    def _queue(self, inodes: Sequence[int]) -> None:
        if inodes:
            self._queued.update(inodes)
            self._due.put(inodes)

    def _tell(self) -> None:
        self._done.set()
        self._done = trio.Event()

    # -- the worker thread

    def _work(self, token: trio.lowlevel.TrioToken) -> None:
        while (due := self._due.get()) is not None:
            for inode in due:
                if self._ended:
                    return
                self._queued.discard(inode)
                page = self._held.get(inode)
                if page is not None and self._hand_over(inode, page):
                    self._drop(inode)
            if not due:
                self._unlisted.clear()
                for inode in list(self._held):
                    self._drop(inode)
            if self._reading and self._due.empty():
                token.run_sync_soon(self._tell)

    def _drop(self, inode: int) -> None:
        self._went += len(self._held.pop(inode))

    def _hand_over(self, inode: int, page: memoryview) -> bool:
        """Hand a page over; say whether it need not be kept."""
        directory = self._snapshot.parent(inode)
        self._current = inode
        try:
            if inode in self._reading:
                return True
            if self._listed[directory]:
                pyfuse3.notify_store(InodeT(inode), 0, page)  # type: ignore[arg-type] # any buffer
                self._known[inode] = 1
                return True
        except FileNotFoundError:
            self._listed[directory] = 0  # forgotten
        except OSError as exc:
            log.debug("the kernel takes no page: %s", exc)
            return True
        finally:
            self._current = 0
        self._unlisted.setdefault(directory, []).append(inode)
        return False
