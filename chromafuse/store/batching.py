"""How a long call is cut into requests, and which rows can be stored at all.

Both stores use it, so that what one backend refuses the other refuses too, before anything is written.
Pure functions: no concurrency rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import StoreRejected
from .protocol import Row, Scalar

WRITE_ROWS = 5_461  # Chroma refuses more rows in one write (six SQL variables a row, 32,766 in all)
WRITE_BYTES = 8 << 20  # text in one write; a server's default bound for a whole request is 40 MiB
_INT64 = 1 << 63


def unique(ids: Iterable[str]) -> list[str]:
    """Return `ids` in order without repetitions; Chroma's clients refuse a repeated id."""
    return list(dict.fromkeys(ids))


def batches(ids: Sequence[str], rows: int) -> Iterator[Sequence[str]]:
    """Cut `ids` into pieces of at most `rows`."""
    for start in range(0, len(ids), rows):
        yield ids[start : start + rows]


def row_batches(rows: Sequence[Row], limit: Callable[[], int]) -> Iterator[list[Row]]:
    """Cut `rows` into pieces of at most `limit()` rows, asked for each, and about WRITE_BYTES of text."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        length = len(row.document) + 256  # code points, not bytes: the bound need not be exact
        if batch and (len(batch) >= min(limit(), WRITE_ROWS) or size + length > WRITE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


def first_of_each(rows: Iterable[Row]) -> list[Row]:
    """Return one row for every id, the first: what adding them one by one would leave."""
    kept: dict[str, Row] = {}
    for row in rows:
        kept.setdefault(row.id, row)
    return list(kept.values())


def last_of_each(rows: Iterable[Row]) -> list[Row]:
    """Return one row for every id, the last: what upserting them one by one would leave."""
    return list({row.id: row for row in rows}.values())


def check_rows(rows: Iterable[Row]) -> None:
    """Raise StoreRejected for a row that Chroma would refuse, alter or lose."""
    for row in rows:
        if not row.id:
            raise StoreRejected("a row without an id")
        if not row.embedding:
            raise StoreRejected(f"row {row.id!r} has no embedding")
        _check_text(row, row.id)
        _check_text(row, row.document)
        for key, value in row.metadata.items():
            _check_value(row, key, value)


def _check_text(row: Row, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StoreRejected(
            f"row {row.id!r} has text that is not Unicode (a lone surrogate)"
        ) from None


def _check_value(row: Row, key: str, value: Scalar) -> None:
    """Chroma stores NaN and infinity as nothing and turns integers over 64 bits into floats."""
    _check_text(row, key)
    if isinstance(value, str):
        _check_text(row, value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise StoreRejected(f"row {row.id!r}: {key} is not a finite number")
    elif isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise StoreRejected(f"row {row.id!r}: {key} has more than 64 bits")


def scalars(metadata: Mapping[str, Any] | None) -> dict[str, Scalar]:
    """Return the scalar entries of stored metadata; lists and vectors are never ours."""
    return {k: v for k, v in (metadata or {}).items() if isinstance(v, str | int | float | bool)}


def embedding_function_of(configuration: Any, schema: Any) -> str | None:
    """Return the name of the embedding function stored with a collection, without building it.

    It is stored in two places; where they differ, the one that is not the default is reported, because a
    name that is looked at may be refused and a name that is overlooked may run somebody's code.
    """
    names = [_function_name(place) for place in _function_places(configuration, schema)]
    known = [name for name in names if name is not None]
    foreign = [name for name in known if name != "default"]
    return next(iter(foreign or known), None)


def _function_places(configuration: Any, schema: Any) -> Iterator[Any]:
    if isinstance(configuration, Mapping):
        yield configuration.get("embedding_function")
    if not isinstance(schema, Mapping):
        return
    keys = schema.get("keys")
    columns = list(keys.values()) if isinstance(keys, Mapping) else []
    for column in (*columns, schema.get("defaults")):
        index = column
        for step in ("float_list", "vector_index", "config", "embedding_function"):
            index = index.get(step) if isinstance(index, Mapping) else None
        yield index


def _function_name(stored: Any) -> str | None:
    if stored is None:
        return None
    if not isinstance(stored, Mapping):
        return "unreadable"
    name = stored.get("name") or stored.get("type")
    return name if isinstance(name, str) else "unreadable"
