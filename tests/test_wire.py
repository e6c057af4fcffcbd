"""The frames between hub and view: what is sent arrives, in any pieces; what is no frame is refused."""

from __future__ import annotations

import contextlib
import itertools
import struct
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse import wire
from chromafuse.errors import ProtocolError
from chromafuse.model.access import PUBLIC
from chromafuse.model.entry import TreeEntry
from chromafuse.model.names import sort_key
from chromafuse.model.snapshot import DIRECTORY, Snapshot, build
from chromafuse.wire import Frame, Type

u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
frames = st.builds(
    Frame, type=st.sampled_from(list(Type)), request=u32, payload=st.binary(max_size=50)
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut `data` at some places."""
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


# -- frames --------------------------------------------------------------------------------------------


@given(sent=st.lists(frames, max_size=6), cuts=st.lists(st.integers(0, 10**6), max_size=12))
def test_frames_arrive_however_the_stream_is_cut(sent: list[Frame], cuts: list[int]) -> None:
    """Any sequence of frames, in any pieces, is decoded to itself, with nothing left over."""
    data = b"".join(wire.frame(frame.type, frame.request, frame.payload) for frame in sent)
    decoder = wire.Decoder()
    assert [frame for piece in pieces(data, cuts) for frame in decoder.feed(piece)] == sent
    assert not decoder.unfinished


@given(frame=frames, end=st.integers(1, 10**6))
def test_a_stream_that_stops_inside_a_frame_is_unfinished(frame: Frame, end: int) -> None:
    """A frame without its last bytes is not handed out, and the decoder says that something is missing."""
    data = wire.frame(frame.type, frame.request, frame.payload)
    decoder = wire.Decoder()
    assert decoder.feed(data[: 1 + end % (len(data) - 1)]) == []
    assert decoder.unfinished


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_are_frames_or_refused(data: bytes, cuts: list[int]) -> None:
    """Bytes of a stranger give frames or ProtocolError; what is kept is bounded by one frame."""
    decoder = wire.Decoder()
    try:
        for piece in pieces(data, cuts):
            for frame in decoder.feed(piece):
                assert len(frame.payload) <= wire.MAX_PAYLOAD
    except ProtocolError:
        pass


def test_an_oversized_frame_is_refused_by_its_header() -> None:
    """A length over the bound is refused before any payload is taken; the bound itself is a frame."""
    longest = wire.frame(Type.DATA, 1, bytes(wire.MAX_PAYLOAD))
    assert len(longest) == wire.MAX_FRAME
    assert wire.Decoder().feed(longest) == [Frame(Type.DATA, 1, bytes(wire.MAX_PAYLOAD))]
    for length in (wire.MAX_PAYLOAD + 1, (1 << 32) - 1):
        with pytest.raises(ProtocolError, match=f"a frame of {length} bytes"):
            wire.Decoder().feed(struct.pack("<IBxxxI", length, Type.DATA, 1))
    with pytest.raises(ProtocolError, match="does not fit a frame"):
        wire.frame(Type.DATA, 1, bytes(wire.MAX_PAYLOAD + 1))


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(Type)))
def test_an_unknown_type_is_refused(kind: int) -> None:
    """A frame of a type that the protocol does not have is refused by its number."""
    with pytest.raises(ProtocolError, match=f"a frame of unknown type {kind}"):
        wire.Decoder().feed(struct.pack("<IBxxxI", 0, kind, 1))


def only(data: bytes) -> Frame:
    """Return the one frame in `data`."""
    (frame,) = wire.Decoder().feed(data)
    return frame


@given(numbers=st.tuples(u64, u64, u64, u32), request=u32)
def test_reads_arrive(numbers: tuple[int, int, int, int], request: int) -> None:
    """A READ is read back with its request id."""
    sent = wire.Read(*numbers)
    frame = only(wire.read(request, sent))
    assert (frame.type, frame.request) == (Type.READ, request)
    assert wire.parse_read(frame.payload) == sent


@given(generation=u64, digest=st.binary(min_size=32, max_size=32), length=st.integers(0, 1 << 30))
def test_greetings_arrive(generation: int, digest: bytes, length: int) -> None:
    """HELLO and GREETING are read back, with our version."""
    hello = wire.parse_hello(only(wire.hello(generation, digest)).payload)
    assert hello == wire.Hello(wire.VERSION, generation, digest)
    greeting = wire.parse_greeting(only(wire.greeting(generation, digest, length)).payload)
    assert greeting == wire.Greeting(wire.VERSION, generation, digest, length)


@pytest.mark.parametrize("size", [0, 1, wire.MAX_PAYLOAD, wire.MAX_PAYLOAD + 1, 3 << 20])
def test_an_answer_of_any_size_arrives(size: int) -> None:
    """Answers and snapshots are cut into frames and are the same bytes put together."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    found = [only(frame) for frame in wire.answer(9, data)]
    assert [frame.type for frame in found] == [Type.DATA] * (len(found) - 1) + [Type.END]
    assert {frame.request for frame in found} == {9}
    assert all(frame.payload for frame in found) or size == 0
    assert b"".join(frame.payload for frame in found) == data
    parts = [only(frame) for frame in wire.snapshot_frames(data)]
    assert b"".join(frame.payload for frame in parts) == data


PARSERS: dict[str, tuple[Callable[[bytes], object], int]] = {
    "hello": (wire.parse_hello, 44),
    "greeting": (wire.parse_greeting, 52),
    "read": (wire.parse_read, 29),
    "error": (wire.parse_error, 4),
    "store": (wire.parse_store_state, 1),
}


@pytest.mark.parametrize(("parse", "size"), PARSERS.values(), ids=PARSERS.keys())
def test_a_payload_of_another_size_is_refused(parse: Callable[[bytes], object], size: int) -> None:
    """Every payload has one size; one byte more or less is refused."""
    for wrong in (b"", bytes(size - 1), bytes(size + 1), bytes(1_000)):
        if len(wrong) != size:
            with pytest.raises(ProtocolError):
                parse(wrong)


@pytest.mark.parametrize("code", [0, 4096, (1 << 32) - 1])
def test_what_is_no_errno_is_refused(code: int) -> None:
    """An errno that the kernel would not take for one is refused."""
    with pytest.raises(ProtocolError, match=f"{code} is no errno"):
        wire.parse_error(struct.pack("<I", code))
    assert wire.parse_error(only(wire.error(3, 116)).payload) == 116


def test_a_store_state_is_up_or_down() -> None:
    """Both states arrive; a third is refused."""
    states = [wire.parse_store_state(only(wire.store_state(up)).payload) for up in (True, False)]
    assert states == [True, False]
    with pytest.raises(ProtocolError):
        wire.parse_store_state(b"\2")


def test_a_snapshot_that_would_fill_the_memory_is_refused() -> None:
    """A length over the bound is refused when it is announced."""
    data = wire.greeting(1, bytes(32), wire.MAX_SNAPSHOT + 1)
    with pytest.raises(ProtocolError, match="is announced"):
        wire.parse_greeting(only(data).payload)


# -- snapshots -----------------------------------------------------------------------------------------

paths = st.lists(st.sampled_from(["a", "b", "b~page", "é", "c d"]), min_size=1, max_size=4)
sites = st.dictionaries(paths.map("/".join), st.integers(0, 99), max_size=12)


def snapshot_of(sites: dict[str, int], generation: int = 7) -> Snapshot:
    """Build the snapshot of pages with these sizes."""
    entries = [
        TreeEntry(path, PUBLIC, bytes(16), 1, size, size - 50)
        for path, size in sorted(sites.items(), key=lambda item: sort_key(item[0]))
    ]
    return build(generation, entries).snapshot


@given(site=sites, generation=st.integers(1, (1 << 63) - 1))
def test_a_snapshot_arrives(site: dict[str, int], generation: int) -> None:
    """Any snapshot is decoded to itself."""
    sent = snapshot_of(site, generation)
    assert wire.decode_snapshot(wire.encode_snapshot(sent)) == sent


@given(site=sites, damage=st.data())
def test_a_damaged_snapshot_is_refused_or_is_a_tree(
    site: dict[str, int], damage: st.DataObject
) -> None:
    """With any bytes changed, cut or added, decoding refuses the whole or gives a tree that can be walked."""
    data = bytearray(wire.encode_snapshot(snapshot_of(site)))
    for _ in range(damage.draw(st.integers(1, 3))):
        data[damage.draw(st.integers(0, len(data) - 1))] = damage.draw(st.integers(0, 255))
    try:
        found = wire.decode_snapshot(bytes(data))
    except ProtocolError:
        return
    seen = {1}
    queue = [1]
    while queue:
        inode = queue.pop()
        for child in found.children(inode):
            assert child.inode not in seen
            assert found.parent(child.inode) == inode
            assert child.name
            seen.add(child.inode)
            if found.is_directory(child.inode):
                queue.append(child.inode)
    assert seen == set(range(1, len(found) + 1))


@given(site=sites, cut=st.integers(1, 10**6))
def test_a_snapshot_of_another_length_is_refused(site: dict[str, int], cut: int) -> None:
    """Bytes missing at the end, or left over, are refused."""
    data = wire.encode_snapshot(snapshot_of(site))
    for wrong in (data[: -1 - cut % len(data)], data + b"\0", b"", data[:23]):
        with pytest.raises(ProtocolError):
            wire.decode_snapshot(wrong)


@given(data=st.binary(max_size=300))
def test_random_bytes_are_no_snapshot(data: bytes) -> None:
    """Bytes of a stranger never end in anything but a snapshot or ProtocolError."""
    with contextlib.suppress(ProtocolError):
        wire.decode_snapshot(data)


BASE = snapshot_of({"a/b": 1, "a/c": 2, "d": 3})  # nodes: root, a, a/b, a/c, d


def column(code: str, *values: int) -> array[int]:
    """Return one column."""
    return array(code, values)


HOSTILE = {
    "a root that is a page": replace(BASE, sizes=column("Q", 1, DIRECTORY, 1, 2, 3)),
    "a page with children": replace(BASE, sizes=column("Q", DIRECTORY, 9, 1, 2, 3)),
    "a parent that is another": replace(BASE, parents=column("I", 0, 0, 0, 1, 0)),
    "a parent behind its child": replace(BASE, parents=column("I", 0, 0, 4, 1, 0)),
    "a directory that never ends": replace(BASE, ends=column("I", 5, 9, 3, 4, 5)),
    "a directory that ends before it begins": replace(BASE, ends=column("I", 5, 1, 3, 4, 5)),
    # In these two all parents fit, so that only the end itself is wrong: a walk would run out, or never end.
    "a directory that ends behind its parent": replace(
        BASE, parents=column("I", 0, 0, 1, 1, 1), ends=column("I", 5, 9, 3, 4, 5)
    ),
    "a directory that ends at itself": replace(
        BASE, parents=column("I", 0, 0, 0, 0, 0), ends=column("I", 5, 1, 3, 4, 5)
    ),
    "a page that has a subtree": replace(BASE, ends=column("I", 5, 4, 4, 4, 5)),
    "a root that ends early": replace(BASE, ends=column("I", 4, 4, 3, 4, 5)),
    "a root with a name": replace(BASE, name_ends=column("I", 1, 2, 3, 4, 4)),
    "a name that is empty": replace(BASE, name_ends=column("I", 0, 1, 1, 3, 4)),
    "names that run back": replace(BASE, name_ends=column("I", 0, 2, 1, 3, 4)),
    "names beyond the end": replace(BASE, name_ends=column("I", 0, 1, 2, 3, 9)),
    "names left over": replace(BASE, blob=b"abcde"),
}


@pytest.mark.parametrize("snapshot", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_snapshot_that_is_no_tree_is_refused(snapshot: Snapshot) -> None:
    """Columns that do not describe a tree are refused whole."""
    assert wire.decode_snapshot(wire.encode_snapshot(BASE)) == BASE
    with pytest.raises(ProtocolError):
        wire.decode_snapshot(wire.encode_snapshot(snapshot))


HOSTILE_NAMES = {
    "a slash": b"a/cd",
    "a NUL": b"a\0cd",
    "a twin": b"accd",
    "an order": b"acbd",
    "a dot": b"a.cd",
}


@pytest.mark.parametrize("blob", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES.keys())
def test_a_name_that_the_kernel_cannot_take_is_refused(blob: bytes) -> None:
    """A name with a slash or a NUL, or not behind its neighbour in order, is refused with its snapshot."""
    with pytest.raises(ProtocolError):
        wire.decode_snapshot(wire.encode_snapshot(replace(BASE, blob=blob)))


def test_a_name_is_as_long_as_the_kernel_takes() -> None:
    """A name of 255 bytes arrives; one of 256 is refused with its snapshot."""
    longest = snapshot_of({"é" * 127 + "x": 1})
    assert wire.decode_snapshot(wire.encode_snapshot(longest)) == longest
    with pytest.raises(ProtocolError, match="the name of node 1 of a snapshot does not fit"):
        wire.decode_snapshot(wire.encode_snapshot(snapshot_of({"é" * 128: 1})))


@given(site=sites, other=sites)
def test_the_digest_tells_trees_apart_and_not_generations(
    site: dict[str, int], other: dict[str, int]
) -> None:
    """Equal trees of two generations have one digest; other names, sizes, times or versions another."""
    one, two, three = (
        wire.encode_snapshot(found)
        for found in (snapshot_of(site, 1), snapshot_of(site, 2), snapshot_of(other, 1))
    )
    assert wire.snapshot_digest(one, b"v") == wire.snapshot_digest(two, b"v")
    assert wire.snapshot_digest(one, b"v") != wire.snapshot_digest(one, b"w")
    assert (wire.snapshot_digest(one, b"v") == wire.snapshot_digest(three, b"v")) == (site == other)


# -- pushed pages --------------------------------------------------------------------------------------

pages = st.lists(st.tuples(u64, st.binary(min_size=1, max_size=100)), max_size=20)


@given(sent=pages)
def test_pushed_pages_arrive(sent: list[tuple[int, bytes]]) -> None:
    """Pages that are pushed are read back, in order."""
    found = [page for frame in wire.push(sent) for page in wire.parse_push(only(frame).payload)]
    assert [(inode, bytes(page)) for inode, page in found] == sent


def test_pushes_are_cut_into_frames_of_their_size() -> None:
    """Small pages share frames of about PUSH_FRAME bytes; the largest that can be pushed fills one alone."""
    sent = [(number, bytes(50_000)) for number in range(9)] + [(9, bytes(wire.PUSH_MAX))]
    frames = [only(frame) for frame in wire.push(sent)]
    assert [len(wire.parse_push(frame.payload)) for frame in frames] == [2, 2, 2, 2, 1, 1]
    assert len(frames[-1].payload) == wire.MAX_PAYLOAD
    with pytest.raises(ProtocolError, match="does not fit a frame"):
        list(wire.push([(1, bytes(wire.PUSH_MAX + 1))]))


@given(payload=st.binary(max_size=60))
def test_any_push_is_pages_or_refused(payload: bytes) -> None:
    """Bytes of a stranger are pages that lie within them, end to end, or ProtocolError."""
    with contextlib.suppress(ProtocolError):
        found = wire.parse_push(payload)
        assert len(payload) == 4 + sum(12 + len(page) for _, page in found)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\1\0\0", b"\1\0\0\0", b"\0\0\0\0x", b"\1\0\0\0" + struct.pack("<QI", 7, 3) + b"ab"],
)
def test_a_push_of_another_length_is_refused(payload: bytes) -> None:
    """A push whose table or bytes are cut off, or that has bytes left over, is refused."""
    with pytest.raises(ProtocolError, match="a push w"):
        wire.parse_push(payload)
