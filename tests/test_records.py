"""The collection's records: cutting and joining pages, the tree's JSON, its parts, the root."""

from __future__ import annotations

import base64
import gzip
import hashlib
import tracemalloc
from dataclasses import replace
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from chromafuse.errors import RecordDamaged, UnknownFormat
from chromafuse.model import treejson
from chromafuse.model.access import AUTHENTICATED, PUBLIC, Access
from chromafuse.model.names import sort_key
from chromafuse.model.records import (
    BINARY_CHUNK,
    CHUNK_MAX,
    CHUNK_TARGET,
    MTIME_UNKNOWN,
    PART_SIZE,
    PathTree,
    Root,
    TreeEntry,
    assemble,
    chunk_metadata,
    cut,
    decode_root,
    decode_tree,
    encode_root,
    encode_tree,
    join,
    join_tree,
    page_version,
    split_tree,
)
from chromafuse.model.treejson import TREE_PIECE

# Long lines, short lines, line ends of all kinds, and what editors leave in front.
pieces = st.one_of(
    st.text(max_size=200),
    st.sampled_from(["\n", "\r\n", "\ufeff", "\0", "é" * 9_000, "x" * 20_000, "line\n" * 1_500]),
    st.integers(CHUNK_TARGET - 3, CHUNK_TARGET + 3).map(lambda n: "y" * n + "\n"),
    st.integers(CHUNK_MAX - 3, CHUNK_MAX + 3).map(lambda n: "𝄞" * (n // 4) + "z" * (n % 4)),
)
texts = st.lists(pieces, max_size=8).map(lambda found: "".join(found).encode())
pages = texts | st.binary(max_size=300) | st.binary(min_size=1, max_size=9).map(lambda b: b * 9_000)


def stored(path: str, data: bytes) -> tuple[TreeEntry, list[tuple[str, dict[str, Any]]]]:
    """Return the entry and the chunks of a page, as publishing writes them."""
    found, version = cut(data), page_version(path, data)
    entry = TreeEntry(path, PUBLIC, version, len(found.documents), len(data), 5)
    chunks = [
        (document, chunk_metadata(path, version, i, binary=found.binary))
        for i, document in enumerate(found.documents)
    ]
    return entry, chunks  # type: ignore[return-value]


@given(data=pages)
@example(b"")
@example(b"\xff" * (BINARY_CHUNK + 1))
@example(b"\xef\xbb\xbf\r\n\0no final newline")
def test_a_page_comes_back_byte_for_byte(data: bytes) -> None:
    """Cut and put together, every page is the same bytes; a chunk is never empty nor over the bound."""
    entry, chunks = stored("a/b.md", data)
    assert assemble(entry, chunks) == data
    sizes = [len(document.encode()) for document, _ in chunks]
    assert all(1 <= size <= CHUNK_MAX for size in sizes)
    assert (len(chunks) == 0) == (data == b"")


@given(data=texts)
def test_text_is_cut_at_line_ends(data: bytes) -> None:
    """A chunk of text ends behind a line feed, unless one line alone is over what a chunk holds."""
    found = cut(data)
    assert not found.binary
    for document in found.documents[:-1]:
        assert document.endswith("\n") or len(document.encode()) > CHUNK_MAX - 4
        assert document.count("\n") < 2 or len(document.encode()) <= CHUNK_TARGET
    for one, other in zip(found.documents, found.documents[1:], strict=False):
        both = (one + other).encode()
        assert len(both) > CHUNK_TARGET or "\n" not in other


@given(data=pages.filter(bool), choice=st.data())
def test_damaged_chunks_are_never_served(data: bytes, choice: st.DataObject) -> None:
    """A chunk that is missing, doubled, swapped, shortened or changed is RecordDamaged."""
    entry, chunks = stored("a/b.md", data)
    at = choice.draw(st.integers(0, len(chunks) - 1))
    document, metadata = chunks[at]
    damaged = choice.draw(
        st.sampled_from(
            [
                chunks[:at] + chunks[at + 1 :],
                chunks[:at] + [chunks[at]] * 2 + chunks[at + 1 :],
                [*chunks[:at], (document[:-1], metadata), *chunks[at + 1 :]],
                [*chunks[:at], (document + "x", metadata), *chunks[at + 1 :]],
                [*chunks[:at], (document, {**metadata, "encoding": "rot13"}), *chunks[at + 1 :]],
                [*chunks[:at], ("\ud800" + document[1:], metadata), *chunks[at + 1 :]],
            ]
        )
    )
    with pytest.raises(RecordDamaged):
        assemble(entry, damaged)


@given(data=pages)
def test_bytes_of_another_page_are_refused(data: bytes) -> None:
    """The version binds bytes to their path: the chunks of one page are not those of another."""
    entry, chunks = stored("a.md", data)
    with pytest.raises(RecordDamaged):
        assemble(replace(entry, path="b.md"), chunks)


@given(data=pages, wrong=st.integers(-3, 3).filter(bool))
def test_a_page_of_another_size_than_promised_is_refused(data: bytes, wrong: int) -> None:
    """Where the tree promises another size than the bytes have, they are not served, though the digest fits."""
    entry, chunks = stored("a.md", data)
    with pytest.raises(
        RecordDamaged, match=f"{len(data)} bytes stored, {len(data) + wrong} promised"
    ):
        assemble(replace(entry, size=len(data) + wrong), chunks)


def test_a_binary_chunk_that_is_no_base64_is_damaged() -> None:
    """Joining refuses what is no base64, by name."""
    with pytest.raises(RecordDamaged, match="not base64"):
        join(["!!!"], binary=True)


# -- the tree ------------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)
plain_names = names.filter(lambda name: name[0] != ".")
paths = st.lists(plain_names, min_size=1, max_size=4).map("/".join)
accesses = st.builds(
    Access,
    public=st.sampled_from([True, False, None]),
    groups=st.frozensets(st.sampled_from(["red", "blue"])),
)
entries = st.builds(
    TreeEntry,
    path=paths,
    access=accesses,
    version=st.binary(min_size=16, max_size=16),
    chunks=st.just(1),
    size=st.integers(1, 2**62),
    mtime_ns=st.integers(-(2**62), 2**62),
)
trees = st.lists(entries, max_size=12, unique_by=lambda entry: entry.path)


def as_stored(entry: TreeEntry) -> TreeEntry:
    """Return the entry with a time that a tree can hold."""
    return replace(entry, mtime_ns=entry.mtime_ns or MTIME_UNKNOWN)


@given(tree=trees)
def test_a_tree_is_read_back_in_order(tree: list[TreeEntry]) -> None:
    """Encoded and decoded, a tree has the same entries, depth first, and one canonical form."""
    canonical = encode_tree(tree)
    found = decode_tree(canonical, 3)
    assert list(found.entries) == sorted(map(as_stored, tree), key=lambda e: sort_key(e.path))
    assert (found.generation, found.problems) == (3, ())
    assert found.sha256 == hashlib.sha256(canonical).hexdigest()
    assert encode_tree(found.entries) == encode_tree(reversed(tree)) == canonical


GOOD = {"isPublic": True, "v": "ab" * 16, "n": 1, "size": 3, "mtime": 5}
WRONG: dict[str, tuple[str, Any]] = {
    "no object": ("a", 7),
    "no version": ("a", {**GOOD, "v": None}),
    "a short version": ("a", {**GOOD, "v": "ab"}),
    "upper case": ("a", {**GOOD, "v": "AB" * 16}),
    "a negative size": ("a", {**GOOD, "size": -1}),
    "chunks and size negative": ("a", {**GOOD, "n": -5, "size": -3}),
    "a size as text": ("a", {**GOOD, "size": "3"}),
    "a boolean": ("a", {**GOOD, "n": True}),
    "a fraction": ("a", {**GOOD, "mtime": 1.5}),
    "a huge time": ("a", {**GOOD, "mtime": 2**63}),
    "no chunks": ("a", {**GOOD, "n": 0}),
    "chunks of nothing": ("a", {**GOOD, "size": 0}),
    "more chunks than bytes": ("a", {**GOOD, "n": 4}),
    "an empty path": ("", GOOD),
    "an absolute path": ("/a", GOOD),
    "a path with an end": ("a/", GOOD),
    "dots": ("a/../b", GOOD),
    "a dot": ("./a", GOOD),
    "a NUL": ("a\0b", GOOD),
    "a long name": ("x" * 256, GOOD),
    "a reserved name": (".chromafuse/status", GOOD),
}


@pytest.mark.parametrize(("path", "record"), WRONG.values(), ids=WRONG.keys())
def test_one_wrong_entry_takes_nothing_down(path: str, record: Any) -> None:
    """An entry that cannot be read or shown is reported and left out; its neighbours stay."""
    found = decode_tree(orjson.dumps({"before": GOOD, path: record, "z": GOOD}), 1)
    assert [entry.path for entry in found.entries] == ["before", "z"]
    assert [key for key, _ in found.problems] == [path]


def test_the_order_of_a_tree_is_that_of_its_directories() -> None:
    """A directory's pages come right behind its name, before names that sort between it and its slash."""
    paths = ["a!", "a/b", "a/b!", "a/b/c", "a.md", "B"]
    found = decode_tree(orjson.dumps(dict.fromkeys(paths, GOOD)), 1)
    assert [entry.path for entry in found.entries] == ["B", "a/b", "a/b/c", "a/b!", "a!", "a.md"]


def test_a_stored_time_of_zero_is_read_as_one_second() -> None:
    """Also a tree that another writer made shows no page with the time that tools take for unknown."""
    found = decode_tree(orjson.dumps({"a": {**GOOD, "mtime": 0}}), 1)
    assert [entry.mtime_ns for entry in found.entries] == [MTIME_UNKNOWN]


@pytest.mark.parametrize(
    "canonical", [b"", b"{", b"[]", b'["a":{}}', b"7", b'"x"', b"null", b"\xff"]
)
def test_what_is_no_tree_is_damaged(canonical: bytes) -> None:
    """A tree that is no JSON object is RecordDamaged as a whole, never an empty tree."""
    with pytest.raises(RecordDamaged):
        decode_tree(canonical, 1)


odd_keys = st.sampled_from(["a", 'a"', 'a},"', "a},", "b\\", "{é", ""])
odd_records = st.sampled_from(
    [
        GOOD,
        {**GOOD, "groups": ["},", '},"']},
        {**GOOD, "x": {"y": {}}},
        {"x": {}, **GOOD},
        {"v": 1},
        "},",
    ]
)
odd_pairs = st.lists(st.tuples(odd_keys, odd_records), max_size=8)


@given(
    pairs=odd_pairs,
    ordered=st.booleans(),
    start=st.sampled_from([b"{", b" {", b"[", b""]),
    end=st.sampled_from([b"}", b"}\n", b"},", b"", b"}}"]),
)
@example([("a", GOOD), ("b", GOOD), ("a", GOOD)], False, b"{", b"}")
@example([("a", GOOD), ("b", GOOD)], True, b"[", b"}")
def test_a_tree_in_pieces_is_the_tree(
    pairs: list[tuple[str, Any]], ordered: bool, start: bytes, end: bytes
) -> None:
    """Wherever a tree is cut to be read, and whatever is in it, the outcome is that of one piece."""
    if ordered:
        pairs = sorted(dict(pairs).items())
    members = [orjson.dumps(key) + b":" + orjson.dumps(record) for key, record in pairs]
    canonical = start + b",".join(members) + end

    def outcome(piece: int) -> PathTree | str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(treejson, "TREE_PIECE", piece)
            try:
                return decode_tree(canonical, 1)
            except RecordDamaged as exc:
                return str(exc)

    assert outcome(1) == outcome(100) == outcome(1 << 20)


def test_a_path_that_is_there_twice_is_there_once() -> None:
    """The last record of a path counts, also where the two are far apart."""
    hidden = {**GOOD, "isPublic": False}
    filler = {f"b/{number:05}": GOOD for number in range(2 * TREE_PIECE // 80)}
    canonical = orjson.dumps({"a": GOOD, **filler})[:-1] + b',"a":' + orjson.dumps(hidden) + b"}"
    found = [(entry.path, entry.access) for entry in decode_tree(canonical, 1).entries]
    assert found == [("a", AUTHENTICATED), *((path, PUBLIC) for path in filler)]


# -- parts and root ------------------------------------------------------------------------------------


def root_of(canonical: bytes, parts: int, codec: str = "zstd") -> Root:
    """Return the root that names a tree."""
    digest = hashlib.sha256(canonical).hexdigest()
    return Root(1, digest, parts, len(canonical), "constant", 3, codec)


@given(tree=trees)
def test_a_tree_is_split_and_joined(tree: list[TreeEntry]) -> None:
    """Any tree comes back from its parts, each within what a record may hold."""
    canonical = encode_tree(tree)
    parts, digest = split_tree(canonical)
    root = root_of(canonical, len(parts))
    assert root.sha256 == digest
    assert all(0 < len(part) <= PART_SIZE for part in parts)
    assert join_tree(root, parts) == canonical


def test_a_tree_in_gzip_is_read_too() -> None:
    """The other codec of the format is understood."""
    canonical = encode_tree([])
    part = base64.b64encode(gzip.compress(canonical)).decode()
    assert join_tree(root_of(canonical, 1, "gzip"), [part]) == canonical


BOMB = bytes(64 << 20)
BOMBS = {
    "zstd": (zstandard.compress(BOMB), "zstd"),
    "zstd without its size": (
        zstandard.ZstdCompressor(write_content_size=False).compress(BOMB),
        "zstd",
    ),
    "gzip": (gzip.compress(BOMB, 1), "gzip"),
}


@pytest.mark.parametrize(("packed", "codec"), BOMBS.values(), ids=BOMBS.keys())
def test_a_tree_larger_than_its_root_says_is_not_unpacked(packed: bytes, codec: str) -> None:
    """A small record that would unpack to much more than the root promises is refused before it takes memory."""
    root = replace(root_of(b"{}", 1, codec), size=2)
    document = base64.b64encode(packed).decode()
    tracemalloc.start()
    try:
        with pytest.raises(RecordDamaged):
            join_tree(root, [document])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@given(position=st.integers(0, 10**6), what=st.sampled_from(["drop", "change", "swap"]))
def test_damaged_parts_are_refused(position: int, what: str) -> None:
    """A part that is missing, changed, or in another place is RecordDamaged."""
    canonical = encode_tree(
        [
            TreeEntry(f"p{i}", PUBLIC, hashlib.sha256(b"%d" % i).digest()[:16], 1, 9, 5)
            for i in range(2_000)
        ]
    )
    parts, _ = split_tree(canonical)
    assert len(parts) > 2
    at = position % len(parts)
    if what == "drop":
        del parts[at]
    elif what == "change":
        letter = "A" if parts[at][7] != "A" else "B"
        parts[at] = parts[at][:7] + letter + parts[at][8:]
    else:
        parts[at - 1], parts[at] = parts[at], parts[at - 1]
    with pytest.raises(RecordDamaged):
        join_tree(root_of(canonical, len(parts)), parts)


ROOT = Root(7, "ab" * 32, 3, 1_000, "constant", 3)


def test_the_root_is_read_back() -> None:
    """Encoded and decoded, a root is the same; its metadata carries what a poller needs."""
    document, metadata = encode_root(ROOT)
    assert decode_root(document) == ROOT
    assert metadata == {"generation": 7, "sha256": "ab" * 32}
    assert ROOT.part_ids() == [f"__path_tree__:{'ab' * 32}:{k}" for k in range(3)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 2}, UnknownFormat),
        ({"format": "1"}, UnknownFormat),
        ({"format": None}, UnknownFormat),
        ({"format": True}, UnknownFormat),
        ({"format": 1.0}, UnknownFormat),
        ({"codec": "brotli"}, UnknownFormat),
        ({"generation": 0}, RecordDamaged),
        ({"generation": "7"}, RecordDamaged),
        ({"generation": True}, RecordDamaged),
        ({"sha256": "xy" * 32}, RecordDamaged),
        ({"sha256": "ab"}, RecordDamaged),
        ({"parts": 0}, RecordDamaged),
        ({"parts": 10**9}, RecordDamaged),
        ({"size": 2**40}, RecordDamaged),
        ({"parts": 10**9, "size": 2**30}, RecordDamaged),
        ({"embedding": None}, RecordDamaged),
        ({"embedding": {"name": 1, "dimension": 3}}, RecordDamaged),
    ],
    ids=str,
)
def test_a_wrong_root_is_refused_by_what_is_wrong(
    change: dict[str, Any], error: type[RecordDamaged]
) -> None:
    """Another format is UnknownFormat, everything else that does not fit RecordDamaged."""
    document = {**orjson.loads(encode_root(ROOT)[0]), **change}
    with pytest.raises(RecordDamaged) as caught:
        decode_root(orjson.dumps(document).decode())
    assert type(caught.value) is error


@pytest.mark.parametrize("document", ["", "not json", "[]", "{}", '{"auth/oauth": {}}'])
def test_a_root_of_another_program_is_an_unknown_format(document: str) -> None:
    """What carries no format number of ours is not guessed at."""
    with pytest.raises(UnknownFormat):
        decode_root(document)
