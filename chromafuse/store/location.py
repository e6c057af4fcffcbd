"""What a STORE is: a directory with an embedded Chroma, or a server's URL; and opening it.

A location holds no secret, so it may be logged and handed to another process. The token is read where the
store is opened: from the token file when one is named, else from CHROMAFUSE_STORE_TOKEN, else from
CHROMA_API_KEY.

Concurrency: values and pure functions, but for `open_store`.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from ..errors import UsageError, UserError
from .protocol import Store

DEADLINE = 10.0  # s; a reader of the mount waits at most this long for one request
DEFAULT_COLLECTION = "docs"
DEFAULT_TENANT = "default_tenant"
DEFAULT_DATABASE = "default_database"
CLOUD_DOMAIN = "trychroma.com"
_TOKEN_VARIABLES = ("CHROMAFUSE_STORE_TOKEN", "CHROMA_API_KEY")
_TOKEN_MAX = 8_192  # bytes; more is not a token but the wrong file
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}
# Chroma's own rule for collections; tenants and databases are as free as a path segment of a URL may be.
_COLLECTION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,510}[a-zA-Z0-9]")
_NAME = re.compile(r"[\w.@+~-]+")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where one collection is. `path` is absolute and belongs to "embedded"; host, port, tls to "server"."""

    kind: Literal["embedded", "server"]
    collection: str = DEFAULT_COLLECTION
    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False
    tenant: str = DEFAULT_TENANT
    database: str = DEFAULT_DATABASE
    token_file: str | None = None

    def __str__(self) -> str:
        """The location as a person would write it."""
        return self.path if self.kind == "embedded" else f"{self.url}/{self.tenant}/{self.database}"

    @property
    def url(self) -> str:
        """Scheme, host and port of a server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def is_cloud(self) -> bool:
        """Whether this is Chroma Cloud, whose limits are lower than what its server says of itself."""
        return self.host == CLOUD_DOMAIN or self.host.endswith("." + CLOUD_DOMAIN)

    def to_json(self) -> dict[str, Any]:
        """Return the location as JSON values, for another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StoreLocation:
        """Return the location that `to_json` described."""
        return cls(**values)


def parse_store(
    text: str,
    *,
    collection: str = DEFAULT_COLLECTION,
    token_file: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] = os.environ,
) -> StoreLocation:
    """Return the location that STORE names; raise UsageError for what names none. Looks at no file."""
    if not _COLLECTION.fullmatch(collection):
        raise UsageError(
            f"{collection!r} is no name of a collection: 3 to 512 letters, digits, '.', '_' or '-', "
            "the first and the last a letter or digit"
        )
    secret = os.path.abspath(token_file) if token_file is not None else None
    if "://" in text:
        return _parse_url(text, collection, secret, env)
    if "/" not in text and "." not in text:
        raise UsageError(
            f"{text!r} is not a store: give a directory (./{text or 'DIR'}), http(s)://host:port, "
            "or a name from the configuration file"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "the path of an embedded store must be UTF-8; rename the directory"
        ) from None
    if "\0" in text:
        raise UsageError("the path of an embedded store has a NUL in it")
    return StoreLocation("embedded", collection, path=os.path.abspath(text))


def _parse_url(
    text: str, collection: str, token_file: str | None, env: Mapping[str, str]
) -> StoreLocation:
    scheme = text.partition("://")[0].lower()
    if scheme not in _PORTS:
        raise UsageError(f"a store's URL begins with http:// or https://, not {scheme}://")
    host, port, parts = _split(text)
    names = [unquote(name) for name in parts.path.strip("/").split("/") if name]
    if len(names) not in (0, 2) or not all(_NAME.fullmatch(name) for name in names):
        raise UsageError("a store's URL ends after the port or after /tenant/database")
    tenant, database = names or (
        env.get("CHROMA_TENANT") or DEFAULT_TENANT,
        env.get("CHROMA_DATABASE") or DEFAULT_DATABASE,
    )
    if not (_NAME.fullmatch(tenant) and _NAME.fullmatch(database)):
        raise UsageError("CHROMA_TENANT and CHROMA_DATABASE must be plain names")
    return StoreLocation(
        "server",
        collection,
        host=host,
        port=port or _PORTS[scheme],
        tls=scheme == "https",
        tenant=tenant,
        database=database,
        token_file=token_file,
    )


def _split(text: str) -> tuple[str, int | None, SplitResult]:
    """Take a URL apart; no message repeats it, since it may hold a secret in the wrong place."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError(
            "the store's URL is malformed; it is http(s)://host:port[/tenant/database]"
        ) from None
    if "@" in parts.netloc or "?" in text or "#" in text:
        raise UsageError(
            "a store's URL takes no user, password or query, they would show in process lists; "
            "put the token into a file and name it with --store-token-file"
        )
    if not host or any(character.isspace() for character in text) or port == 0:
        raise UsageError(
            "the store's URL is malformed; it is http(s)://host:port[/tenant/database]"
        )
    return host, port, parts


def read_token(location: StoreLocation, env: Mapping[str, str] = os.environ) -> str | None:
    """Return the server's token, None where there is none; raise UserError for one that cannot be used."""
    token, source = _find_token(location, env)
    if token is None:
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"{source} holds no token: one line of printable ASCII is expected")
    if not location.tls and location.host not in _LOCAL_HOSTS:
        raise UserError(
            f"the token from {source} would travel unencrypted to {location.host}; "
            "use https://, or leave the token out"
        )
    return token


def _find_token(location: StoreLocation, env: Mapping[str, str]) -> tuple[str | None, str]:
    if location.token_file is not None:
        try:
            with open(location.token_file, "rb") as file:
                data = file.read(_TOKEN_MAX + 1)
        except OSError as exc:
            raise UserError(
                f"cannot read the token file {location.token_file}: {exc.strerror}"
            ) from exc
        token = data.decode("latin-1").strip() if len(data) <= _TOKEN_MAX else ""
        return token, location.token_file
    for name in _TOKEN_VARIABLES:
        if env.get(name):
            return env[name].strip(), name
    return None, ""


@asynccontextmanager
async def open_store(
    location: StoreLocation,
    *,
    create: bool = False,
    deadline: float = DEADLINE,
    rows_per_call: int | None = None,
) -> AsyncIterator[Store]:
    """Open the collection at `location`. Without `create` nothing is made, whatever is missing.

    Raises StoreMissing, CollectionMissing and the other StoreErrors here already, not at the first use.
    """
    # Imported here because the command line needs locations only, and httpx costs 70 ms.
    if location.kind == "embedded":
        from .embedded import open_embedded

        async with open_embedded(
            location, create=create, deadline=deadline, rows=rows_per_call
        ) as embedded:
            yield embedded
    else:
        from .server import open_server

        async with open_server(
            location, read_token(location), create=create, deadline=deadline, rows=rows_per_call
        ) as server:
            yield server
