"""Requests to a Chroma server's REST interface: the connection, its deadline, and what answers mean.

Chroma's own client is not used: it has no timeouts, its asynchronous form does not verify TLS, and it
builds the embedding function that a collection names. Proxies from the environment are ignored, redirects
are not followed (they would carry the token elsewhere), answers are bounded. No message holds the token.

Concurrency: any number of tasks; at most CONNECTIONS requests are under way (Chroma Cloud's own bound).
"""

from __future__ import annotations

import itertools
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import trio

from ..errors import StoreDenied, StoreError, StoreRejected, StoreUnavailable
from .location import StoreLocation
from .retry import ATTEMPTS, pause_before, within

CONNECTIONS = 10  # Chroma Cloud: ten concurrent reads a collection
REFUSED_FOR = 1.5  # s that a broken connection is tried again: a server restarts within this
ANSWER_MAX = 256 << 20  # bytes
_TOO_MUCH = (413, 422)  # quota, payload; also a malformed row, which splitting isolates
_BUSY = (408, 425, 429, 503)


class NotFound(Exception):
    """Status 404."""


class TooMuch(StoreRejected):
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


class Http:
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
        reason = _reason(cause) or type(exc).__name__
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
            raise NotFound(reason)
        if status in _TOO_MUCH:
            raise TooMuch(reason)
        if status in _BUSY:
            raise _Busy(reason)
        if status >= 500:
            raise StoreUnavailable(reason)
        if 300 <= status < 400 or status == 410:
            raise StoreError(
                f"{self._label}: status {status}, so this is no Chroma of version 1 or later"
            )
        raise StoreRejected(reason)


def _reason(cause: BaseException) -> str:
    """Return what the system says, without the address that is in the message already."""
    if isinstance(cause, ConnectionError | TimeoutError) and cause.errno:
        return os.strerror(cause.errno)
    if isinstance(cause, socket.gaierror):
        return cause.strerror or str(cause)
    return str(cause)


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


@asynccontextmanager
async def open_http(
    location: StoreLocation, token: str | None, deadline: float
) -> AsyncIterator[Http]:
    """Give a client of the server at `location`; nothing is sent yet."""
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
        yield Http(client, location.url, deadline)


def _trust(location: StoreLocation) -> ssl.SSLContext:
    """Return the system's certificates, SSL_CERT_FILE included; for plain http a context that trusts none."""
    return ssl.create_default_context() if location.tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
