"""The store behind a Chroma server, version 2 of its REST interface (rest.py sends the requests).

What an answer holds must be what was asked for, and a row said to be missing beside others that were found
was missed twice: an answer cut off by a limit never passes for a short one.

Known limit: a server that carries only a page of ids in one answer is listed by limit and offset, which
skips rows when rows are deleted meanwhile. The count before and after must equal the length of the list,
or it is read again; a writer that deletes and adds equally many rows in between is not noticed, so callers
that decide by a listing hold the writer's lock.

Concurrency: any number of tasks. The binding of the name to an id and the batch size are shared and
replaced whole.
"""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import trio

from ..errors import CollectionMissing, StoreDenied, StoreError, StoreRejected
from .batching import (
    WRITE_ROWS,
    check_rows,
    embedding_function_of,
    first_of_each,
    last_of_each,
    row_batches,
    scalars,
    unique,
)
from .location import StoreLocation
from .protocol import CollectionInfo, Row
from .rest import Http, NotFound, TooMuch, open_http
from .retry import pause_before

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Request = Callable[[Sequence[_T]], Awaitable[None]]

CLOUD_ROWS = 300  # Chroma Cloud: rows of one write, results of one read
SERVER_ROWS = 1_000  # rows of one request to a server that allows more than Cloud does
LIST_ROWS = 100_000  # ids in one unpaged answer; 5 MB
LISTINGS = 4  # times a listing is read before a collection counts as too busy to be listed


class ServerStore:
    """One collection of one Chroma server."""

    def __init__(self, http: Http, location: StoreLocation, rows_per_call: int | None) -> None:
        self._http = http
        self._location = location
        self._rows = rows_per_call or CLOUD_ROWS
        self._ask_limit = (
            rows_per_call is None and not location.is_cloud
        )  # Cloud itself says too much
        self._whole_listing = False
        self._sqlite: bool | None = None  # whether the server is on SQLite; None: not asked yet
        self._base = (
            f"/api/v2/tenants/{quote(location.tenant, safe='')}"
            f"/databases/{quote(location.database, safe='')}"
        )
        self._id = ""

    @property
    def rows_per_call(self) -> int:
        """How many rows one request carries now; a quota error lowers it."""
        return self._rows

    async def open(self, *, create: bool) -> None:
        """Find the collection, make it where `create` says so, and learn the server's limit."""
        if create:
            await self._create()
        await self.info()
        if self._ask_limit:
            await self._learn_limit()

    async def _create(self) -> None:
        body = {
            "name": self._location.collection,
            "get_or_create": True,
            "configuration": {"embedding_function": None},
        }
        try:
            await self._http.call("POST", f"{self._base}/collections", body)
        except (NotFound, StoreRejected) as exc:
            await self._require_database()
            raise StoreRejected(str(exc)) from exc

    async def _require_database(self) -> None:
        try:
            await self._http.call("GET", self._base)
        except NotFound as exc:
            raise StoreDenied(
                f"{self._location.url}: no database {self._location.database!r} "
                f"of tenant {self._location.tenant!r}"
            ) from exc

    async def _learn_limit(self) -> None:
        """Take larger batches where the server says it allows them."""
        limit = await self._ask_largest_batch()
        if limit is not None:
            self._rows = min(max(limit, 1), SERVER_ROWS)
            self._whole_listing = limit >= SERVER_ROWS
            self._sqlite = limit == WRITE_ROWS

    async def _ask_largest_batch(self) -> int | None:
        """Return how many rows the server says one write may have; None where it does not say."""
        try:
            answer = await self._http.call("GET", "/api/v2/pre-flight-checks")
            return int(answer["max_batch_size"])
        except (NotFound, StoreRejected, KeyError, TypeError, ValueError):
            return None  # an optional part of the interface

    async def info(self) -> CollectionInfo:
        """Describe the collection that has the name now."""
        name = self._location.collection
        try:
            found = await self._http.call("GET", f"{self._base}/collections/{quote(name, safe='')}")
        except NotFound as exc:
            await self._require_database()
            raise CollectionMissing(f"{self._location}: it has no collection {name!r}") from exc
        if not isinstance(found, dict) or not isinstance(found.get("id"), str):
            raise self._odd("a collection without an id")
        self._id = found["id"]
        return CollectionInfo(
            id=self._id,
            name=name,
            embedding_function=embedding_function_of(
                found.get("configuration_json"), found.get("schema")
            ),
            dimension=found.get("dimension"),
        )

    def _odd(self, what: str) -> StoreError:
        return StoreError(f"{self._location.url}: the answer makes no sense: {what}")

    async def _call(self, method: str, action: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call the collection by its id; once more when it was made anew meanwhile."""
        try:
            return await self._http.call(method, self._path(action), body)
        except NotFound:
            await self.info()
        try:
            return await self._http.call(method, self._path(action), body)
        except NotFound as exc:
            raise CollectionMissing(str(exc)) from exc

    def _path(self, action: str) -> str:
        return f"{self._base}/collections/{quote(self._id, safe='')}/{action}"

    # -- reading ------------------------------------------------------------------------------------

    async def get(self, ids: Collection[str]) -> dict[str, Row]:
        """Return the rows of `ids` that exist."""
        rows: dict[str, Row] = {}

        async def fetch(batch: Sequence[str]) -> None:
            rows.update(await self._get_confirmed(batch))

        await self._in_batches(unique(ids), fetch)
        return rows

    async def _get_confirmed(self, batch: Sequence[str]) -> dict[str, Row]:
        """Ask again for what is missing of a partial answer: it may have been cut off by a limit."""
        rows = await self._get(batch)
        last = rows
        while last and len(rows) < len(batch):
            last = await self._get([id for id in batch if id not in rows])
            rows |= last
        return rows

    async def _get(self, batch: Sequence[str]) -> dict[str, Row]:
        got = await self._call("POST", "get", {"ids": batch, "include": ["documents", "metadatas"]})
        ids = self._ids_of(got, batch)
        documents, metadatas = got.get("documents"), got.get("metadatas")
        if not (_is_list(documents, len(ids)) and _is_list(metadatas, len(ids))):
            raise self._odd("ids, documents and metadata differ in number")
        return {
            id: self._row(id, document, metadata)
            for id, document, metadata in zip(ids, documents, metadatas, strict=True)
        }

    def _row(self, id: str, document: Any, metadata: Any) -> Row:
        if not isinstance(document, str | None) or not isinstance(metadata, dict | None):
            raise self._odd("a row of wrong types")
        return Row(id, document or "", scalars(metadata))

    def _ids_of(self, got: Any, asked: Iterable[str] | None) -> list[str]:
        ids = got.get("ids") if isinstance(got, dict) else None
        if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
            raise self._odd("no list of ids")
        if len(set(ids)) != len(ids):
            raise self._odd("an id twice")
        if asked is not None and not set(ids) <= set(asked):
            raise self._odd("rows that were not asked for")
        return ids

    async def existing(self, ids: Collection[str]) -> set[str]:
        """Return those of `ids` that exist."""
        found: set[str] = set()

        async def ask(batch: Sequence[str]) -> None:
            missing = list(batch)
            while missing:
                got = self._ids_of(
                    await self._call("POST", "get", {"ids": missing, "include": []}), missing
                )
                found.update(got)
                if not got or len(got) == len(missing):
                    return
                missing = [id for id in missing if id not in found]

        await self._in_batches(unique(ids), ask)
        return found

    async def list_ids(self) -> list[str]:
        """Return every id; see the module's known limit for servers that page."""
        for attempt in range(1, LISTINGS + 1):
            before = await self._count()
            ids = await self._list(before)
            if len(ids) == before == await self._count():
                return ids
            await trio.sleep(pause_before(attempt))
        raise StoreError(
            f"{self._location.url}: the list of ids is incomplete or changes all the time"
        )

    async def searches_all(self) -> bool:
        """Say whether the server keeps its texts in SQLite: its largest batch is then one of SQLite's limits."""
        if self._sqlite is None:
            limit = None if self._location.is_cloud else await self._ask_largest_batch()
            self._sqlite = limit == WRITE_ROWS
        return self._sqlite

    async def search(self, pattern: str) -> list[str]:
        """Return the ids of the rows in whose document a regular expression matches."""
        return await self._find({"where_document": {"$regex": pattern}})

    async def tagged(self, key: str, value: str) -> list[str]:
        """Return the ids of the rows with this value in their metadata."""
        return await self._find({"where": {key: value}})

    async def _find(self, condition: Mapping[str, Any]) -> list[str]:
        return self._ids_of(await self._call("POST", "get", {"include": [], **condition}), None)

    async def _count(self) -> int:
        count = await self._call("GET", "count")
        if not isinstance(count, int):
            raise self._odd("a count that is no number")
        return count

    async def _list(self, expected: int) -> list[str]:
        page = LIST_ROWS if self._whole_listing else self._rows
        ids: dict[str, None] = {}
        while True:
            body = {"include": [], "limit": page, "offset": len(ids)}
            try:
                got = self._ids_of(await self._call("POST", "get", body), None)
            except TooMuch:
                if page == 1:
                    raise
                self._whole_listing = False
                page = CLOUD_ROWS if page > CLOUD_ROWS else (page + 1) // 2
                continue
            known = len(ids)
            ids.update(dict.fromkeys(got))
            if len(ids) == known or len(ids) >= expected:
                return list(ids)

    async def _in_batches(self, ids: Sequence[str], do: _Request[str]) -> None:
        rest = ids
        while rest:
            batch, rest = rest[: self._rows], rest[self._rows :]
            await self._split(batch, do)

    async def _split(self, batch: Sequence[_T], do: _Request[_T]) -> None:
        """Do the batch, in smaller pieces where the server finds it too large.

        The smaller size is kept once all pieces went through: then it was the number of rows. A piece of
        one row that is refused is a refusal.
        """
        try:
            await do(batch)
        except TooMuch:
            if len(batch) == 1:
                raise
        else:
            return
        smaller = CLOUD_ROWS if len(batch) > CLOUD_ROWS else (len(batch) + 1) // 2
        for start in range(0, len(batch), smaller):
            await self._split(batch[start : start + smaller], do)
        if smaller < self._rows:
            log.info("%s: at most %d rows a request from now on", self._location.url, smaller)
            self._rows = smaller
            self._whole_listing = False

    # -- writing ------------------------------------------------------------------------------------

    async def add(self, rows: Sequence[Row]) -> None:
        """Write the rows whose ids are new."""
        await self._write("add", first_of_each(rows))

    async def upsert(self, rows: Sequence[Row]) -> None:
        """Write the rows, replacing what exists."""
        await self._write("upsert", last_of_each(rows))

    async def _write(self, action: str, rows: Sequence[Row]) -> None:
        check_rows(rows)

        async def write(batch: Sequence[Row]) -> None:
            await self._call(
                "POST",
                action,
                {
                    "ids": [row.id for row in batch],
                    "embeddings": [row.embedding for row in batch],
                    "metadatas": [dict(row.metadata) or None for row in batch],
                    "documents": [row.document for row in batch],
                },
            )

        for batch in row_batches(rows, lambda: self._rows):
            await self._split(batch, write)

    async def delete(self, ids: Collection[str]) -> None:
        """Remove `ids`."""

        async def remove(batch: Sequence[str]) -> None:
            await self._call("POST", "delete", {"ids": batch})

        await self._in_batches(unique(ids), remove)


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


@asynccontextmanager
async def open_server(
    location: StoreLocation, token: str | None, *, create: bool, deadline: float, rows: int | None
) -> AsyncIterator[ServerStore]:
    """Open the collection on a server; with `create`, make the collection where it is missing."""
    async with open_http(location, token, deadline) as http:
        store = ServerStore(http, location, rows)
        await store.open(create=create)
        yield store
