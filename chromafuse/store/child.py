"""A child process that does blocking work under a deadline, and is started anew when it dies or hangs.

Used by the embedded store and by the default embedding; what the child does is worker.py's business.

Concurrency: one driver task owns the child and gives it one request at a time, in the order of the calls.
A caller waits for its reply no longer than its deadline, the time in the queue included, and may be
cancelled: the driver goes on with the child's reply or its end, so a stray reply can never be taken for
another's. The child is killed when it has been at one request for a whole deadline.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import trio

from ..errors import (
    CollectionMissing,
    StoreDenied,
    StoreError,
    StoreMissing,
    StoreRejected,
    StoreTimeout,
    StoreUnavailable,
)
from .retry import pause_before
from .worker import LENGTH

log = logging.getLogger(__name__)

REPLY_MAX = 1 << 30  # bytes; a bound against a child gone mad, twenty million ids fit
ATTEMPTS = (
    3  # starts that one request is worth; a request that kills its child three times is to blame
)
_STDERR_LINE = 2_000  # characters of one line that go to the log
_EXIT_GRACE = 1.0  # s
_PACKAGE = Path(__file__).resolve().parents[1]
_KEPT_ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
)  # the last line is for fetching a model
_ERRORS: dict[str, type[StoreError]] = {
    "no store": StoreMissing,
    "no collection": CollectionMissing,
    "rejected": StoreRejected,
    "denied": StoreDenied,
    "unavailable": StoreUnavailable,
}


class ModelMissing(StoreError):
    """The model of the default embedding is not on this machine and could not be fetched."""


class _ChildDied(Exception):
    """The child ended, or sent what is no reply, while it had a request."""


@dataclass(slots=True, eq=False)
class _Job:
    request: Mapping[str, Any]
    deadline: float
    done: trio.Event = field(default_factory=trio.Event)
    reply: Any = None
    error: StoreError | None = None
    abandoned: bool = False


def _environment() -> dict[str, str]:
    """Return what the child needs of our environment: no CHROMA_* settings, no secrets."""
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return kept | {"PYTHONPATH": str(_PACKAGE.parent), "ANONYMIZED_TELEMETRY": "False"}


class _Child:
    """One running child: its process and our end of the socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            # Straight from this thread, not through trio's: PR_SET_PDEATHSIG is bound to the thread that
            # forks, and trio's worker threads end when idle. The directory holds nothing but our modules
            # (Chroma reads `.env` of the current one), and -P keeps it out of sys.path.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-X",
                    "faulthandler",
                    "-m",
                    "chromafuse.store.worker",
                    str(os.getpid()),
                ],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=Path(__file__).parent,
                env=_environment(),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        assert self._process.stderr is not None
        self._stderr = trio.lowlevel.FdStream(os.dup(self._process.stderr.fileno()))
        self._process.stderr.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def exchange(self, request: Mapping[str, Any]) -> Any:
        """Send one request and return its reply; a refusal is raised as the StoreError it names."""
        data = orjson.dumps(request)
        try:
            await self._stream.send_all(LENGTH.pack(len(data)) + data)
            (size,) = LENGTH.unpack(await self._receive(LENGTH.size))
            if size > REPLY_MAX:
                raise _ChildDied(f"a reply of {size} bytes")
            reply = orjson.loads(await self._receive(size))
        except (trio.BrokenResourceError, orjson.JSONDecodeError) as exc:
            raise _ChildDied(str(exc)) from exc
        if "ok" in reply:
            return reply["ok"]
        if reply["error"] == "no model":
            raise ModelMissing(reply["message"])
        raise _ERRORS.get(reply["error"], StoreError)(reply["message"])

    async def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = await self._stream.receive_some(min(size - len(data), 1 << 20))
            if not part:
                raise _ChildDied("it ended")
            data += part
        return bytes(data)

    async def log_stderr(self) -> None:
        """Copy what the child complains about to our log, line by line, until it ends."""
        pending = b""
        async with self._stderr:
            async for data in self._stderr:
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    _log_line(self.pid, line)
                pending = pending[:_STDERR_LINE]
        _log_line(self.pid, pending)

    async def end(self, *, kill: bool) -> str:
        """End the child, at once or when it has seen the end of the socket, and say how it ended."""
        with trio.CancelScope(shield=True):
            if kill:
                self._process.kill()
            await self._stream.aclose()
            if not await self._ended():
                self._process.kill()
                await self._ended()  # a child in an uninterruptible call is left to the kernel
        return _how(self._process.returncode)

    async def _ended(self) -> bool:
        with trio.move_on_after(_EXIT_GRACE):
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        return self._process.poll() is not None


def _log_line(pid: int, line: bytes) -> None:
    text = line[:_STDERR_LINE].decode(errors="replace").strip()
    if text:
        log.warning("store worker %d: %s", pid, text)


def _how(code: int | None) -> str:
    if code is None:
        return "does not end"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


class Worker:
    """The child behind a queue, with restarts. Made by `open_worker`."""

    def __init__(self, opening: Mapping[str, Any] | None, label: str, deadline: float) -> None:
        self._opening = opening
        self._label = label
        self._deadline = deadline
        self._child: _Child | None = None
        self._jobs, self._queue = trio.open_memory_channel[_Job](float("inf"))

    @property
    def pid(self) -> int | None:
        """The process id of the running child."""
        return self._child.pid if self._child else None

    async def call(self, request: Mapping[str, Any], deadline: float | None = None) -> Any:
        """Have the child do `request`; end within the deadline, whatever the child does."""
        job = _Job(request, self._deadline if deadline is None else deadline)
        self._jobs.send_nowait(job)
        try:
            with trio.move_on_after(job.deadline):
                await job.done.wait()
        finally:
            job.abandoned = True
        if not job.done.is_set():
            raise self._too_late(job)
        if job.error is not None:
            raise job.error
        return job.reply

    def _too_late(self, job: _Job) -> StoreTimeout:
        return StoreTimeout(f"{self._label}: no answer within {job.deadline:g} s")

    async def drive(self, nursery: trio.Nursery) -> None:
        """Give the queued requests to the child, one after the other, until cancelled."""
        try:
            async for job in self._queue:
                if not job.abandoned:
                    await self._serve(job, nursery)
        finally:
            await self._end(kill=False)

    async def _serve(self, job: _Job, nursery: trio.Nursery) -> None:
        """Get a reply for `job`, or an error, starting the child where there is none."""
        try:
            with trio.move_on_after(job.deadline) as scope:
                await self._attempt(job, nursery)
        except BaseException:
            await self._end(kill=True)  # the request may be half sent
            raise
        if scope.cancelled_caught:
            await self._end(kill=True)
            log.warning(
                "%s: the worker was killed, no answer within %g s", self._label, job.deadline
            )
            job.error = self._too_late(job)
        job.done.set()

    async def _attempt(self, job: _Job, nursery: trio.Nursery) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if self._child is None:
                    await self._start(nursery)
                assert self._child is not None
                job.reply = await self._child.exchange(job.request)
                job.error = None  # of an earlier attempt
                return
            except StoreError as exc:
                job.error = _labelled(exc, self._label)
                return
            except _ChildDied:
                how = await self._end(kill=True)
                log.warning("%s: the worker %s", self._label, how)
                job.error = StoreUnavailable(f"{self._label}: the worker process {how}")
            await trio.sleep(pause_before(attempt))
            if job.abandoned:
                return

    async def _start(self, nursery: trio.Nursery) -> None:
        self._child = child = _Child()
        nursery.start_soon(child.log_stderr)
        if self._opening is None:
            return
        try:
            await child.exchange(self._opening)
        except StoreError:
            await self._end(kill=True)
            raise
        self._opening = {
            **self._opening,
            "create": False,
        }  # a restart finds things or reports them gone

    async def _end(self, *, kill: bool) -> str:
        child, self._child = self._child, None
        return await child.end(kill=kill) if child else ""


def _labelled(exc: StoreError, label: str) -> StoreError:
    return exc if isinstance(exc, ModelMissing) else type(exc)(f"{label}: {exc}")


@asynccontextmanager
async def open_worker(
    opening: Mapping[str, Any] | None, label: str, deadline: float
) -> AsyncIterator[Worker]:
    """Run a worker whose child begins its life with the request `opening`."""
    worker = Worker(opening, label, deadline)
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.drive, nursery)
        try:
            yield worker
        except BaseException as exc:  # noqa: BLE001 - raised again, past the nursery that would wrap it
            raised = exc
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
