"""The store behind a Chroma server: its REST interface, version 2, over httpx.

Chroma's own client is not used: it has no timeouts, its asynchronous form does not verify TLS, and it
builds the embedding function that a collection names. Proxies from the environment are ignored, redirects
are not followed (they would carry the token elsewhere), answers are bounded and checked: what the answer
holds must be what was asked for, and a row said to be missing was missed twice.

Known limit: a server that carries only a page of ids in one answer is listed by limit and offset, which
skips rows when rows are deleted meanwhile. The count before and after must equal the length of the list,
or it is read again; a writer that deletes and adds equally many rows in between is not noticed, so callers
that decide by a listing hold the writer's lock.

Concurrency: any number of tasks; at most CONNECTIONS requests are under way (Chroma Cloud's own bound).
The binding of the name to an id and the batch size are shared and replaced whole.
"""

from __future__ import annotations

import itertools
import logging
import ssl
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

import httpx
import orjson
import trio

from ..errors import (
    CollectionMissing,
    StoreDenied,
    StoreError,
    StoreRejected,
    StoreUnavailable,
)
from .batching import (
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
from .retry import ATTEMPTS, pause_before, within

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Request = Callable[[Sequence[_T]], Awaitable[None]]

CONNECTIONS = 10  # Chroma Cloud: ten concurrent reads a collection
CLOUD_ROWS = 300  # Chroma Cloud: rows of one write, results of one read
SERVER_ROWS = 1_000  # rows of one request to a server that allows more than Cloud does
LIST_ROWS = 100_000  # ids in one unpaged answer; 5 MB
REFUSED_FOR = 1.5  # s that a refused connection is tried again: a server restarts within this
ANSWER_MAX = 256 << 20  # bytes
LISTINGS = 4  # times a listing is read before a collection counts as too busy to be listed
_TOO_MUCH = (413, 422)  # quota, payload; also a malformed row, which splitting isolates
_BUSY = (408, 425, 429, 503)


class _NotFound(Exception):
    """Status 404."""


class _TooMuch(StoreRejected):
    """A quota or size limit: fewer rows may pass."""


class _Busy(StoreUnavailable):
    """The server asks to come back later; it does so for as long as the deadline lets it."""


class _Body(httpx.AsyncByteStream):
    """A request's body in one piece. httpx's own is an asynchronous generator, which a cancelled request
    leaves behind unfinished; trio warns of each.
    """

    def __init__(self, data: bytes) -> None:
        self._parts = iter((data,))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration


class _Http:
    """Requests to one server: authentication, deadline, repetition, and statuses as exceptions."""

    def __init__(self, client: httpx.AsyncClient, label: str, deadline: float) -> None:
        self._client = client
        self._label = label
        self._deadline = deadline

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the decoded answer; end within the deadline, all repetitions included."""
        content = None if body is None else orjson.dumps(body)
        broken_since: float | None = None
        with within(self._deadline, self._label):
            for attempt in itertools.count(1):
                try:
                    return self._result(*await self._once(method, path, content))
                except httpx.TransportError as exc:
                    now = trio.current_time()
                    broken_since = broken_since or now
                    self._judge_transport(exc, now - broken_since)
                except _Busy:
                    broken_since = None
                except StoreUnavailable:
                    broken_since = None
                    if attempt >= ATTEMPTS:
                        raise
                # A connection that fails is tried often and not for long.
                await trio.sleep(pause_before(min(attempt, 2) if broken_since else attempt))
        raise AssertionError("unreachable: the loop returns or raises")

    async def _once(self, method: str, path: str, content: bytes | None) -> tuple[int, bytes]:
        request = self._client.build_request(method, path, content=content)
        if content is not None:
            request.stream = _Body(content)
        response = await self._client.send(request, stream=True)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise StoreError(f"{self._label}: an answer compressed without being asked for")
            if int(response.headers.get("content-length", 0)) > ANSWER_MAX:
                raise self._endless()
            data = bytearray()
            async for part in response.aiter_raw():
                data += part
                if len(data) > ANSWER_MAX:
                    raise self._endless()
            return response.status_code, bytes(data)
        finally:
            await response.aclose()

    def _endless(self) -> StoreError:
        return StoreError(f"{self._label}: an answer of over {ANSWER_MAX >> 20} MiB")

    def _judge_transport(self, exc: httpx.TransportError, broken_for: float) -> None:
        """Raise what a failed connection means, or return for another attempt."""
        cause = _cause(exc)
        reason = str(cause) or type(exc).__name__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise StoreUnavailable(
                f"{self._label}: its TLS certificate is not valid ({cause.verify_message})"
            ) from exc
        if broken_for >= REFUSED_FOR or isinstance(exc, httpx.UnsupportedProtocol):
            raise StoreUnavailable(f"{self._label}: {reason}") from exc

    def _result(self, status: int, data: bytes) -> Any:
        if 200 <= status < 300:
            try:
                return orjson.loads(data)
            except orjson.JSONDecodeError as exc:
                raise StoreError(
                    f"{self._label}: the answer is not JSON, so this is no Chroma"
                ) from exc
        reason = f"{self._label}: {_message(data)} (status {status})"
        if status in (401, 403):
            raise StoreDenied(reason)
        if status == 404:
            raise _NotFound(reason)
        if status in _TOO_MUCH:
            raise _TooMuch(reason)
        if status in _BUSY:
            raise _Busy(reason)
        if status >= 500:
            raise StoreUnavailable(reason)
        if 300 <= status < 400 or status == 410:
            raise StoreError(
                f"{self._label}: status {status}, so this is no Chroma of version 1 or later"
            )
        raise StoreRejected(reason)


def _cause(exc: BaseException) -> BaseException:
    """Return the error below httpx's wrappers that says most: the system's own, or TLS's."""
    best = exc
    below = exc.__cause__ or exc.__context__
    while below is not None:
        if isinstance(below, BaseExceptionGroup):
            below = below.exceptions[0]
        if isinstance(below, OSError) and str(below):
            best = below
        below = below.__cause__ or below.__context__
    return best


def _message(data: bytes) -> str:
    """Return the one line of an error answer that says what is wrong."""
    try:
        text = orjson.loads(data)["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = data[:200].decode(errors="replace")
    return " ".join(str(text).split())[:300] or "no reason given"


class ServerStore:
    """One collection of one Chroma server."""

    def __init__(self, http: _Http, location: StoreLocation, rows_per_call: int | None) -> None:
        self._http = http
        self._location = location
        self._rows = rows_per_call or CLOUD_ROWS
        self._ask_limit = (
            rows_per_call is None and not location.is_cloud
        )  # Cloud itself says too much
        self._whole_listing = False
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
        except (_NotFound, StoreRejected) as exc:
            await self._require_database()
            raise StoreRejected(str(exc)) from exc

    async def _require_database(self) -> None:
        try:
            await self._http.call("GET", self._base)
        except _NotFound as exc:
            raise StoreDenied(
                f"{self._location.url}: no database {self._location.database!r} "
                f"of tenant {self._location.tenant!r}"
            ) from exc

    async def _learn_limit(self) -> None:
        """Take larger batches where the server says it allows them."""
        try:
            answer = await self._http.call("GET", "/api/v2/pre-flight-checks")
            limit = int(answer["max_batch_size"])
        except (_NotFound, StoreRejected, KeyError, TypeError, ValueError):
            return  # an optional part of the interface
        self._rows = min(max(limit, 1), SERVER_ROWS)
        self._whole_listing = limit >= SERVER_ROWS

    async def info(self) -> CollectionInfo:
        """Describe the collection that has the name now."""
        name = self._location.collection
        try:
            found = await self._http.call("GET", f"{self._base}/collections/{quote(name, safe='')}")
        except _NotFound as exc:
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
        except _NotFound:
            await self.info()
        try:
            return await self._http.call(method, self._path(action), body)
        except _NotFound as exc:
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
            except _TooMuch:
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
        except _TooMuch:
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
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if token is not None:
        headers["x-chroma-token"] = token
    client = httpx.AsyncClient(
        base_url=location.url,
        headers=headers,
        verify=_trust(location),
        timeout=None,  # noqa: S113 - every request runs in a cancel scope with the whole deadline
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
    )
    async with client:
        store = ServerStore(_Http(client, location.url, deadline), location, rows)
        await store.open(create=create)
        yield store


def _trust(location: StoreLocation) -> ssl.SSLContext:
    """Return the system's certificates, SSL_CERT_FILE included; for plain http a context that trusts none."""
    return ssl.create_default_context() if location.tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
