"""A store in memory, held to the contract suite, and a wrapper that makes any store fail by a script.

Concurrency: like a real store's: every request gives other tasks a turn, one request is atomic.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import trio

from chromafuse.errors import CollectionMissing, StoreError, StoreRejected, StoreUnavailable
from chromafuse.store.batching import (
    batches,
    check_rows,
    first_of_each,
    last_of_each,
    row_batches,
    scalars,
    unique,
)
from chromafuse.store.protocol import CollectionInfo, Row, Store

T = TypeVar("T")


class MemoryStore:
    """One collection in memory. Several tasks may share it, as several writers share a Chroma."""

    def __init__(self, name: str = "docs", *, rows_per_call: int = 1_000) -> None:
        self.rows: dict[str, Row] | None = {}
        self.id = str(uuid.uuid4())
        self.embedding_function: str | None = None
        self._name = name
        self._rows_per_call = rows_per_call
        self._dimension: int | None = None

    @property
    def rows_per_call(self) -> int:
        """How many rows one request carries."""
        return self._rows_per_call

    def recreate(self) -> None:
        """Make the collection anew, empty."""
        self.rows, self.id, self._dimension = {}, str(uuid.uuid4()), None

    def remove(self) -> None:
        """Remove the collection."""
        self.rows = None

    async def _request(self) -> dict[str, Row]:
        await trio.lowlevel.checkpoint()
        if self.rows is None:
            raise CollectionMissing(f"memory: it has no collection {self._name!r}")
        return self.rows

    async def info(self) -> CollectionInfo:
        """Describe the collection."""
        await self._request()
        return CollectionInfo(self.id, self._name, self.embedding_function, self._dimension)

    async def get(self, ids: Collection[str]) -> dict[str, Row]:
        """Return the rows of `ids` that exist, in another order than asked, as Chroma does."""
        found: dict[str, Row] = {}
        for batch in batches(unique(ids), self._rows_per_call):
            rows = await self._request()
            wanted = set(batch)
            found |= {id: row for id, row in rows.items() if id in wanted}
        return found

    async def existing(self, ids: Collection[str]) -> set[str]:
        """Return those of `ids` that exist."""
        return set(await self.get(ids))

    async def list_ids(self) -> list[str]:
        """Return every id."""
        return list(await self._request())

    async def searches_all(self) -> bool:
        """Say so."""
        return True

    async def search(self, pattern: str) -> list[str]:
        """Return the ids of the rows that match, for patterns that mean the same to Rust and to Python."""
        rows, compiled = await self._request(), re.compile(pattern.replace(r"\z", r"\Z"))
        return [id for id, row in rows.items() if compiled.search(row.document)]

    async def tagged(self, key: str, value: str) -> list[str]:
        """Return the ids of the rows with this value in their metadata."""
        rows = await self._request()
        return [id for id, row in rows.items() if row.metadata.get(key) == value]

    async def add(self, rows: Sequence[Row]) -> None:
        """Write the rows whose ids are new."""
        await self._write(first_of_each(rows), _keep)

    async def upsert(self, rows: Sequence[Row]) -> None:
        """Write the rows; metadata keys that the new row lacks stay, as in Chroma."""
        await self._write(last_of_each(rows), _merge)

    async def _write(self, rows: Sequence[Row], settle: Callable[[Row | None, Row], Row]) -> None:
        check_rows(rows)
        for batch in row_batches(rows, lambda: self._rows_per_call):
            stored = await self._request()
            for row in batch:
                self._dimension = self._dimension or len(row.embedding)
                if len(row.embedding) != self._dimension:
                    raise StoreRejected(f"memory: embeddings of {self._dimension} numbers expected")
            for row in batch:
                stored[row.id] = settle(
                    stored.get(row.id), Row(row.id, row.document, scalars(row.metadata))
                )

    async def delete(self, ids: Collection[str]) -> None:
        """Remove `ids`."""
        for batch in batches(unique(ids), self._rows_per_call):
            rows = await self._request()
            for id in batch:
                rows.pop(id, None)


def _keep(old: Row | None, new: Row) -> Row:
    return old or new


def _merge(old: Row | None, new: Row) -> Row:
    return Row(new.id, new.document, {**(old.metadata if old else {}), **new.metadata})


Action = Literal["fail", "lose", "hang", "kill", "kill after"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the `at`-th call (from 1) of one of `methods`, or of any method where it is empty.

    fail: the error instead of the call. lose: the call is done, then the error. hang: no answer for ever.
    kill, kill after: this process dies before or after the call. `times` calls in a row are hit.
    """

    action: Action
    at: int = 1
    times: int = 1
    methods: frozenset[str] = frozenset()
    error: StoreError = field(default_factory=lambda: StoreUnavailable("scripted fault"))


class FaultyStore:
    """`store`, with faults by script. `calls` is the log of what was called, by name and number of rows."""

    def __init__(self, store: Store, script: Iterable[Fault] = ()) -> None:
        self._store = store
        self.script = list(script)
        self.calls: list[tuple[str, int]] = []

    @property
    def rows_per_call(self) -> int:
        """What the wrapped store says."""
        return self._store.rows_per_call

    async def _run(self, method: str, size: int, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append((method, size))
        fault = next((fault for fault in self.script if self._hits(fault, method)), None)
        if fault is None:
            return await call()
        match fault.action:
            case "fail":
                raise fault.error
            case "hang":
                await trio.sleep_forever()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        result = await call()
        if fault.action == "kill after":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.action == "lose":
            raise fault.error
        return result

    def _hits(self, fault: Fault, method: str) -> bool:
        if fault.methods and method not in fault.methods:
            return False
        count = sum(not fault.methods or name in fault.methods for name, _ in self.calls)
        return fault.at <= count < fault.at + fault.times

    async def info(self) -> CollectionInfo:
        """Describe the collection, or fail."""
        return await self._run("info", 0, self._store.info)

    async def get(self, ids: Collection[str]) -> dict[str, Row]:
        """Return rows, or fail."""
        return await self._run("get", len(ids), lambda: self._store.get(ids))

    async def existing(self, ids: Collection[str]) -> set[str]:
        """Return ids, or fail."""
        return await self._run("existing", len(ids), lambda: self._store.existing(ids))

    async def list_ids(self) -> list[str]:
        """Return every id, or fail."""
        return await self._run("list_ids", 0, self._store.list_ids)

    async def searches_all(self) -> bool:
        """Say what the wrapped store says, or fail."""
        return await self._run("searches_all", 0, self._store.searches_all)

    async def search(self, pattern: str) -> list[str]:
        """Search, or fail."""
        return await self._run("search", 0, lambda: self._store.search(pattern))

    async def tagged(self, key: str, value: str) -> list[str]:
        """Look for metadata, or fail."""
        return await self._run("tagged", 0, lambda: self._store.tagged(key, value))

    async def add(self, rows: Sequence[Row]) -> None:
        """Add rows, or fail."""
        await self._run("add", len(rows), lambda: self._store.add(rows))

    async def upsert(self, rows: Sequence[Row]) -> None:
        """Upsert rows, or fail."""
        await self._run("upsert", len(rows), lambda: self._store.upsert(rows))

    async def delete(self, ids: Collection[str]) -> None:
        """Delete rows, or fail."""
        await self._run("delete", len(ids), lambda: self._store.delete(ids))


def _conforms(memory: MemoryStore, faulty: FaultyStore) -> tuple[Store, Store]:
    """Checked by the type checker alone: both are stores."""
    return memory, faulty
