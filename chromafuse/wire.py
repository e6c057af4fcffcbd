"""The frames between hub and view: pure encoding and decoding, no sockets, no trio.

A frame is a header (payload length, type, request id; little-endian) and a payload, at most 1 MiB together.

    view -> hub   HELLO  protocol version, generation and digest of the snapshot it holds (zeros: none)
                  READ   (request id) generation, inode, offset, size; 1 where the kernel had the page before
                  QUERY  (request id) generation, inode of a directory, a question about what is below it
    hub -> view   GREETING  protocol version, generation, digest and length of the snapshot; length 0 where
                            the view holds this very snapshot already, else SNAPSHOT frames follow
                  SNAPSHOT  the next bytes of the encoded snapshot
                  DATA   (request id) the next bytes of the answer; more follows
                  END    (request id) the last bytes of the answer
                  ERROR  (request id) errno
                  STORE  1 = the store answers, 0 = it does not (for the status file)
                  PUSH   whole pages that nobody asked for: their number, the inode and length of each,
                         then their bytes; sent only to a view that holds the snapshot that is served

Page bytes are copied once to make a frame, and once where a frame arrives in pieces; payloads are views.
The identity is never in a frame: the hub binds it to the socket. Replies come in any order. What does not
fit these rules raises ProtocolError, and the side that sees it closes the socket.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from .errors import ProtocolError
from .model.names import NAME_MAX
from .model.snapshot import DIRECTORY, Snapshot

VERSION = 2
MAX_FRAME = 1 << 20  # bytes, header included
MAX_SNAPSHOT = 1 << 30  # bytes
HEADER = struct.Struct("<IBxxxI")
MAX_PAYLOAD = MAX_FRAME - HEADER.size
NO_DIGEST = bytes(32)

_HELLO = struct.Struct("<IQ32s")
_GREETING = struct.Struct("<IQ32sQ")
_READ = struct.Struct("<QQQI?")
_QUERY = struct.Struct("<QQ")
_ERROR = struct.Struct("<I")
_COUNT = struct.Struct("<I")
_PUSHED = struct.Struct("<QI")  # inode, bytes
PUSH_MAX = MAX_PAYLOAD - _COUNT.size - _PUSHED.size  # bytes of a page that can be pushed
# Bytes of pages in one frame, unless a single one is larger; fits a socket's buffer.
PUSH_FRAME = 128 << 10
_COLUMNS = struct.Struct("<QQQ")  # generation, nodes, bytes of names


class Type(IntEnum):
    """What a frame is."""

    HELLO = 1
    READ = 2
    QUERY = 3
    GREETING = 16
    SNAPSHOT = 17
    DATA = 18
    END = 19
    ERROR = 20
    STORE = 21
    PUSH = 22


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `request` is 0 where the type has no request id."""

    type: Type
    request: int
    payload: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Hello:
    version: int
    generation: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Greeting:
    version: int
    generation: int
    digest: bytes  # of everything the view may see: names, sizes, times and page versions
    length: int  # bytes of encoded snapshot that follow


@dataclass(frozen=True, slots=True)
class Read:
    generation: int
    inode: int
    offset: int
    size: int
    again: bool = False  # the kernel had the page, and gave it up


@dataclass(frozen=True, slots=True)
class Query:
    generation: int
    directory: int  # inode
    question: bytes


def frame(kind: Type, request: int = 0, payload: bytes | memoryview = b"") -> bytes:
    """Return one encoded frame. Raises ProtocolError where the payload is over MAX_PAYLOAD."""
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(f"a payload of {len(payload)} bytes does not fit a frame")
    return b"".join((HEADER.pack(len(payload), kind, request), payload))


def hello(generation: int = 0, digest: bytes = NO_DIGEST) -> bytes:
    """Return the view's first frame."""
    return frame(Type.HELLO, 0, _HELLO.pack(VERSION, generation, digest))


def greeting(generation: int, digest: bytes, length: int) -> bytes:
    """Return the hub's first frame."""
    return frame(Type.GREETING, 0, _GREETING.pack(VERSION, generation, digest, length))


def read(request: int, what: Read) -> bytes:
    """Return a READ frame."""
    payload = _READ.pack(what.generation, what.inode, what.offset, what.size, what.again)
    return frame(Type.READ, request, payload)


def query(request: int, what: Query) -> bytes:
    """Return a QUERY frame."""
    payload = _QUERY.pack(what.generation, what.directory) + what.question
    return frame(Type.QUERY, request, payload)


def error(request: int, code: int) -> bytes:
    """Return an ERROR frame with errno `code`."""
    return frame(Type.ERROR, request, _ERROR.pack(code))


def store_state(up: bool) -> bytes:
    """Return a STORE frame."""
    return frame(Type.STORE, 0, b"\1" if up else b"\0")


def answer(request: int, data: bytes | memoryview) -> Iterator[bytes]:
    """Yield the DATA and END frames that carry `data`. Copies `data` when they are drawn, not before."""
    view = memoryview(data)
    while len(view) > MAX_PAYLOAD:
        yield frame(Type.DATA, request, view[:MAX_PAYLOAD])
        view = view[MAX_PAYLOAD:]
    yield frame(Type.END, request, view)


def push(pages: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield the PUSH frames that carry `pages`: (inode, bytes), none empty nor over PUSH_MAX."""
    batch: list[tuple[int, bytes]] = []
    size = 0
    for inode, page in pages:
        if batch and size + len(page) > PUSH_FRAME:
            yield _push_frame(batch)
            batch, size = [], 0
        batch.append((inode, page))
        size += len(page) + _PUSHED.size
    if batch:
        yield _push_frame(batch)


def _push_frame(batch: list[tuple[int, bytes]]) -> bytes:
    table = [_PUSHED.pack(inode, len(page)) for inode, page in batch]
    pages = [page for _, page in batch]
    length = _COUNT.size + len(table) * _PUSHED.size + sum(map(len, pages))
    if length > MAX_PAYLOAD:
        raise ProtocolError(f"a payload of {length} bytes does not fit a frame")
    head = HEADER.pack(length, Type.PUSH, 0)
    return b"".join((head, _COUNT.pack(len(batch)), *table, *pages))


def parse_push(payload: bytes | memoryview) -> list[tuple[int, memoryview]]:
    """Read a PUSH payload: (inode, bytes) of each page."""
    view = memoryview(payload)
    if len(view) < _COUNT.size:
        raise ProtocolError("a push without its number of pages")
    (count,) = _COUNT.unpack_from(view)
    at = _COUNT.size + count * _PUSHED.size
    if len(view) < at:
        raise ProtocolError("a push without its table")
    pages = []
    for inode, length in _PUSHED.iter_unpack(view[_COUNT.size : at]):
        pages.append((inode, view[at : at + length]))
        at += length
    if at != len(view):
        raise ProtocolError("a push whose length does not fit its table")
    return pages


def snapshot_frames(encoded: bytes) -> Iterator[bytes]:
    """Yield the SNAPSHOT frames that carry `encoded`."""
    view = memoryview(encoded)
    for at in range(0, len(view), MAX_PAYLOAD):
        yield frame(Type.SNAPSHOT, 0, view[at : at + MAX_PAYLOAD])


def parse_hello(payload: bytes | memoryview) -> Hello:
    """Read a HELLO payload."""
    return Hello(*_unpack(_HELLO, payload))


def parse_greeting(payload: bytes | memoryview) -> Greeting:
    """Read a GREETING payload."""
    found = Greeting(*_unpack(_GREETING, payload))
    if found.length > MAX_SNAPSHOT:
        raise ProtocolError(f"a snapshot of {found.length} bytes is announced")
    return found


def parse_read(payload: bytes | memoryview) -> Read:
    """Read a READ payload."""
    return Read(*_unpack(_READ, payload))


def parse_query(payload: bytes | memoryview) -> Query:
    """Read a QUERY payload."""
    generation, directory = _unpack(_QUERY, payload[: _QUERY.size])
    return Query(generation, directory, bytes(payload[_QUERY.size :]))


def parse_error(payload: bytes | memoryview) -> int:
    """Read the errno of an ERROR payload."""
    (code,) = _unpack(_ERROR, payload)
    if not 0 < code < 4096:  # MAX_ERRNO of Linux
        raise ProtocolError(f"{code} is no errno")
    return int(code)


def parse_store_state(payload: bytes | memoryview) -> bool:
    """Read a STORE payload."""
    if payload not in (b"\0", b"\1"):
        raise ProtocolError("a store state is neither up nor down")
    return payload == b"\1"


def _unpack(layout: struct.Struct, payload: bytes | memoryview) -> tuple[Any, ...]:
    if len(payload) != layout.size:
        raise ProtocolError(f"a payload of {len(payload)} bytes where {layout.size} belong")
    return layout.unpack(payload)


class Decoder:
    """Turns a byte stream into frames. Feed it what arrives; it keeps at most one unfinished frame."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._have = 0  # bytes in the parts
        self._need = HEADER.size  # bytes before there is anything to read

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes. Raises ProtocolError; the stream is then useless.

        Payloads are views of what was fed, joined only where a frame came in pieces.
        """
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return []
        view = memoryview(data if len(self._parts) == 1 else b"".join(self._parts))
        frames, at, self._need = [], 0, HEADER.size
        while len(view) - at >= HEADER.size:
            length, kind, request = HEADER.unpack_from(view, at)
            if length > MAX_PAYLOAD:
                raise ProtocolError(f"a frame of {length} bytes")
            start = at + HEADER.size
            if len(view) < start + length:
                self._need = HEADER.size + length
                break
            frames.append(Frame(_type(kind), request, view[start : start + length]))
            at = start + length
        self._parts = [view[at:]] if at < len(view) else []
        self._have = len(view) - at
        return frames

    @property
    def unfinished(self) -> bool:
        """Say whether the stream stopped in the middle of a frame."""
        return self._have > 0


def _type(kind: int) -> Type:
    try:
        return Type(kind)
    except ValueError:
        raise ProtocolError(f"a frame of unknown type {kind}") from None


# -- snapshots -----------------------------------------------------------------------------------------


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot: its columns, little-endian, end to end."""
    head = _COLUMNS.pack(snapshot.generation, len(snapshot), len(snapshot.blob))
    columns = (snapshot.parents, snapshot.ends, snapshot.name_ends, snapshot.sizes, snapshot.mtimes)
    return b"".join((head, *map(_column_bytes, columns), snapshot.blob))


def decode_snapshot(data: bytes) -> Snapshot:
    """Read a snapshot and check that it is a tree. Raises ProtocolError."""
    if len(data) < _COLUMNS.size:
        raise ProtocolError("a snapshot without its head")
    generation, nodes, names = _COLUMNS.unpack_from(data)
    if nodes < 1 or len(data) != _COLUMNS.size + nodes * 28 + names:
        raise ProtocolError("a snapshot whose length does not fit its head")
    columns, at = [], _COLUMNS.size
    for code in "IIIQq":
        column = array(code)
        end = at + nodes * column.itemsize
        column.frombytes(memoryview(data)[at:end])
        if sys.byteorder == "big":
            column.byteswap()
        columns.append(column)
        at = end
    parents, ends, name_ends, sizes, mtimes = columns
    snapshot = Snapshot(generation, parents, ends, sizes, mtimes, name_ends, data[at:])
    _check_tree(snapshot)
    _check_names(snapshot)
    return snapshot


def _check_tree(snapshot: Snapshot) -> None:
    """Check what the view relies on, so that a wrong snapshot is refused whole and never loops."""
    nodes = len(snapshot)
    previous = 0
    stack: list[int] = []
    for node in range(nodes):
        while stack and snapshot.ends[stack[-1]] <= node:
            stack.pop()
        parent = stack[-1] if stack else 0
        limit = snapshot.ends[parent] if node else nodes
        end, name_end = snapshot.ends[node], snapshot.name_ends[node]
        is_directory = snapshot.sizes[node] == DIRECTORY
        sound = (
            snapshot.parents[node] == parent
            and (node < end <= limit if is_directory else end == node + 1)
            and previous <= name_end <= len(snapshot.blob)
            and (node == 0) == (previous == name_end)
        )
        if not sound or (node == 0 and (not is_directory or end != nodes)):
            raise ProtocolError(f"node {node} of a snapshot does not fit the tree")
        if is_directory:
            stack.append(node)
        previous = name_end
    if previous != len(snapshot.blob):
        raise ProtocolError("a snapshot with names left over")


def _check_names(snapshot: Snapshot) -> None:
    """Check that each name is one that the kernel takes, and comes behind its neighbour in byte order."""
    if b"/" in snapshot.blob or b"\0" in snapshot.blob:
        raise ProtocolError("a name with a slash or a NUL in a snapshot")
    latest: dict[int, bytes] = {}  # by directory
    for node in range(1, len(snapshot)):
        name, parent = snapshot.name(node + 1), snapshot.parents[node]
        if name <= latest.get(parent, b"") or name in (b".", b"..") or len(name) > NAME_MAX:
            raise ProtocolError(f"the name of node {node} of a snapshot does not fit")
        latest[parent] = name


def snapshot_digest(encoded: bytes, versions: bytes) -> bytes:
    """Return the digest of what a view may see: its encoded snapshot and its page versions, in order."""
    digest = hashlib.sha256(struct.pack("<Q", len(encoded)))
    # The generation, in the first eight bytes, also counts changes of pages that this view may not see.
    digest.update(encoded[8:])
    digest.update(versions)
    return digest.digest()


def _column_bytes(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    swapped = column[:]
    swapped.byteswap()
    return swapped.tobytes()
