"""A scripted hub over the real frames: fixed pages, and on demand delay, errno, silence and death.

One thread a link. `connect` makes a socket pair and returns the view's end, as a supervisor would.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from chromafuse import wire
from chromafuse.model.access import Access
from chromafuse.model.entry import TreeEntry
from chromafuse.model.names import sort_key
from chromafuse.model.snapshot import View, build

MTIME = 1_700_000_000_123_456_789  # ns
VERSION = bytes(16)


def make_view(pages: Mapping[str, bytes], generation: int = 7) -> View:
    """Build the snapshot of pages that everybody may see."""
    entries = [
        TreeEntry(path, Access(public=True), VERSION, 1, len(data), MTIME + len(path))
        for path, data in sorted(pages.items(), key=lambda item: sort_key(item[0]))
    ]
    return build(generation, entries)


@dataclass
class FakeHub:
    """Serves `pages`. Change `errors`, `delay`, `silent` and `store_up` at any time."""

    pages: Mapping[str, bytes]
    generation: int = 7
    errors: dict[str, int] = field(default_factory=dict)  # path as shown -> errno
    delay: float = 0.0  # s before every answer
    silent: bool = False  # takes requests and never answers
    store_up: bool = True
    reads: list[wire.Read] = field(default_factory=list)
    hellos: list[wire.Hello] = field(default_factory=list)
    answer: bytes = b""  # to every question
    questions: list[wire.Query] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.view = make_view(self.pages, self.generation)
        self.encoded = wire.encode_snapshot(self.view.snapshot)
        self.digest = wire.snapshot_digest(self.encoded, VERSION * len(self.pages))
        self._links: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def connect(self) -> socket.socket:
        """Open a link; return the view's end."""
        ours, theirs = socket.socketpair()
        self._links.append(ours)
        thread = threading.Thread(target=self._serve, args=(ours,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return theirs

    def die(self) -> None:
        """Drop every link, as a killed hub does."""
        for link in self._links:
            link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive()
        for link in self._links:
            link.close()
        self._links.clear()
        self._threads.clear()

    def tell_store_state(self, up: bool) -> None:
        """Tell every view whether the store answers."""
        self.store_up = up
        for link in self._links:
            link.sendall(wire.store_state(up))

    def say(self, data: bytes) -> None:
        """Send bytes that need not be frames to every view."""
        for link in self._links:
            link.sendall(data)

    def _serve(self, link: socket.socket) -> None:
        decoder = wire.Decoder()
        try:
            while data := link.recv(1 << 16):
                for frame in decoder.feed(data):
                    self._handle(link, frame)
        except OSError:
            return

    def _handle(self, link: socket.socket, frame: wire.Frame) -> None:
        if frame.type is wire.Type.HELLO:
            self._greet(link, wire.parse_hello(frame.payload))
            return
        if frame.type is wire.Type.QUERY:
            self.questions.append(wire.parse_query(frame.payload))
            if not self.silent:
                link.sendall(b"".join(wire.answer(frame.request, self.answer)))
            return
        read = wire.parse_read(frame.payload)
        self.reads.append(read)
        if not self.silent:
            time.sleep(self.delay)
            link.sendall(b"".join(self._answer(frame.request, read)))

    def _greet(self, link: socket.socket, hello: wire.Hello) -> None:
        self.hellos.append(hello)
        held = (hello.generation, hello.digest) == (self.generation, self.digest)
        encoded = b"" if held else self.encoded
        frames = [wire.greeting(self.generation, self.digest, len(encoded))]
        frames += [*wire.snapshot_frames(encoded), wire.store_state(self.store_up)]
        link.sendall(b"".join(frames))

    def _answer(self, request: int, read: wire.Read) -> list[bytes]:
        if read.generation != self.generation:
            return [wire.error(request, 116)]  # ESTALE
        entry = self.view.entry(read.inode)
        assert entry is not None
        if entry.path in self.errors:
            return [wire.error(request, self.errors[entry.path])]
        data = self.pages[entry.path][read.offset : read.offset + read.size]
        return list(wire.answer(request, data))
