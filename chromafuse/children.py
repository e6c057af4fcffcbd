"""The two children of a supervisor, hub and view: starting them, and talking to them in lines of JSON.

Each gets an environment of its own, made of named variables: the view has no secret in it. Each lives in a
session of its own, so that a terminal's Ctrl-C reaches the supervisor alone, and ends when its control socket
does: nothing outlives a supervisor, however that one ended.

Concurrency: one task reads a child's lines (`Line.read`); any number may ask.
"""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

_PACKAGES = Path(__file__).resolve().parents[1]
_LINE_MAX = 16 << 20  # bytes; a hub's warnings travel in one line
_COMMON = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_VIEW = ("CHROMAFUSE_FAST",)
_HUB = (
    *("CHROMAFUSE_STORE_TOKEN", "CHROMA_API_KEY", "CHROMAFUSE_REDIS_PASSWORD"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
# For glibc: one heap for all threads, and what is freed of 1 MiB or more goes back to the system at once. What
# loading a tree leaves stayed otherwise: 24 MB of it in a hub of 100,000 pages.
_HUB_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def environment(module: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a child: what it needs, and for the view nothing secret."""
    names = {*_COMMON, *(name for name in env if name.startswith("LC_"))}
    names |= set(_HUB if module == "chromafuse.hub" else _VIEW)
    kept = {name: env[name] for name in sorted(names) if name in env}
    return (
        kept | {"PYTHONPATH": str(_PACKAGES)} | (_HUB_MEMORY if module == "chromafuse.hub" else {})
    )


class Line:
    """A control socket, in lines."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = trio.socket.from_stdlib_socket(end)
        self._questions: dict[str, _Question] = {}
        self._sending = trio.Lock()
        self._closed = False

    async def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one line, with descriptors. A child that is gone is not told: its end is seen elsewhere."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            async with self._sending:
                if descriptors:
                    data = data[await self._socket.sendmsg([data], fds) :]
                while data:
                    data = data[await self._socket.send(data) :]
        except (OSError, trio.ClosedResourceError) as exc:
            if not (self._closed or isinstance(exc, BrokenPipeError | ConnectionResetError)):
                raise

    async def read(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events that answer no question, until the child closes."""
        buffer = b""
        while data := await self._receive():
            *lines, buffer = (buffer + data).split(b"\n")
            if len(buffer) > _LINE_MAX:
                raise RuntimeError("a child's line does not end")
            for line in lines:
                event: dict[str, Any] = json.loads(line)
                question = self._questions.pop(event["event"], None)
                if question is None:
                    yield event
                else:
                    question.answer(event)

    async def ask(self, about: str, answer: str, patience: float) -> dict[str, Any] | None:
        """Ask, and return the event named `answer` without its name; None where none comes in time.

        While a question is unanswered it is not sent again: a stopped child must not fill its socket.
        """
        question = self._questions.get(answer)
        with trio.move_on_after(patience):
            if question is None:
                question = self._questions[answer] = _Question()
                await self.send({"ask": about})
            await question.answered.wait()
            return {name: value for name, value in question.event.items() if name != "event"}
        return None

    def close(self) -> None:
        """Close it, which is the child's end."""
        self._closed = True
        self._socket.close()

    async def _receive(self) -> bytes:
        try:
            return await self._socket.recv(65536)
        except (OSError, trio.ClosedResourceError) as exc:
            # Closed while a byte was on its way to us: trio then finds a bad descriptor.
            if self._closed or isinstance(exc, ConnectionResetError):
                return b""
            raise


class _Question:
    def __init__(self) -> None:
        self.answered = trio.Event()
        self.event: dict[str, Any] = {}

    def answer(self, event: dict[str, Any]) -> None:
        self.event = event
        self.answered.set()


class Child:
    """A running child and the control socket to it."""

    def __init__(self, process: trio.Process, line: Line) -> None:
        self.process = process
        self.line = line

    @classmethod
    async def start(
        cls,
        module: str,
        *arguments: str,
        descriptors: Sequence[int] = (),
        stderr: int | None = None,
    ) -> Child:
        """Start `python -m module --control-fd N arguments…`; its stderr is ours unless given."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await trio.lowlevel.open_process(
                [
                    *(sys.executable, "-P", "-m", module),
                    *("--control-fd", str(theirs.fileno()), *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd="/",
                env=environment(module),
                pass_fds=(theirs.fileno(), *descriptors),
                start_new_session=True,
            )
        return cls(process, Line(ours))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def ended(self) -> str:
        """How it ended, for a person."""
        code = self.process.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"exit {code}"

    @property
    def lingers(self) -> bool:
        """Whether it was killed, or crashed, and a thread of it waits in the kernel: then nobody is told."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        state = stat.rpartition(b")")[2].split()[0]
        return self.process.returncode is None and state == b"Z"

    async def end(self, grace: float) -> bool:
        """Tell it to end, wait, and kill it when its time is up; say whether it ended by itself."""
        with trio.move_on_after(grace):
            self.process.terminate()
            await self.process.wait()
            self.line.close()
            return True
        self.process.kill()
        self.line.close()
        return False


@contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give a link's two ends; both are closed here at the end, whoever has got copies."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other
