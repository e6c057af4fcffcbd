"""A Chroma server of the run's own, on a free port of the loopback interface.

Concurrency: one thread.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .workplace import child

_PATIENCE = 60.0  # s until it must answer


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """The STORE of this server."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serve(home: Path) -> Iterator[Server]:
    """Run a server over a directory below `home`."""
    home.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    command = [
        os.path.join(os.path.dirname(sys.executable), "chroma"),
        *("run", f"--path={home / 'data'}", "--host=127.0.0.1", f"--port={port}"),
    ]
    with (
        open(home / "server.log", "wb") as log,
        child(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=home
        ) as process,
    ):
        server = Server(port, process.pid)
        _await_answer(server, process, home / "server.log")
        yield server


def _await_answer(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/api/v2/heartbeat", timeout=2):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"chroma run does not answer: {log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
