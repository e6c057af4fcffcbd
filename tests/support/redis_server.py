"""A real redis-server for tests: own directory, own process, ended by its process id.

It listens at a Unix socket, and at a port where one is asked for; it can be killed and started again at the
same place, stopped and continued. What it holds is lost when it ends. Nothing but the tests knows of it.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from tests.support.chroma_server import free_port
from tests.support.session import session_root
from tests.support.waiting import wait_for


class RedisProcess:
    """One server, running or not. `options` are words of its command line."""

    def __init__(self, directory: Path, *options: str, password: str | None = None) -> None:
        self.directory = directory
        self.path = directory / "redis.sock"
        self.url = f"unix://{self.path}"
        self._options = options
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    def client(self) -> redis.Redis:
        """Return a client of the test's own, which may do everything."""
        return redis.Redis(unix_socket_path=str(self.path), password=self._password)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with open(self.directory / "redis.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *("redis-server", "--port", "0", "--unixsocket", str(self.path)),
                    *("--dir", str(self.directory), "--save", "", "--appendonly", "no"),
                    *(("--requirepass", self._password) if self._password else ()),
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for(self._answers, timeout=30, what="redis-server answers")

    def _answers(self) -> bool:
        with suppress(redis.RedisError), self.client() as client:
            return bool(client.ping())
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the server at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def calls(self, command: str) -> int:
        """Return how many calls of a command it has answered since it began, or was last asked to forget."""
        with self.client() as client:
            stats = client.info("commandstats")
        assert isinstance(stats, dict)
        return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])

    def pages(self) -> list[str]:
        """Return the keys of pages that it holds, in order."""
        with self.client() as client:
            return sorted(key.decode() for key in client.scan_iter("chromafuse:*"))


@contextmanager
def redis_process(*options: str, password: str | None = None) -> Iterator[RedisProcess]:
    """Start a server and end it, whatever state it is in."""
    # A Unix socket's path has to be short, so not below a test's own directory.
    directory = Path(tempfile.mkdtemp(prefix="redis-", dir=session_root()))
    server = RedisProcess(directory, *options, password=password)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(name="redis")
def redis_fixture() -> Iterator[RedisProcess]:
    """Give a server of the test's own, at a Unix socket."""
    with redis_process() as server:
        yield server


class Certificate:
    """A self-made certificate for localhost and 127.0.0.1, which is its own authority."""

    def __init__(self, directory: Path) -> None:
        self.file, self.key = directory / "cert.pem", directory / "key.pem"
        subprocess.run(
            [
                *(
                    "openssl",
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:P-256",
                ),
                *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-out", str(self.file)),
                *("-keyout", str(self.key), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            ],
            check=True,
            capture_output=True,
            timeout=30,
        )


@contextmanager
def tls_process(certificate: Certificate) -> Iterator[tuple[RedisProcess, int]]:
    """Start a server with a TLS port besides its socket; yield it and the port."""
    port = free_port()
    with redis_process(
        *("--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(certificate.file), "--tls-key-file", str(certificate.key)),
        *("--tls-ca-cert-file", str(certificate.file)),
    ) as server:
        yield server, port
