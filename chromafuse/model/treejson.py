"""The entries of a path tree, read from its canonical JSON (see records.py) a piece at a time.

Pure functions: no concurrency rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from ..errors import RecordDamaged
from . import access, names
from .entry import MTIME_UNKNOWN, TreeEntry

TREE_PIECE = 64 << 10  # bytes of canonical JSON that are decoded at once
_INT64 = 1 << 63
_VERSION = re.compile("[0-9a-f]{32}")


class _NotCanonical(Exception):
    """The JSON is not as records.encode_tree writes it."""


def read_entries(canonical: bytes) -> tuple[list[TreeEntry], list[tuple[str, str]]]:
    """Return the entries of a tree and its problems, (path, why) of what can be no entry, in the tree's order.

    Raises RecordDamaged where the whole is no JSON object.
    """
    try:
        return _entries(_piecewise(canonical))
    except (orjson.JSONDecodeError, _NotCanonical):
        return _entries(_whole(canonical))


def _piecewise(canonical: bytes) -> Iterator[tuple[str, Any]]:
    """Yield (path, record) without ever having more than one piece of the tree as JSON objects.

    All objects of 100,000 pages at once are 130 MB, and leave holes between the entries when they go. A piece
    ends where a record does. A cut at the wrong place, in a string or behind a deeper object, leaves a piece
    that is not JSON. Paths must ascend, so that none is in two pieces: which of two counts is the parser's to say.
    """
    start, opened = 0, b""
    latest: str | None = None
    while True:
        cut_at = canonical.find(b'},"', start + TREE_PIECE)
        if cut_at < 0:
            piece = orjson.loads(opened + canonical[start:])
        else:
            piece = orjson.loads(opened + canonical[start : cut_at + 1] + b"}")
        if not isinstance(piece, dict):
            raise _NotCanonical
        for path, record in piece.items():
            if latest is not None and path <= latest:
                raise _NotCanonical
            latest = path
            yield path, record
        if cut_at < 0:
            return
        start, opened = cut_at + len("},"), b"{"


def _whole(canonical: bytes) -> Iterator[tuple[str, Any]]:
    try:
        tree = orjson.loads(canonical)
    except orjson.JSONDecodeError as exc:
        raise RecordDamaged(f"the path tree is not JSON: {exc}") from exc
    if not isinstance(tree, dict):
        raise RecordDamaged(f"the path tree is a JSON {type(tree).__name__}, not an object")
    yield from tree.items()


def _entries(
    records: Iterable[tuple[str, Any]],
) -> tuple[list[TreeEntry], list[tuple[str, str]]]:
    entries, problems = [], []
    shared: dict[access.Access, access.Access] = {}  # a site has few distinct accesses
    for path, record in records:
        why = names.problem_of(path) or _entry_problem(record)
        if why:
            problems.append((path, why))
            continue
        granted = access.decode_access(record)
        if granted.groups or granted.malformed:
            granted = shared.setdefault(granted, granted)
        version = bytes.fromhex(record["v"])
        mtime_ns = record["mtime"] or MTIME_UNKNOWN
        entries.append(TreeEntry(path, granted, version, record["n"], record["size"], mtime_ns))
    return entries, problems


def _entry_problem(record: Any) -> str:
    if not isinstance(record, dict):
        return f"its record is a JSON {type(record).__name__}, not an object"
    version = record.get("v")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        return "its page version is not 32 hex digits"
    for key in ("n", "size", "mtime"):
        value = record.get(key)
        if type(value) is not int or not -_INT64 <= value < _INT64:
            return f"its {key} is not an integer"
        if value < 0 and key != "mtime":
            return f"its {key} is negative"
    if (record["n"] == 0) != (record["size"] == 0) or record["n"] > record["size"]:
        return f"its {record['n']} chunks cannot hold {record['size']} bytes"
    return ""
