"""A store to mount, and foreground mounts of it: processes of their own, ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chromafuse import mountinfo
from tests.support.ingesting import write_tree
from tests.support.program import PROGRAM, chromafuse, environment, ok
from tests.support.session import session_root
from tests.support.waiting import wait_for

PAGES = {
    "open.md": b"for everyone\n",
    "deep/er/page.md": b"---\ngroups: [billing]\n---\nfor billing\n",
    "deep/login.md": b"---\npublic: false\n---\nfor readers with a login\n",
    "name with blanks ü.md": b"",
}


@pytest.fixture(scope="session", name="store")
def small_store() -> Path:
    """Give an embedded store with a few pages, for all tests of the run that do not change it."""
    home = Path(tempfile.mkdtemp(prefix="store-", dir=session_root()))
    ok(
        chromafuse(
            home,
            *("ingest", write_tree(home / "source", PAGES), home / "store"),
            *("--default-access", "public"),
        )
    )
    return home / "store"


class Running:
    """A foreground `chromafuse mount`."""

    def __init__(self, home: Path, point: Path, process: subprocess.Popen[str]) -> None:
        self.home, self.point, self.process = home, point, process

    def status(self) -> dict[str, Any]:
        """Return what `status` says, and demand that it succeeds."""
        found: dict[str, Any] = json.loads(
            ok(chromafuse(self.home, "status", self.point, "--json"))
        )
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return exit code and stderr."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self, timeout: float = 30) -> tuple[int, str]:
        """Wait for its end; return exit code and stderr."""
        _, said = self.process.communicate(timeout=timeout)
        return self.process.returncode, said


def layers_at(point: Path) -> list[str]:
    """Return the types of what is mounted exactly at a place."""
    return [mount.fstype for mount in mountinfo.layers(str(point)) if str(point) != "/"]


def is_live(point: Path) -> bool:
    """Say whether a mount of ours answers there."""
    return layers_at(point)[-1:] == [mountinfo.FSTYPE] and (
        mountinfo.probe(str(point)) is mountinfo.Health.LIVE
    )


@contextmanager
def foreground(
    home: Path,
    store: Path | str,
    point: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    ready: bool = True,
    prefix: Sequence[str] = (),
) -> Iterator[Running]:
    """Start a foreground mount, wait until it is announced, and end it and what it left at the end."""
    point.mkdir(exist_ok=True)
    process = subprocess.Popen(
        # A terminal's, whatever runs the tests: who ignores SIGHUP passes that on.
        [
            "env",
            "--default-signal=HUP",
            *prefix,
            *PROGRAM,
            "mount",
            str(store),
            str(point),
            *options,
        ],
        env={**environment(home), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    running = Running(home, point, process)
    try:
        if ready:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "is mounted" in line, line + process.stderr.read()
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        wait_for(lambda: not is_live(point), what="a mount ends with its supervisor")
        if layers_at(point):
            ok(chromafuse(home, "umount", point))


def alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
