"""The life of one view: get the tree, mount, serve, unmount.

    SIGTERM, SIGINT, SIGHUP, supervisor gone   unmount; exit 0. A mount in use is given a moment, then taken
                                               away lazily; a second signal skips the moment.
    umount from outside                        exit 0
    a bug, or an aborted connection            exit 1 and the mount stays, dead (ENOTCONN): an empty
                                               directory would look as if there were no pages

Concurrency: one trio thread. The tasks: control lines, signals, one link at a time, and pyfuse3's own.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import pyfuse3
import trio

from ..errors import ChromafuseError, UserError
from ..model.names import CONTROL
from ..mounttable import Mount
from . import mounting
from .attributes import Owner
from .control import README_NAME, README_TEXT, ControlFiles, Facts
from .fast import FAST, STOCK, SWITCHED_OFF, Fast, self_test
from .link import DEADLINE, Held, Link
from .ops import Operations
from .push import Pusher
from .supervision import HubLink, Supervision

log = logging.getLogger(__name__)

SELF_TEST = 10.0  # s for a mount to answer its own first read
GRACE = 1.0  # s that a mount in use is served on after it was told to end
# Requests in flight. Where stuck reads take up all tasks, lookups wait too: at 256, 400 readers of a silent
# hub stopped `ls` until the deadline. An idle task ends; one that waits holds about 10 KiB.
MAX_TASKS = 2048
NOTIFIED = 3.0  # s that the end waits for threads which call the kernel
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_OPTIONS = ("--control-fd", "--mountpoint", "--allow-other", "--deadline", "--grace")


@dataclass(frozen=True, slots=True)
class Options:
    """What the supervisor starts a view with."""

    control_fd: int
    mountpoint: str
    allow_other: bool
    deadline: float
    grace: float


class ConnectionAborted(Exception):
    """The kernel ended the session of a mount that is still there."""


class _Notifying:
    """The tasks that call the kernel (notify_store, invalidate_inode) from threads.

    The kernel may have such a call wait for a read that is still on its way to us. So they end while reads are
    answered: a process that ends with a thread in such a call keeps the connection, and its readers, for ever.
    """

    def __init__(self, *tasks: Callable[[], Awaitable[NoReturn]]) -> None:
        self._tasks = tasks
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self) -> None:
        """Run them until they are stopped."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for task in self._tasks:
                        nursery.start_soon(task)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Stop them, and wait for their threads."""
        self._scope.cancel()
        await self._ended.wait()


class Process:
    """One view."""

    def __init__(self, options: Options, fast: Fast) -> None:
        self.exit_code = 0
        self._options = options
        self._fast = fast
        self._point = os.path.realpath(options.mountpoint)
        self._supervision = Supervision(options.control_fd)
        self._link = Link(deadline_under_kernel(options.deadline))
        self._ops: Operations | None = None
        self._pusher: Pusher | None = None
        self._control: ControlFiles | None = None
        self._again = False  # mount once more, in stock mode
        self._end = trio.Event()
        self._hurry = trio.Event()

    async def run(self) -> None:
        """Live from the first line of the supervisor to the end of the mount."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._take_signals)
            nursery.start_soon(self._take_messages, nursery)
            held = await self._first_tree()
            while held is not None and (mounted := await self._mount(held)) is not None:
                if not await self._serve(mounted):
                    break
            nursery.cancel_scope.cancel()

    async def _first_tree(self) -> Held | None:
        """Wait for the hub's tree, or for the order to end."""
        held: Held | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_at_end, nursery.cancel_scope)
            try:
                held = await self._link.held()
            except ChromafuseError as exc:
                await self._fail(f"the hub's answer cannot be used: {exc}")
            nursery.cancel_scope.cancel()
        return held

    async def _mount(self, held: Held) -> Mount | None:
        snapshot, owner = held.snapshot, Owner(os.getuid(), os.getgid())
        facts = Facts(held.digest, sum(1 for _ in snapshot.pages()), STOCK)
        mtime_ns = snapshot.mtime_ns(pyfuse3.ROOT_INODE)
        self._control = ControlFiles(
            facts, lambda: self._link.backend_up, owner, mtime_ns, self._link.query
        )
        self._pusher = Pusher(snapshot, self._link)
        self._link.hand_pushed_to(self._pusher.take)
        self._ops = Operations(snapshot, self._control, self._pusher, owner)
        gc.collect()
        gc.freeze()  # what is there now stays to the end
        try:
            return mounting.mount(self._ops, self._point, allow_other=self._options.allow_other)
        except UserError as exc:
            await self._fail(str(exc))
            return None

    async def _serve(self, mounted: Mount) -> bool:
        """Serve a mount to its end; say whether to mount again, in stock mode."""
        assert self._ops is not None
        assert self._pusher is not None
        self._again = False
        notifying = _Notifying(self._ops.drop_written, self._pusher.run)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._announce, self._ops, mounted)
                nursery.start_soon(notifying.run)
                nursery.start_soon(self._unmount_at_end, mounted, notifying)
                await pyfuse3.main(max_tasks=MAX_TASKS)
                nursery.cancel_scope.cancel()
        except BaseException:
            pyfuse3.close(unmount=False)
            raise
        there = mounting.is_there(mounted)
        asked = self._end.is_set()
        # Only what is ours: after an unmount from outside somebody else's may be at the same place.
        pyfuse3.close(unmount=there and (asked or self._again))
        if there and not (asked or self._again):
            raise ConnectionAborted(
                f"{mounted.path}: the kernel ended the session; the mount is dead"
            )
        return there and self._again and not asked

    async def _announce(self, ops: Operations, mounted: Mount) -> None:
        """Test the mount as a reader; tell the supervisor of it, or mount again the stock way."""
        assert self._control is not None
        await ops.started.wait()
        mode = self._fast.mode
        self._control.facts = replace(self._control.facts, mode=mode)
        wrong = f"no answer within {SELF_TEST:g} s"
        directory, files = os.path.join(mounted.path, CONTROL), {README_NAME: README_TEXT}
        with trio.move_on_after(SELF_TEST):
            wrong = await trio.to_thread.run_sync(
                self_test, directory, files, abandon_on_cancel=True
            )
        if not wrong:
            if mode == STOCK and self._fast.why_stock() != SWITCHED_OFF:
                log.warning("stock mode, slower: %s", self._fast.why_stock())
            await self._supervision.tell("mounted", mode=mode)
        elif mode == FAST:
            self._fast = self._fast.give_up(f"the self-test failed: {wrong}")
            self._again = True
            pyfuse3.terminate()
        else:
            await self._fail(f"{mounted.path}: the mount does not answer: {wrong}")
            self._end.set()

    async def _unmount_at_end(self, mounted: Mount, notifying: _Notifying) -> None:
        await self._end.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_at_hurry, nursery.cancel_scope)
            await mounting.unmount_within(mounted, self._options.grace)
            nursery.cancel_scope.cancel()
        self._link.stop()
        with trio.move_on_after(NOTIFIED):
            await notifying.stop()
        pyfuse3.terminate()

    async def _take_messages(self, nursery: trio.Nursery) -> None:
        try:
            async for message in self._supervision.messages():
                if isinstance(message, HubLink):
                    nursery.start_soon(self._link.serve, message.stream)
                elif message.about == "counters":
                    await self._tell_counters()
                else:
                    log.error("the supervisor asks for %r, which is unknown here", message.about)
        except ChromafuseError:
            log.exception("the supervisor's lines cannot be read; unmounting")
        self._end.set()

    async def _tell_counters(self) -> None:
        counters = self._ops.counters if self._ops is not None else None
        requests = dict(counters.requests) if counters else {}
        await self._supervision.tell("counters", **requests, bugs=counters.bugs if counters else 0)

    async def _take_signals(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # What trio puts back when it is done: a late signal must not kill a view that is unmounting.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for _ in signals:
                if self._end.is_set():
                    self._hurry.set()
                self._end.set()

    async def _cancel_at_end(self, scope: trio.CancelScope) -> None:
        await self._end.wait()
        scope.cancel()

    async def _cancel_at_hurry(self, scope: trio.CancelScope) -> None:
        await self._hurry.wait()
        scope.cancel()

    async def _fail(self, message: str) -> None:
        self.exit_code = UserError.exit_code
        await self._supervision.tell("failed", message=message, exit_code=self.exit_code)


def deadline_under_kernel(wanted: float, settings: str = "/proc/sys/fs/fuse") -> float:
    """Return a read's deadline, lowered where the kernel aborts mounts whose requests are older."""
    limits = []
    for name in ("default_request_timeout", "max_request_timeout"):  # since Linux 6.15
        try:
            with open(os.path.join(settings, name), encoding="ascii") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):
            continue
    return min([wanted, *(limit / 2 for limit in limits if limit > 0)])


def main(arguments: Sequence[str] | None = None, *, fast: Fast) -> int:
    """Run a view; return its exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(format="view: %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    process = Process(options, fast)
    trio.run(process.run)
    return process.exit_code


def _parse(words: Sequence[str]) -> Options:
    """Read what the supervisor wrote. No argparse: it takes 0.4 MB for five options."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word not in _OPTIONS:
            raise SystemExit(f"python -m chromafuse.view takes {', '.join(_OPTIONS)}, not {word!r}")
        found[word] = "" if word == "--allow-other" else next(rest)
    return Options(
        int(found["--control-fd"]),
        found["--mountpoint"],
        "--allow-other" in found,
        float(found.get("--deadline", DEADLINE)),
        float(found.get("--grace", GRACE)),
    )
