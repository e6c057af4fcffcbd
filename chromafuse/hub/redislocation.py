"""Where the shared cache is: a Redis by TCP, TLS or a Unix socket; and its password.

A location holds no secret, so it may be logged and handed to another process. The password is read whenever
a connection is made: from the password file when one is named, else from CHROMAFUSE_REDIS_PASSWORD.

Concurrency: values and pure functions, but for `read_password`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from ..errors import UsageError, UserError

PASSWORD_VARIABLE = "CHROMAFUSE_REDIS_PASSWORD"  # noqa: S105 - a variable's name
TTL = 7 * 24 * 3600  # s; a page that somebody reads comes back from the store in one call
VALUE_MAX = 8 << 20  # bytes of a page; a larger one would push hundreds of others out
TIMEOUT = 250  # ms to connect, and to begin an answer: a page from the store takes less
_PORT = 6379
_PASSWORD_MAX = 8_192  # bytes; more is not a password but the wrong file
_FORM = "redis[s]://[user@]host[:port][/database][?ca_file=F], or unix:///path[?db=N]"


@dataclass(frozen=True, slots=True)
class RedisLocation:
    """One Redis. `path` is absolute and belongs to "unix"; host and port to "tcp" and "tls"."""

    kind: Literal["tcp", "tls", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""
    database: int = 0
    username: str | None = None
    ca_file: str | None = None  # of "tls"; the system's authorities without it
    password_file: str | None = None

    def __str__(self) -> str:
        """The location as a person would write it."""
        if self.kind == "unix":
            return f"unix://{quote(self.path)}" + (f"?db={self.database}" if self.database else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "rediss" if self.kind == "tls" else "redis"
        return f"{scheme}://{host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The shared cache of a hub."""

    location: RedisLocation
    ttl: int = TTL  # s
    value_max: int = VALUE_MAX  # bytes
    timeout: int = TIMEOUT  # ms

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, for another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RedisSettings:
        """Return the settings that `to_json` described."""
        return cls(**{**values, "location": RedisLocation(**values["location"])})


def parse_redis(
    text: str, *, password_file: str | None = None, ca_file: str | None = None
) -> RedisLocation:
    """Return the location that a URL names; raise UsageError for what names none. Looks at no file.

    No message repeats the URL, since it may hold a secret in the wrong place.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _malformed() from None
    if parts.password is not None:
        raise UsageError(
            "a Redis URL takes no password, it would show in process lists; put it into a file and name that "
            f"with --redis-password-file, or set {PASSWORD_VARIABLE}"
        )
    if parts.fragment or "\0" in unquote(text) or any(map(str.isspace, text)):
        raise _malformed()
    secret = os.path.abspath(password_file) if password_file is not None else None
    if parts.scheme == "unix":
        return _unix(parts, secret)
    if parts.scheme not in ("redis", "rediss") or not host or port == 0:
        raise _malformed()
    options = _options(parts.query, ("ca_file",))
    authority = options.get("ca_file") or ca_file
    if authority and parts.scheme != "rediss":
        raise UsageError("a CA file goes with rediss:// only; redis:// is not encrypted")
    return RedisLocation(
        "tls" if parts.scheme == "rediss" else "tcp",
        host=host,
        port=port or _PORT,
        database=_database(parts.path[1:]),
        username=unquote(parts.username) if parts.username else None,
        ca_file=os.path.abspath(authority) if authority else None,
        password_file=secret,
    )


def _unix(parts: SplitResult, password_file: str | None) -> RedisLocation:
    path = unquote(parts.path)
    if parts.hostname or not path.strip("/"):
        raise _malformed()
    options = _options(parts.query, ("db",))
    return RedisLocation(
        "unix",
        path=path,
        database=_database(options.get("db", "")),
        username=unquote(parts.username) if parts.username else None,
        password_file=password_file,
    )


def _options(query: str, known: tuple[str, ...]) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _malformed() from None
    if not set(options) <= set(known) or "" in options.values():
        raise UsageError(f"after the ? of this Redis URL there can be {known[0]}=… only")
    return options


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 6):
        raise _malformed()
    return int(text or 0)


def _malformed() -> UsageError:
    return UsageError(f"the Redis URL is malformed; it is {_FORM}")


def read_password(location: RedisLocation, env: Mapping[str, str] = os.environ) -> str | None:
    """Return the password, None where there is none; raise UserError for one that cannot be used."""
    if location.password_file is None:
        return env.get(PASSWORD_VARIABLE) or None
    try:
        with open(location.password_file, "rb") as file:
            data = file.read(_PASSWORD_MAX + 1)
    except OSError as exc:
        raise UserError(
            f"cannot read the Redis password file {location.password_file}: {exc.strerror}"
        ) from exc
    try:
        password = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        password = ""
    if not password or len(data) > _PASSWORD_MAX or "\n" in password:
        raise UserError(
            f"{location.password_file} holds no password: one line of UTF-8 is expected"
        )
    return password
