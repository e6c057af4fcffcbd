"""The Redis client, and the one module that imports it: plain calls that end in time or raise CacheError.

Measured (4,248 pages, 43 MB, MGET of up to 256 keys, digests included): this client in a worker thread
answers all of it in 0.12 s, a hand-written one in 0.08 s; it is used as it is. It has no deadline for a whole
call: a server that sends a byte now and then is ended from another thread by `drop`.

Concurrency: after `prepare` any thread may call anything; connections come from a pool. The client is imported
there, since that costs 0.3 s and 11 MB, and a hub without a shared cache pays neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import CacheError, UserError
from .redislocation import PASSWORD_VARIABLE, RedisLocation, read_password

if TYPE_CHECKING:
    import redis

T = TypeVar("T")


class RedisServer:
    """One Redis. Every call raises CacheError where it gets no answer that can be used."""

    def __init__(
        self, location: RedisLocation, timeout: float, env: Mapping[str, str] = os.environ
    ) -> None:
        """`timeout`: seconds to connect, and from one byte of an answer to the next."""
        self._location = location
        self._timeout = timeout
        self._env = env

    def prepare(self) -> None:
        """Import the client and set it up; connects to nothing, and raises nothing."""
        _ = self._client

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of `keys`, in order; None for what is absent, or is no string."""
        values = self._call(lambda client: client.mget(keys))
        if not isinstance(values, list) or len(values) != len(keys):
            raise CacheError(f"{self._location}: an answer that is not Redis's")
        return [value if isinstance(value, bytes) else None for value in values]

    def put(self, values: Mapping[str, bytes], ttl: int) -> str:
        """Set `values`, each for `ttl` seconds; return why some were not taken, "" where all were."""

        def put(client: redis.Redis) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for key, value in values.items():
                pipeline.set(key, value, ex=ttl)
            return pipeline.execute(raise_on_error=False)

        refused = [answer for answer in self._call(put) if isinstance(answer, Exception)]
        return _said(refused[0]) if refused else ""

    def drop(self) -> None:
        """Close every connection, those in use too: their calls end with CacheError."""
        self._client.connection_pool.disconnect(inuse_connections=True)

    def _call(self, work: Callable[[redis.Redis], T]) -> T:
        try:
            return work(self._client)
        except UserError as exc:  # of the password
            raise CacheError(str(exc)) from exc
        except Exception as exc:
            # Also what the client's parser raises when something else than Redis answers: anything.
            raise CacheError(f"{self._location}: {_said(exc)}") from exc

    @cached_property
    def _client(self) -> redis.Redis:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options: dict[str, Any] = {
            "db": self._location.database,
            "socket_timeout": self._timeout,
            "socket_connect_timeout": self._timeout,
            "retry": Retry(NoBackoff(), 0),  # whether to try again is for the caller
            "protocol": 2,
        }
        location = self._location
        if location.password_file or location.username or self._env.get(PASSWORD_VARIABLE):
            options["credential_provider"] = _credentials(location, self._env)
        return redis.Redis(connection_pool=redis.ConnectionPool(**_where(location), **options))


def _where(location: RedisLocation) -> dict[str, Any]:
    import redis

    if location.kind == "unix":
        return {"connection_class": redis.UnixDomainSocketConnection, "path": location.path}
    where: dict[str, Any] = {
        "host": location.host,
        "port": location.port,
        "socket_keepalive": True,
    }
    if location.kind == "tls":
        where |= {
            "connection_class": redis.SSLConnection,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_certs": location.ca_file,
        }
    return where


def _credentials(location: RedisLocation, env: Mapping[str, str]) -> redis.CredentialProvider:
    import redis

    class Credentials(redis.CredentialProvider):
        """Reads the password for each connection, so that a new one needs no new mount."""

        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            password = read_password(location, env) or ""
            return (location.username, password) if location.username else (password,)

    return Credentials()


def _said(exc: Exception) -> str:
    """Return what an exception says, for a log: one line of bounded length."""
    return " ".join(f"{type(exc).__name__}: {exc}".split())[:200]
