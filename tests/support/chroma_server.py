"""A real `chroma run` for tests: own directory, own process group, ended by its process id.

It can be killed and started again on the same port, and stopped and continued, to stand for a server that
goes away and for one that hangs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import session_root
from tests.support.waiting import wait_for


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ChromaServer:
    """One server over one directory, running or not."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The STORE of this server."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it answers; another port where ours was taken meanwhile."""
        for _ in range(3):
            self._launch()
            if wait_for(
                lambda: self._alive() or self._exited(), timeout=30, what="chroma run answers"
            ):
                if self._alive():
                    return
                self.port = free_port()
        raise AssertionError((self.directory / "server.log").read_text(errors="replace"))

    def _launch(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    Path(sys.executable).with_name("chroma"),
                    "run",
                    f"--path={self.directory / 'data'}",
                    "--host=127.0.0.1",
                    f"--port={self.port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith("CHROMA_")
                },
                start_new_session=True,
            )

    def _alive(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v2/heartbeat", timeout=2) as answer:
                return not self._exited() and bool(answer.status == 200)
        except OSError:
            return False

    def _exited(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's process group."""
        assert self._process is not None, "the server is not running"
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End the server at once; its directory and port stay."""
        if self._process is None:
            return
        self.signal(signal.SIGKILL)
        self._process.wait(timeout=10)
        self._process = None


@pytest.fixture(scope="session")
def chroma_server() -> Iterator[ChromaServer]:
    """Give a server that the whole run shares; a test takes a collection name of its own."""
    server = ChromaServer(Path(tempfile.mkdtemp(prefix="chroma-", dir=session_root())))
    try:
        server.start()
        yield server
    finally:
        server.kill()
