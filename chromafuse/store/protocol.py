"""What the program asks of a store: rows by id, in one collection.

Two implementations, `embedded` and `server`, are held to one contract suite (tests/test_store.py).
Pages are fetched by id, never by metadata, which is 4-8 times faster in Chroma and works within every quota.
Searching is for finding out which pages need not be looked at, and only where it is known to miss nothing.

Concurrency: a store serves any number of trio tasks at once. A call is made of requests of at most
`rows_per_call` rows; one request is atomic and ends within the store's deadline, repetitions included, and
so does a call of one request. Every call may be cancelled; a cancelled or failed write may have happened,
in part when it was several requests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Scalar = str | int | float | bool
Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One stored record. `embedding` is needed for writing; it is never read back.

    Reading gives the scalar metadata only, and "" for a row that was stored without a document: others'
    rows may hold lists or no text, ours never do.
    """

    id: str
    document: str
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    embedding: Vector = ()


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What is known of the collection. A collection made anew under the same name has another `id`.

    `embedding_function` is the name Chroma stored ("default", "legacy", …), None where it stored none.
    """

    id: str
    name: str
    embedding_function: str | None
    dimension: int | None


class Store(Protocol):
    """One collection of one Chroma. All methods raise subclasses of `StoreError`."""

    @property
    def rows_per_call(self) -> int:
        """How many rows one request to this store carries now (longer calls are split into such batches)."""
        ...

    async def info(self) -> CollectionInfo:
        """Describe the collection; raise CollectionMissing where there is none."""
        ...

    async def get(self, ids: Collection[str]) -> dict[str, Row]:
        """Return the rows of `ids` that exist; a missing id is absent from the answer, never an error."""
        ...

    async def existing(self, ids: Collection[str]) -> set[str]:
        """Return those of `ids` that exist, without fetching documents."""
        ...

    async def list_ids(self) -> list[str]:
        """Return every id of the collection, in no particular order."""
        ...

    async def searches_all(self) -> bool:
        """Say whether `search` and `tagged` are known to look at every row, whatever is searched for.

        So it is with Chroma on SQLite. Distributed Chroma has an index that leaves things out.
        """
        ...

    async def search(self, pattern: str) -> list[str]:
        """Return the ids of all rows in whose document a regular expression (of Rust's kind) matches.

        One request, whatever the number of rows: it reads every document of the store.
        """
        ...

    async def tagged(self, key: str, value: str) -> list[str]:
        """Return the ids of all rows with this value in their metadata. One request."""
        ...

    async def add(self, rows: Sequence[Row]) -> None:
        """Write `rows`; an id that exists already is left as it is, silently."""
        ...

    async def upsert(self, rows: Sequence[Row]) -> None:
        """Write `rows`, replacing documents and the metadata keys that are named.

        Chroma merges metadata: a key that the new row lacks keeps its old value.
        """
        ...

    async def delete(self, ids: Collection[str]) -> None:
        """Remove `ids`; missing ones are ignored."""
        ...
