"""Which records of a collection are dead, and since when: the second half of publishing.

Dead is an id of our own formats that the current tree does not name. Its name (a page version, or the digest
of a tree) is first condemned, with the time, in the `__condemned__:<k>` records, JSON of {name: unix time};
it is deleted by a later run, when it has been condemned for the grace time and is dead still. So a reader
that works with a tree of a moment ago finds its pages for that long. Ids of other formats are never touched.
A name that a new tree takes up again loses its condemnation before that tree is published.

The times are compared with the clock of whoever collects: hosts that publish have to agree on the time
to within the grace.

Concurrency: pure but for `load_condemned` and `store_condemned`, which are called under the writer's lock.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import orjson

from ..model.records import ROOT_ID
from .protocol import Row, Store, Vector

log = logging.getLogger(__name__)

RECORD_MAX = 16_000  # bytes of one condemned record; Chroma Cloud refuses documents over 16,384
_NAMED = re.compile(rf"([0-9a-f]{{32}}):[0-9]+|{ROOT_ID}:([0-9a-f]{{64}}):[0-9]+")
_LOCK = re.compile(r"__lock__:([0-9]+)")
_CONDEMNED = re.compile(r"__condemned__:[0-9]+")


def name_of(id: str) -> str | None:
    """Return the page version or tree digest that a chunk or part belongs to; None for any other id."""
    match = _NAMED.fullmatch(id)
    return (match[1] or match[2]) if match else None


def is_ours(id: str) -> bool:
    """Say whether `id` has one of our formats."""
    if id == ROOT_ID or name_of(id) is not None:
        return True
    return bool(_LOCK.fullmatch(id) or _CONDEMNED.fullmatch(id))


def dead_ids(ids: Iterable[str], live: Collection[str]) -> dict[str, list[str]]:
    """Group the chunks and parts among `ids` by name, leaving out the names in `live`."""
    dead: dict[str, list[str]] = {}
    for id in ids:
        name = name_of(id)
        if name is not None and name not in live:
            dead.setdefault(name, []).append(id)
    return dead


def old_locks(ids: Iterable[str], generation: int) -> list[str]:
    """Return the locks among `ids` that are below `generation`, which is published."""
    matches = (_LOCK.fullmatch(id) for id in ids)
    return [match[0] for match in matches if match and int(match[1]) < generation]


@dataclass(frozen=True, slots=True)
class Condemned:
    """The condemned names with their times, and the records that hold them: id -> document."""

    times: Mapping[str, float]
    records: Mapping[str, str]


async def load_condemned(store: Store, ids: Iterable[str]) -> Condemned:
    """Fetch the condemned records among `ids`. What cannot be read is condemned anew, with a later time."""
    rows = await store.get([id for id in ids if _CONDEMNED.fullmatch(id)])
    times: dict[str, float] = {}
    for id, row in rows.items():
        for name, time in _decode(id, row.document).items():
            times[name] = max(time, times.get(name, time))
    return Condemned(times, {id: row.document for id, row in rows.items()})


def _decode(id: str, document: str) -> dict[str, float]:
    try:
        record = orjson.loads(document)
        return {name: float(time) for name, time in record.items()}
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError):
        log.warning("the record %s is damaged; what it held is kept for another grace time", id)
        return {}


async def store_condemned(
    store: Store, old: Condemned, times: Mapping[str, float], vector: Vector
) -> Condemned:
    """Make `times` what is condemned, writing only records that change."""
    records = {f"__condemned__:{k}": document for k, document in enumerate(_encode(times))}
    changed = {id: text for id, text in records.items() if old.records.get(id) != text}
    if changed:
        await store.upsert(
            [Row(id, text, {"kind": "condemned"}, vector) for id, text in changed.items()]
        )
    surplus = old.records.keys() - records.keys()
    if surplus:
        await store.delete(sorted(surplus))
    return Condemned(dict(times), records)


def _encode(times: Mapping[str, float]) -> Iterable[str]:
    """Cut `times` into JSON objects of at most RECORD_MAX bytes, the oldest first: those change least."""
    record: dict[str, int] = {}
    size = 2
    for name, time in sorted(times.items(), key=lambda item: (item[1], item[0])):
        second = math.ceil(time)  # never earlier than it was
        length = len(f'"{name}":{second},')
        if size + length > RECORD_MAX:
            yield orjson.dumps(record).decode()
            record, size = {}, 2
        record[name] = second
        size += length
    if record:
        yield orjson.dumps(record).decode()
