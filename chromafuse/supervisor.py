"""The parent of one mount: it starts hub and view, keeps the hub alive, and ends everything in order.

    hub dies                 started again, see keeper; the view lives and gets the new link
    view ends with 0         unmounted from outside: the hub is stopped, exit 0
    view dies otherwise      exit 1; the mount is left dead on purpose (ENOTCONN), and cleared at the next start;
                             where a thread of it waits in a notify call its connection is aborted first
    SIGTERM, SIGINT, SIGHUP  unmounted, exit 0; a second signal does not wait. SIGHUP is a terminal that closed:
                             who has none (a daemon, `nohup`) ignores it, and so do we
    view does not end        killed; after 1 s its FUSE connection is aborted and the mount detached

The mount is announced when hub and view say so and a child has read through it.

Concurrency: one trio thread. Tasks report to `run` by one queue, and `run` alone decides.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from . import mountinfo, runtime
from .children import Child
from .daemon import notify
from .errors import UsageError, UserError
from .job import Job
from .keeper import ANSWER, STOP, Failed, HubKeeper, HubReady
from .mountinfo import Mount
from .text import printable, quoted

log = logging.getLogger(__name__)

START = (
    90.0  # s from the start to a mount that answers; a large tree from a slow store takes its time
)
CHECK = 10.0  # s for the first read through the mount
KILLED = (
    1.0  # s from SIGKILL to the abort of the connection: a view in a notify call stays a zombie
)
LOOK = 2.0  # s between two looks for a view that is dead and cannot end
SHOWN = 20  # warnings of the hub that are logged one by one


# -- what tasks report


@dataclass(frozen=True, slots=True)
class _Mounted:
    mode: str


@dataclass(frozen=True, slots=True)
class _ViewEnded:
    code: int


@dataclass(frozen=True, slots=True)
class _Stop:
    signal: str


_Report = Failed | HubReady | _Mounted | _ViewEnded | _Stop


@dataclass(slots=True)
class _State:
    """What is known of the mount, for `status`."""

    since: float = field(default_factory=time.monotonic)
    state: str = "starting"
    mode: str = ""
    hub: dict[str, Any] = field(default_factory=dict)  # what it said when it was ready last


class Supervisor:
    """One mount's life. `announce` is called once, with the line that says the mount answers."""

    def __init__(
        self,
        job: Job,
        listener: socket.socket,
        announce: Callable[[str], None],
        *,
        capture: bool = False,
    ) -> None:
        self._job = job
        self._shown = printable(job.mountpoint)
        self._quoted = quoted(job.mountpoint)
        self._listener = listener
        self._announce = announce
        self._capture = capture  # children's stderr goes to our log
        self._reports, self._next = trio.open_memory_channel[_Report](math.inf)
        self._state = _State()
        self._keeper: HubKeeper | None = None
        self._view: Child | None = None
        self._view_started = trio.Event()
        self._mount: Mount | None = None
        self._hurry = trio.Event()
        self._stderr: int | None = None

    async def run(self) -> int:
        """Mount, serve, unmount. Raises UserError where that did not go as it should."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._take_signals)
            nursery.start_soon(self._serve_status)
            if self._capture:
                self._capture_stderr(nursery)
            try:
                await self._start(nursery)
                await self._until_end()
            finally:
                with trio.CancelScope(shield=True):
                    await self._end()
                nursery.cancel_scope.cancel()
        return 0

    # -- start

    async def _start(self, nursery: trio.Nursery) -> None:
        arguments = ["--mountpoint", self._job.mountpoint]
        arguments += ["--allow-other"] if self._job.allow_other else []
        self._keeper = HubKeeper(
            self._job, self._give_link, self._reports.send, stderr=self._stderr
        )
        nursery.start_soon(self._keeper.run)
        self._view = await Child.start("chromafuse.view", *arguments, stderr=self._stderr)
        self._view_started.set()
        nursery.start_soon(self._watch_view, self._view)
        nursery.start_soon(self._bury_view, self._view)
        try:
            with trio.fail_after(START):
                await self._until_mounted()
                await self._check()
        except trio.TooSlowError:
            raise UserError(
                f"{self._shown}: not mounted within {START:g} s; see whether the store is slow or locked"
            ) from None
        self._state.state = "live"
        facts = self._state.hub
        line = (
            f"{self._shown} is mounted: {facts['pages']:,} pages for {self._job.identity}, "
            f"generation {facts['generation']}"
        )
        notify(f"READY=1\nSTATUS={line}")
        self._announce(line)

    async def _until_mounted(self) -> None:
        while not (self._state.hub and self._state.mode):
            report = await self._next.receive()
            match report:
                case Failed(message, code):
                    raise (
                        UsageError(message) if code == UsageError.exit_code else UserError(message)
                    )
                case _ViewEnded():
                    assert self._view is not None
                    raise UserError(
                        f"{self._shown}: the view ended before it mounted ({self._view.ended}); see its log"
                    )
                case _Stop(name):
                    raise UserError(f"{self._shown}: stopped by {name} before the mount answered")
                case _:
                    self._note(report)

    async def _check(self) -> None:
        found = [mount for mount in mountinfo.layers(self._job.mountpoint) if mount.is_ours]
        self._mount = found[-1] if found else None
        wrong = await trio.to_thread.run_sync(
            partial(mountinfo.check, self._job.mountpoint, timeout=CHECK), abandon_on_cancel=True
        )
        if wrong:
            raise UserError(f"{self._shown}: the mount does not answer: {wrong}; see its log")

    def _note(self, report: _Report) -> None:
        match report:
            case HubReady(facts):
                first = not self._state.hub
                self._state.hub = {name: facts[name] for name in facts if name != "warnings"}
                if first:
                    self._log_warnings(facts.get("warnings", []))
            case _Mounted(mode):
                self._state.mode = mode
            case _:
                pass

    def _log_warnings(self, warnings: list[str]) -> None:
        for warning in warnings[:SHOWN]:
            log.warning("%s", printable(warning))
        if len(warnings) > SHOWN:
            log.warning("%d more warnings; `chromafuse verify` has them", len(warnings) - SHOWN)

    # -- serving

    async def _until_end(self) -> None:
        async for report in self._next:
            match report:
                case _Stop(name):
                    log.info("%s: unmounting %s", name, self._shown)
                    return
                case _ViewEnded(0):
                    log.info("%s was unmounted", self._shown)
                    return
                case _ViewEnded():
                    assert self._view is not None
                    self._mount = None  # it stays
                    raise UserError(
                        f"{self._shown}: the view died ({self._view.ended}); the mount is left dead on purpose, "
                        f"the next `chromafuse mount` clears it, or `chromafuse umount {self._quoted}`"
                    )
                case _:
                    self._note(report)

    async def _give_link(self, descriptor: int) -> None:
        await self._view_started.wait()
        assert self._view is not None
        await self._view.line.send({"hub": True}, [descriptor])

    async def _watch_view(self, view: Child) -> None:
        async for event in view.line.read():
            if event["event"] == "mounted":
                await self._reports.send(_Mounted(event["mode"]))
            elif event["event"] == "failed":
                await self._reports.send(Failed(event["message"], event["exit_code"]))
        await self._reports.send(_ViewEnded(await view.process.wait()))

    async def _bury_view(self, view: Child) -> None:
        """Abort the connection of a view that died in a call of the kernel which nobody will answer.

        That thread holds the connection open, so readers would wait for ever, and we for the view.
        """
        while True:
            await trio.sleep(LOOK)
            if self._mount is None or not view.lingers:
                continue
            with trio.move_on_after(KILLED):
                await view.process.wait()
                return
            aborted = await trio.to_thread.run_sync(mountinfo.abort, self._mount)
            log.warning(
                "%s: the view died in a call of the kernel; its connection %s",
                self._shown,
                "is aborted" if aborted else "cannot be aborted: `chromafuse umount` it as root",
            )
            return

    async def _take_signals(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        with trio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            first = True
            async for number in signals:
                if not first:
                    self._hurry.set()
                first = False
                await self._reports.send(_Stop(signal.Signals(number).name))

    # -- the end

    async def _end(self) -> None:
        self._state.state = "stopping"
        notify("STOPPING=1")
        hub = self._keeper.ending() if self._keeper is not None else None
        if self._view is not None:
            await self._end_view(self._view)
        if hub is not None:
            await self._within(hub, STOP)
            await hub.process.wait()

    async def _end_view(self, view: Child) -> None:
        if view.process.returncode is None and not await self._within(view, STOP):
            log.warning("%s: the view does not end and was killed", self._shown)
            with trio.move_on_after(KILLED):
                await view.process.wait()
        await trio.to_thread.run_sync(self._take_away)

    async def _within(self, child: Child, grace: float) -> bool:
        """End a child; at once where somebody is in a hurry."""
        async with trio.open_nursery() as nursery:

            async def hurry() -> None:
                await self._hurry.wait()
                child.process.kill()

            nursery.start_soon(hurry)
            ended = await child.end(grace)
            nursery.cancel_scope.cancel()
        return ended

    def _take_away(self) -> None:
        """Detach the mount where the view did not."""
        mount = self._mount
        if mount is None or not mountinfo.is_mounted(mount):
            return
        aborted = mountinfo.abort(mount)
        log.warning(
            "%s: detaching the mount%s", self._shown, ", its connection aborted" if aborted else ""
        )
        with contextlib.suppress(OSError):
            mountinfo.unmount(self._job.mountpoint, lazy=True)

    # -- status

    async def _serve_status(self) -> None:
        self._listener.setblocking(False)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listener))
        await trio.serve_listeners(self._answer, [listener])

    async def _answer(self, stream: trio.SocketStream) -> None:
        with trio.move_on_after(2 * ANSWER), contextlib.suppress(trio.BrokenResourceError):
            async with stream:
                if runtime.peer(stream.socket)[1] not in (os.geteuid(), 0):
                    return
                if await stream.receive_some(1024):
                    await stream.send_all(json.dumps(await self._status()).encode() + b"\n")

    async def _status(self) -> dict[str, Any]:
        hub: dict[str, Any] = {}
        counters: dict[str, Any] | None = None
        keeper, view = self._keeper, self._view

        async def ask_hub() -> None:
            if keeper is not None:
                hub.update(await keeper.status())

        async def ask_view() -> None:
            nonlocal counters
            if view is not None and view.process.returncode is None:
                counters = await view.line.ask("counters", "counters", ANSWER)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_hub)
            nursery.start_soon(ask_view)
        return {
            "mountpoint": self._job.mountpoint,
            "state": self._state.state,
            "mode": self._state.mode,
            "identity": str(self._job.identity),
            "store": str(self._job.location),
            "collection": self._job.location.collection,
            **self._state.hub,
            **hub,
            "view": _word(view, answered=counters is not None),
            "view_pid": view.pid if view else None,
            "supervisor_pid": os.getpid(),
            "uptime": round(time.monotonic() - self._state.since, 1),
            "counters": counters or {},
        }

    # -- the children's stderr

    def _capture_stderr(self, nursery: trio.Nursery) -> None:
        reading, self._stderr = os.pipe()
        nursery.start_soon(_forward, reading)


def _word(view: Child | None, *, answered: bool) -> str:
    if view is None or view.process.returncode is not None:
        return "down"
    return "ok" if answered else "does not answer"


async def _forward(reading: int) -> None:
    """Log what children write, line by line."""
    rest = b""
    async with trio.lowlevel.FdStream(reading) as stream:
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                log.warning("%s", printable(line.decode(errors="replace")))
