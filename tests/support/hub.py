"""The hub's socket spoken by hand, a tree to serve, and the hub as a process.

`Client` is a blocking view: it says HELLO and asks for whatever a test wants, also what no view would.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chromafuse import wire
from chromafuse.model.access import Access, Identity
from chromafuse.model.records import TreeEntry, cut, page_version
from chromafuse.model.snapshot import Snapshot
from chromafuse.store.location import StoreLocation
from chromafuse.store.publish import PlannedPage

CHECKOUT = Path(__file__).resolve().parents[2]


def planned(site: Mapping[str, tuple[Access, bytes]], mtime_ns: int = 5) -> list[PlannedPage]:
    """Return what ingest would plan for a site of (access, bytes) by path."""
    return [
        PlannedPage(
            TreeEntry(
                path,
                access,
                page_version(path, data),
                len(cut(data).documents),
                len(data),
                mtime_ns,
            ),
            lambda data=data: data,  # type: ignore[misc]
        )
        for path, (access, data) in site.items()
    ]


class Client:
    """The view's end of a link, blocking."""

    def __init__(self, end: socket.socket, timeout: float = 20.0) -> None:
        self.socket = end
        end.settimeout(timeout)
        self._decoder = wire.Decoder()
        self._frames: list[wire.Frame] = []
        self._last = 0
        self.store_states: list[bool] = []
        self.pushed: list[tuple[int, bytes]] = []

    def frame(self) -> wire.Frame | None:
        """Return the next frame, None at the end of the link."""
        while not self._frames:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def greet(
        self, generation: int = 0, digest: bytes = wire.NO_DIGEST
    ) -> tuple[wire.Greeting, Snapshot | None]:
        """Say HELLO; return the greeting, and the snapshot where one came."""
        self.socket.sendall(wire.hello(generation, digest))
        first = self.frame()
        assert first is not None
        assert first.type is wire.Type.GREETING
        greeting = wire.parse_greeting(first.payload)
        encoded = b""
        while len(encoded) < greeting.length:
            part = self.frame()
            assert part is not None
            assert part.type is wire.Type.SNAPSHOT
            encoded += part.payload
        return greeting, wire.decode_snapshot(encoded) if encoded else None

    def ask(self, generation: int, inode: int, offset: int = 0, size: int = wire.MAX_FRAME) -> int:
        """Send a READ; return its request id."""
        self._last += 1
        self.socket.sendall(wire.read(self._last, wire.Read(generation, inode, offset, size)))
        return self._last

    def answer(self) -> tuple[int, bytes | int]:
        """Return the next whole answer: the request id, and the bytes or the errno."""
        parts: dict[int, bytes] = {}
        while (frame := self.frame()) is not None:
            if frame.type is wire.Type.STORE:
                self.store_states.append(wire.parse_store_state(frame.payload))
            elif frame.type is wire.Type.PUSH:
                pushed = wire.parse_push(frame.payload)
                self.pushed += [(inode, bytes(page)) for inode, page in pushed]
            elif frame.type is wire.Type.ERROR:
                return frame.request, wire.parse_error(frame.payload)
            else:
                assert frame.type in (wire.Type.DATA, wire.Type.END)
                data = parts[frame.request] = parts.get(frame.request, b"") + frame.payload
                if frame.type is wire.Type.END:
                    return frame.request, data
        raise AssertionError("the link ended before the answer")

    def read(
        self, generation: int, inode: int, offset: int = 0, size: int = 1 << 20
    ) -> bytes | int:
        """Ask, and return the bytes or the errno."""
        request = self.ask(generation, inode, offset, size)
        answered, outcome = self.answer()
        assert answered == request
        return outcome

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


class HubProcess:
    """`python -m chromafuse.hub`, with both ends of its sockets in our hands."""

    def __init__(
        self,
        location: StoreLocation,
        identity: Identity,
        cache_dir: Path | None,
        log: Path,
        **options: Any,
    ) -> None:
        ours, control = socket.socketpair()
        view, link = socket.socketpair()
        self.log = log
        self.client = Client(view)
        self._control = ours
        ours.settimeout(30)
        self._lines = ours.makefile("rb")
        with open(log, "ab") as stderr, control, link:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chromafuse.hub", "--control-fd", str(control.fileno())],
                pass_fds=[control.fileno(), link.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
                start_new_session=True,
            )
            self.send(
                location=location.to_json(),
                identity={"kind": identity.kind.value, "groups": sorted(identity.groups)},
                link_fd=link.fileno(),
                cache_dir=str(cache_dir) if cache_dir else None,
                memory=1 << 20,
                rows_per_call=None,
                **options,
            )

    def send(self, **message: Any) -> None:
        """Send a control line."""
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def event(self) -> dict[str, Any] | None:
        """Return the next event, None at the end of the control socket."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def hang_up(self) -> None:
        """Close the control socket, as a supervisor that dies does."""
        self._lines.close()
        self._control.close()

    def children(self) -> list[int]:
        """Return the pids of the hub's own children."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def worker(self) -> int:
        """Return the pid of the hub's store worker, 0 where it has none yet."""
        for pid in self.children():
            with suppress(FileNotFoundError):
                if b"chromafuse.store.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return 0

    def close(self) -> None:
        """End the hub, whatever state it is in."""
        self.client.close()
        self.hang_up()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextmanager
def hub_process(
    location: StoreLocation,
    tmp_path: Path,
    identity: Identity | None = None,
    **options: Any,
) -> Iterator[HubProcess]:
    """Start a hub and end it; its cache and its log lie below `tmp_path`."""
    cache = options.pop("cache_dir", tmp_path / "cache")
    hub = HubProcess(location, identity or Identity(), cache, tmp_path / "hub.log", **options)
    try:
        yield hub
    finally:
        hub.close()
