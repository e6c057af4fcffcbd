"""The collection's records, described once. Nothing else knows their ids, their fields or their sentinels.

    __path_tree__                 the root. Document: JSON of `Root`; metadata: generation, sha256 (for polling).
                                  Replacing this one record is the only act that publishes a tree.
    __path_tree__:<sha256>:<k>    part k of a tree: base64 of a slice of the compressed canonical tree JSON.
    <v>:<i>                       chunk i of page version v (32 hex digits). Metadata: page, chunk_index,
                                  page_version, and encoding = "base64" where the bytes are not UTF-8.
    __lock__:<n>, __condemned__:<k>   belong to the publish protocol (store/publish.py).

The canonical tree is JSON with keys in UTF-8 byte order and no spaces: path -> {isPublic?, groups?, v, n,
size, mtime}. `isPublic` absent = for the operator alone; `groups` absent = none; v = page version; n =
number of chunks (0 for an empty page); size = bytes; mtime = integer nanoseconds, 0 stored as one second
because tools take 0 for "unknown".

All records but the root are immutable: a version is a digest of path and bytes, so an id never gets other
text. Pure functions and values: no concurrency rule.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import zstandard

from ..errors import RecordDamaged, UnknownFormat
from . import access, names
from .entry import MTIME_UNKNOWN as MTIME_UNKNOWN
from .entry import TreeEntry as TreeEntry
from .entry import chunk_ids as chunk_ids
from .treejson import read_entries

FORMAT = 1
CUTTER = 1  # version of `cut`; part of every page version, so a new cutter never reuses a chunk id

ROOT_ID = "__path_tree__"
CHUNK_TARGET = 4_000  # bytes of UTF-8 a chunk is filled to
CHUNK_MAX = 16_000  # bytes of UTF-8; Chroma Cloud refuses documents over 16,384
BINARY_CHUNK = 12_000  # raw bytes; 16,000 characters of base64
PART_SIZE = 16_000  # characters of base64 in one part of a tree
TREE_MAX = 1 << 30  # bytes of canonical JSON; a bound against decompression bombs
PARTS_MAX = 100_000  # TREE_MAX that does not compress at all, in base64, is below 90,000
_INT64 = 1 << 63
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PathTree:
    """A whole tree, unpruned. Entries are in depth-first order, each directory's names in byte order.

    `problems` are (path, why) of entries that cannot be read at all; they are in no mount.
    """

    generation: int
    sha256: str  # of the canonical JSON, hex
    entries: tuple[TreeEntry, ...]
    problems: tuple[tuple[str, str], ...] = ()

    def visible(self, identity: access.Identity) -> list[TreeEntry]:
        """Return the entries that `identity` may see, in order. This is the pruning."""
        admitted: dict[access.Access, bool] = {}
        result = []
        for entry in self.entries:
            seen = admitted.get(entry.access)
            if seen is None:
                seen = admitted[entry.access] = entry.access.admits(identity)
            if seen:
                result.append(entry)
        return result


@dataclass(frozen=True, slots=True)
class Root:
    """The root record: which tree is published, and how its texts were embedded."""

    generation: int
    sha256: str
    parts: int
    size: int  # bytes of canonical JSON
    embedding: str  # name of the embedding function
    dimension: int
    codec: str = "zstd"

    def part_ids(self) -> list[str]:
        """Return the ids of the tree's parts, in order."""
        return [f"{ROOT_ID}:{self.sha256}:{k}" for k in range(self.parts)]


def page_version(path: str, data: bytes) -> bytes:
    """Return the 16-byte version of a page: 128 bits of sha256 over format, cutter, path and bytes."""
    digest = hashlib.sha256(b"chromafuse %d %d " % (FORMAT, CUTTER))
    digest.update(path.encode())
    digest.update(b"\0")
    digest.update(data)
    return digest.digest()[:16]


# -- cutting and joining -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """A page as it is stored: the documents of its chunks, and whether they are base64 of raw bytes."""

    documents: tuple[str, ...]
    binary: bool


def cut(data: bytes) -> Cut:
    """Cut a page into documents that `join` puts together again byte for byte.

    UTF-8 (with NUL, BOM, CR, anything) is cut behind line feeds, near CHUNK_TARGET bytes; a line is only cut
    when it alone is over CHUNK_MAX bytes, and then never inside a code point. Other bytes are base64.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        pieces = (data[at : at + BINARY_CHUNK] for at in range(0, len(data), BINARY_CHUNK))
        return Cut(tuple(base64.b64encode(piece).decode() for piece in pieces), binary=True)
    return Cut(tuple(piece.decode() for piece in _cut_text(data)), binary=False)


def _cut_text(data: bytes) -> Iterator[bytes]:
    start = at = 0
    while at < len(data):
        end = data.find(b"\n", at) + 1 or len(data)
        if end - start > CHUNK_TARGET and at > start:
            yield data[start:at]
            start = at
        while end - start > CHUNK_MAX:
            limit = _code_point_before(data, start + CHUNK_MAX)
            yield data[start:limit]
            start = limit
        at = end
    if start < len(data):
        yield data[start:]


def _code_point_before(data: bytes, at: int) -> int:
    while data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def join(documents: Iterable[str], *, binary: bool) -> bytes:
    """Put the documents of a page together again. Raises RecordDamaged on a document that is no base64."""
    if not binary:
        return "".join(documents).encode("utf-8", "surrogatepass")
    try:
        return b"".join(base64.b64decode(document, validate=True) for document in documents)
    except (binascii.Error, ValueError) as exc:
        raise RecordDamaged(f"a binary chunk is not base64: {exc}") from exc


def chunk_metadata(path: str, version: bytes, index: int, *, binary: bool) -> dict[str, str | int]:
    """Return the metadata of one chunk."""
    metadata: dict[str, str | int] = {
        "page": path,
        "chunk_index": index,
        "page_version": version.hex(),
    }
    if binary:
        metadata["encoding"] = "base64"
    return metadata


def assemble(entry: TreeEntry, chunks: Sequence[tuple[str, Mapping[str, Any]]]) -> bytes:
    """Return the bytes of `entry` from the (document, metadata) of its chunks, in order.

    Raises RecordDamaged where the bytes do not have the size and the version that the tree promises: wrong
    bytes are never served.
    """
    encodings = {metadata.get("encoding") for _, metadata in chunks}
    if len(encodings) > 1 or not encodings <= {None, "base64"}:
        raise RecordDamaged(
            f"{entry.path}: chunks in unknown encodings {sorted(map(str, encodings))}"
        )
    data = join((document for document, _ in chunks), binary=encodings == {"base64"})
    if len(data) != entry.size:
        raise RecordDamaged(f"{entry.path}: {len(data)} bytes stored, {entry.size} promised")
    if page_version(entry.path, data) != entry.version:
        raise RecordDamaged(
            f"{entry.path}: stored bytes do not have the digest {entry.version.hex()}"
        )
    return data


# -- the tree ------------------------------------------------------------------------------------------


def encode_tree(entries: Iterable[TreeEntry]) -> bytes:
    """Return the canonical JSON of a tree."""
    tree = {
        entry.path: {
            **access.encode_access(entry.access),
            "v": entry.version.hex(),
            "n": entry.chunks,
            "size": entry.size,
            "mtime": entry.mtime_ns or MTIME_UNKNOWN,
        }
        for entry in entries
    }
    ordered = dict(sorted(tree.items(), key=lambda item: item[0].encode()))
    return orjson.dumps(ordered)


def decode_tree(canonical: bytes, generation: int) -> PathTree:
    """Read a tree from its canonical JSON.

    An entry that is damaged or cannot be shown becomes a problem; the others stay. Raises RecordDamaged where
    the whole is no JSON object.
    """
    entries, problems = read_entries(canonical)
    entries.sort(key=lambda entry: names.sort_key(entry.path))
    digest = hashlib.sha256(canonical).hexdigest()
    return PathTree(generation, digest, tuple(entries), tuple(problems))


def split_tree(canonical: bytes) -> tuple[list[str], str]:
    """Return the documents of a tree's parts, and the sha256 (hex) of its canonical JSON."""
    packed = base64.b64encode(zstandard.ZstdCompressor(level=9).compress(canonical)).decode()
    parts = [packed[at : at + PART_SIZE] for at in range(0, len(packed), PART_SIZE)]
    return parts, hashlib.sha256(canonical).hexdigest()


def join_tree(root: Root, parts: Iterable[str]) -> bytes:
    """Return the canonical JSON from the documents of a tree's parts, checked against the root's digest.

    Raises RecordDamaged where a part is missing, damaged, or the digest is another.
    """
    try:
        packed = base64.b64decode("".join(parts), validate=True)
        canonical = _decompress(packed, root)
    except (binascii.Error, ValueError, zstandard.ZstdError, OSError, EOFError) as exc:
        raise RecordDamaged(f"the path tree cannot be unpacked: {exc}") from exc
    check_tree(root, canonical)
    return canonical


def check_tree(root: Root, canonical: bytes) -> None:
    """Raise RecordDamaged unless `canonical` is the tree that `root` names."""
    digest = hashlib.sha256(canonical).hexdigest()
    if digest != root.sha256:
        raise RecordDamaged(
            f"the path tree has digest {digest[:16]}…, the root promises {root.sha256[:16]}…"
        )


def _decompress(packed: bytes, root: Root) -> bytes:
    if root.codec == "gzip":
        import gzip  # rarely needed, and it pulls in more than it gives

        with gzip.open(io.BytesIO(packed)) as stream:
            return stream.read(root.size + 1)
    # The bound below is for frames that do not say their size; one that does is unpacked whole.
    size = zstandard.frame_content_size(packed)
    if size > root.size:
        raise RecordDamaged(f"the path tree unpacks to {size} bytes, the root promises {root.size}")
    return zstandard.ZstdDecompressor().decompress(packed, max_output_size=root.size)


# -- the root ------------------------------------------------------------------------------------------


def encode_root(root: Root) -> tuple[str, dict[str, str | int]]:
    """Return document and metadata of the root record."""
    document = {
        "format": FORMAT,
        "generation": root.generation,
        "sha256": root.sha256,
        "parts": root.parts,
        "size": root.size,
        "codec": root.codec,
        "embedding": {"name": root.embedding, "dimension": root.dimension},
    }
    metadata: dict[str, str | int] = {"generation": root.generation, "sha256": root.sha256}
    return orjson.dumps(document).decode(), metadata


def decode_root(document: str) -> Root:
    """Read the root record. Raises UnknownFormat for a format that is not FORMAT, RecordDamaged for the rest."""
    try:
        raw = orjson.loads(document)
    except orjson.JSONDecodeError as exc:
        raise UnknownFormat(f"the record {ROOT_ID} is not JSON of this program: {exc}") from exc
    if not isinstance(raw, dict) or "format" not in raw:
        raise UnknownFormat(f"the record {ROOT_ID} has no format number: another program wrote it")
    if type(raw["format"]) is not int or raw["format"] != FORMAT:  # in Python, True == 1 == 1.0
        raise UnknownFormat(
            f"the collection has format {raw['format']!r}; this program reads format {FORMAT}"
        )
    embedding = raw.get("embedding")
    if not isinstance(embedding, dict):
        raise RecordDamaged(f"the record {ROOT_ID} names no embedding")
    root = Root(
        generation=_field(raw, "generation", int),
        sha256=_field(raw, "sha256", str),
        parts=_field(raw, "parts", int),
        size=_field(raw, "size", int),
        codec=_field(raw, "codec", str),
        embedding=_field(embedding, "name", str),
        dimension=_field(embedding, "dimension", int),
    )
    if not _DIGEST.fullmatch(root.sha256):
        raise RecordDamaged(f"the record {ROOT_ID} holds no sha256")
    sane = 1 <= root.parts <= min(root.size, PARTS_MAX) and root.size <= TREE_MAX
    if not sane or not 1 <= root.generation < _INT64:
        raise RecordDamaged(f"the record {ROOT_ID} holds numbers out of range")
    if root.codec not in ("zstd", "gzip"):
        raise UnknownFormat(
            f"the path tree is packed with {root.codec!r}, which this program does not read"
        )
    return root


def _field(record: dict[str, Any], key: str, kind: type[Any]) -> Any:
    value = record.get(key)
    if type(value) is not kind:
        raise RecordDamaged(f"the record {ROOT_ID} has no {kind.__name__} {key!r}")
    return value
