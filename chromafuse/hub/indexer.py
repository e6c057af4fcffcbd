"""The process that builds an index: `python -m chromafuse.hub.indexer`, started by indexing.py.

A process of its own, the least urgent one of the machine: folding a page and finding its trigrams takes 150 ms
a megabyte, most of it with Python's lock held, and readers would wait for it in the hub.

Frames on descriptor 0, a socket, both ways: 4 bytes of length, then

    -> JSON {"directory", "key"}           where to build
    -> page versions, 16 bytes each        what is to be in the index
    <- JSON {"missing": bytes}             the length of the next frame: it means that the lock is ours
    <- page versions                       what is not in it yet
    -> pages: version, 4 bytes of length, bytes; over and over, as many as there are
    <- JSON {"pages": number of them}      they are in
    -> a frame of no bytes                 that was all
    <- JSON {"sealed": name of the file}
    <- JSON {"failed": why}                instead of any answer, and the last one

One process builds one index; another that wants to waits for its lock. At the end of the socket, which is also
the end of a hub that was killed, it seals what it has and ends.

Concurrency: one thread. It imports the standard library and two modules of ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .index import Writer

LENGTH = struct.Struct(">I")
PAGE = struct.Struct(">16sI")
VERSION = 16  # bytes
_LOOK = 0.2  # s between two looks at the lock
_NICENESS = 19
_PATIENCE = 10.0  # s that a hub may take to open a file


class _HubGone(Exception):
    """The socket ended."""


class Pipe:
    """Frames to and from the hub."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def receive(self) -> bytes:
        """Return the next frame. Raises _HubGone."""
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return self._exactly(size)

    def send(self, data: bytes) -> None:
        """Send one frame. Raises _HubGone."""
        try:
            self._socket.sendall(LENGTH.pack(len(data)) + data)
        except OSError as exc:
            raise _HubGone from exc

    def tell(self, **facts: Any) -> None:
        """Send one frame of JSON."""
        self.send(json.dumps(facts).encode())

    def ended(self, patience: float) -> bool:
        """Wait for as long as that; say whether the hub, which has nothing to say now, is gone."""
        return bool(select.select([self._socket], [], [], patience)[0])

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            try:
                count = self._socket.recv_into(view[filled:])
            except OSError as exc:
                raise _HubGone from exc
            if not count:
                raise _HubGone
            filled += count
        return bytes(data)


def build(pipe: Pipe, directory: Path, key: str, live: list[bytes]) -> None:
    """Build what `live` needs, with the lock held. Raises OSError, sqlite3.Error, _HubGone."""
    writer = Writer(directory, key, live)
    try:
        missing = writer.missing(live)
        pipe.tell(missing=len(missing) * VERSION)
        pipe.send(b"".join(missing))
        try:
            while frame := pipe.receive():
                pages = list(unpacked(frame))
                writer.add(pages)
                if writer.due:
                    writer.seal()
                pipe.tell(pages=len(pages))
        except _HubGone:
            if writer.worth_it:
                writer.seal()
            raise
        pipe.tell(sealed=writer.seal().name)
        pipe.ended(_PATIENCE)  # the hub opens it while nobody else can replace it
    finally:
        writer.drop()


def packed(pages: list[tuple[bytes, bytes]]) -> bytes:
    """Return a frame of pages: version and bytes."""
    parts = ((PAGE.pack(version, len(page)), page) for version, page in pages)
    return b"".join(part for pair in parts for part in pair)


def unpacked(frame: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield what `packed` was given."""
    at = 0
    while at < len(frame):
        version, size = PAGE.unpack_from(frame, at)
        at += PAGE.size + size
        yield version, frame[at - size : at]


def _locked(pipe: Pipe, path: Path) -> int:
    """Wait for the lock and return its descriptor. The kernel takes it back from whoever dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pipe.ended(_LOOK):
                raise _HubGone from None
        else:
            return descriptor


def main() -> None:
    """Build one index for the hub at the other end."""
    os.nice(_NICENESS)
    pipe = Pipe(socket.socket(fileno=os.dup(0)))
    with contextlib.suppress(_HubGone):
        where = json.loads(pipe.receive())
        versions = pipe.receive()
        live = [versions[at : at + VERSION] for at in range(0, len(versions), VERSION)]
        _serve(pipe, Path(where["directory"]), where["key"], live)


def _serve(pipe: Pipe, directory: Path, key: str, live: list[bytes]) -> None:
    try:
        _locked(pipe, directory / f"{key}.lock")
        build(pipe, directory, key, live)
    except (OSError, sqlite3.Error) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        pipe.tell(failed=f"{directory}: {why}")


if __name__ == "__main__":
    main()
