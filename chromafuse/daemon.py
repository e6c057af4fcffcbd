"""Becoming a daemon, and telling the world that the mount answers.

`detach` forks. The process that was called waits for one outcome, so `mount --daemon` returns 0 only when the
mount answers; the daemon has no terminal, no directory and none of the caller's descriptors.

Concurrency: to be called while the process has one thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import UserError

SYSLOG = "/dev/log"
_FORMAT = "%(levelname)s: %(message)s"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the daemon: the exit code, and the line to show."""

    code: int
    line: str


@dataclass(slots=True)
class Parent:
    """The waiting process, as the daemon sees it."""

    _pipe: int | None

    def release(self, outcome: Outcome) -> bool:
        """Let it go with this outcome; say whether it was still waiting."""
        if self._pipe is None:
            return False
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, json.dumps([outcome.code, outcome.line]).encode())
        os.close(self._pipe)
        self._pipe = None
        return True


@dataclass(frozen=True, slots=True)
class Log:
    """Where a daemon and its children say things: a file, or the system's log (None)."""

    file: Path | None

    @classmethod
    def choose(cls, named: str | None, fallback: Path) -> Log:
        """Choose the named file, else syslog, else `fallback`. Raises UserError for a file we cannot write."""
        if named is None and os.path.exists(SYSLOG):
            return cls(None)
        path = Path(os.path.abspath(named)) if named is not None else fallback
        try:
            os.close(_open_log(path))
        except OSError as exc:
            raise UserError(f"cannot write the log file {path}: {exc.strerror}") from exc
        return cls(path)


def detach(log: Log) -> Outcome | Parent:
    """Fork. Returns the outcome in the process that was called, and that process in the daemon."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.close(writing)
        return _await(reading, child)
    os.close(reading)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it has no terminal that could close
    os.chdir("/")
    _redirect(log)
    return Parent(writing)


def _await(reading: int, child: int) -> Outcome:
    with open(reading, "rb") as pipe:
        try:
            said = pipe.read()
        except KeyboardInterrupt:  # a Ctrl-C does not reach another session
            os.kill(child, signal.SIGTERM)
            pipe.read()
            raise
    if not said:
        return Outcome(1, "the daemon ended without a word; see its log")
    code, line = json.loads(said)
    return Outcome(code, line)


def _open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _redirect(log: Log) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    out = null if log.file is None else _open_log(log.file)
    for descriptor, target in ((0, null), (1, out), (2, out)):
        os.dup2(target, descriptor)
    for opened in {null, out} - {0, 1, 2}:
        os.close(opened)


def start_logging(log: Log | None) -> None:
    """Send this process's log to where `log` says; None is a foreground process, whose log is its stderr."""
    if log is not None and log.file is None:
        handler: logging.Handler = logging.handlers.SysLogHandler(
            SYSLOG, facility=logging.handlers.SysLogHandler.LOG_DAEMON
        )
        handler.setFormatter(logging.Formatter(f"chromafuse[{os.getpid()}]: {_FORMAT}"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        stamp = "" if log is None else "%(asctime)s "
        handler.setFormatter(logging.Formatter(f"{stamp}chromafuse: {_FORMAT}"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def notify(state: str, env: Mapping[str, str] = os.environ) -> None:
    """Tell the service manager, where there is one: see sd_notify(3)."""
    address = env.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(state.encode(), address)
        except OSError as exc:
            logging.getLogger(__name__).warning("the service manager cannot be told: %s", exc)
