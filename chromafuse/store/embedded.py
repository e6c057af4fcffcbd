"""The store in a directory: Chroma's engine in a child process (see worker.py for why).

Concurrency: requests go to the child one at a time; see child.py. Calls of any length are cut, so that one
reader's bulk fetch holds the others up for one request, not for the whole call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..errors import StoreError
from .batching import (
    batches,
    check_rows,
    embedding_function_of,
    first_of_each,
    last_of_each,
    row_batches,
    scalars,
    unique,
)
from .child import Worker, open_worker
from .location import StoreLocation
from .protocol import CollectionInfo, Row

ROWS = 1_000  # rows of one request; an id list over 32,766 is an error, and 1,000 rows take about 0.1 s


class EmbeddedStore:
    """One collection of a Chroma directory."""

    def __init__(self, worker: Worker, rows_per_call: int) -> None:
        self._worker = worker
        self._rows = rows_per_call

    @property
    def rows_per_call(self) -> int:
        """How many rows one request to the child carries."""
        return self._rows

    @property
    def worker_pid(self) -> int | None:
        """The process id of the child, for status and for tests that kill it."""
        return self._worker.pid

    async def info(self) -> CollectionInfo:
        """Describe the collection that has the name now."""
        found = await self._worker.call({"op": "info"})
        return CollectionInfo(
            id=found["id"],
            name=found["name"],
            embedding_function=embedding_function_of(found["configuration"], found["schema"]),
            dimension=found["dimension"],
        )

    async def get(self, ids: Collection[str]) -> dict[str, Row]:
        """Return the rows of `ids` that exist."""
        rows: dict[str, Row] = {}
        for batch in batches(unique(ids), self._rows):
            got = await self._worker.call({"op": "get", "ids": batch, "rows": True})
            for id, document, metadata in _zip(got):
                rows[id] = Row(id, document or "", scalars(metadata))
        return rows

    async def existing(self, ids: Collection[str]) -> set[str]:
        """Return those of `ids` that exist."""
        found: set[str] = set()
        for batch in batches(unique(ids), self._rows):
            got = await self._worker.call({"op": "get", "ids": batch, "rows": False})
            found.update(got["ids"])
        return found

    async def list_ids(self) -> list[str]:
        """Return every id, of one moment: one request, 0.1 s for 100,000 of them."""
        got = await self._worker.call({"op": "list"})
        ids: list[str] = got["ids"]
        return ids

    async def searches_all(self) -> bool:
        """Say so: the engine in a directory keeps its texts in SQLite and reads all of them."""
        return True

    async def search(self, pattern: str) -> list[str]:
        """Return the ids of the rows in whose document a regular expression matches."""
        got = await self._worker.call({"op": "search", "text": {"$regex": pattern}})
        ids: list[str] = got["ids"]
        return ids

    async def tagged(self, key: str, value: str) -> list[str]:
        """Return the ids of the rows with this value in their metadata."""
        got = await self._worker.call({"op": "search", "metadata": {key: value}})
        ids: list[str] = got["ids"]
        return ids

    async def add(self, rows: Sequence[Row]) -> None:
        """Write the rows whose ids are new."""
        await self._write("add", first_of_each(rows))

    async def upsert(self, rows: Sequence[Row]) -> None:
        """Write the rows, replacing what exists."""
        await self._write("upsert", last_of_each(rows))

    async def delete(self, ids: Collection[str]) -> None:
        """Remove `ids`."""
        for batch in batches(unique(ids), self._rows):
            await self._worker.call({"op": "delete", "ids": batch})

    async def _write(self, op: str, rows: Sequence[Row]) -> None:
        check_rows(rows)
        for batch in row_batches(rows, lambda: self._rows):
            await self._worker.call(
                {
                    "op": op,
                    "ids": [row.id for row in batch],
                    "embeddings": [row.embedding for row in batch],
                    "metadatas": [dict(row.metadata) or None for row in batch],
                    "documents": [row.document for row in batch],
                }
            )


def _zip(got: dict[str, Any]) -> zip[tuple[str, str | None, dict[str, Any] | None]]:
    try:
        return zip(got["ids"], got["documents"], got["metadatas"], strict=True)
    except TypeError as exc:
        raise StoreError("the engine answered without documents or metadata") from exc


@asynccontextmanager
async def open_embedded(
    location: StoreLocation, *, create: bool, deadline: float, rows: int | None
) -> AsyncIterator[EmbeddedStore]:
    """Open the collection in a directory; with `create`, make what is missing."""
    opening = {
        "op": "open",
        "path": location.path,
        "tenant": location.tenant,
        "database": location.database,
        "collection": location.collection,
        "create": create,
    }
    async with open_worker(opening, location.path, deadline) as worker:
        store = EmbeddedStore(worker, rows or ROWS)
        await store.info()
        yield store
