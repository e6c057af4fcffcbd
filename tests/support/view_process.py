"""A real view process on a real mountpoint, supervised by the test."""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.fake_hub import FakeHub
from tests.support.modes import MODE
from tests.support.session import mounts_below

CHECKOUT = Path(__file__).resolve().parents[2]


class ViewProcess:
    """`python -m chromafuse.view`, its control socket, and its stderr in a file."""

    def __init__(self, mountpoint: Path, *options: str, program: tuple[str, ...] = ()) -> None:
        self.mountpoint = mountpoint
        self.log = mountpoint.with_name(mountpoint.name + ".log")
        self._control, theirs = socket.socketpair()
        self._lines = b""
        command = program or (sys.executable, "-m", "chromafuse.view")
        arguments = ["--control-fd", str(theirs.fileno()), "--mountpoint", str(mountpoint)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments, *options],
                cwd=CHECKOUT,
                pass_fds=[theirs.fileno()],
                stderr=log,
                start_new_session=True,
            )
        theirs.close()

    def give(self, hub_end: socket.socket) -> None:
        """Hand the view a link to a hub."""
        rights = array.array("i", [hub_end.fileno()])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        self._control.sendmsg([b'{"hub": true}\n'], ancillary)
        hub_end.close()

    def event(self, timeout: float = 20) -> dict[str, Any]:
        """Return the next line of the view."""
        while b"\n" not in self._lines:
            ready, _, _ = select.select([self._control], [], [], timeout)
            data = self._control.recv(65536) if ready else b""
            assert data, f"no line from the view; its log:\n{self.said()}"
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def counters(self) -> dict[str, int]:
        """Return the view's counters that are not zero."""
        self._control.sendall(b'{"ask": "counters"}\n')
        counters = self.event()
        assert counters.pop("event") == "counters"
        return {name: count for name, count in counters.items() if count}

    def said(self) -> str:
        """Return what the view wrote to stderr."""
        return self.log.read_text(encoding="utf-8")

    def close_control(self) -> None:
        """Go away as a supervisor that was killed."""
        self._control.close()

    def wait(self, timeout: float = 20) -> int:
        """Return the exit code."""
        return self.process.wait(timeout)

    def terminate(self) -> int:
        """Ask for the end as a supervisor does, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def clean(self) -> None:
        """Leave no process and no mount, whatever happened."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._control.close()
        while mounts_below(self.mountpoint):
            subprocess.run(["umount", "-l", self.mountpoint], check=True)


@contextmanager
def mounted(hub: FakeHub, mountpoint: Path, *options: str) -> Iterator[ViewProcess]:
    """Mount what a fake hub serves; end with a clean unmount where the view still lives."""
    mountpoint.mkdir(exist_ok=True)
    view = ViewProcess(mountpoint, *options)
    try:
        view.give(hub.connect())
        assert view.event() == {"event": "mounted", "mode": MODE}, view.said()
        yield view
    finally:
        view.clean()
        hub.die()
