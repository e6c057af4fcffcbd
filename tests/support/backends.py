"""The stores that the contract suite runs on, each behind the same few words.

A backend opens its store as the program does and can replace or remove the collection behind its back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import trio

from chromafuse.store.location import StoreLocation, open_store, parse_store
from chromafuse.store.protocol import Store
from tests.support.chroma_server import ChromaServer
from tests.support.memory_store import MemoryStore
from tests.support.quota_proxy import QuotaProxy

Body = Callable[[Store], Awaitable[None]]

_ADMIN = """
import sys, chromadb_rust_bindings as engine
path, collection, action = sys.argv[1:]
where = ("default_tenant", "default_database")
config = engine.SqliteDBConfig(hash_type=engine.MigrationHash.MD5,
    migration_mode=engine.MigrationMode.Apply, url=path + "/chroma.sqlite3")
store = engine.Bindings(allow_reset=False, sqlite_db_config=config, persist_path=path, hnsw_cache_size=9)
store.delete_collection(collection, *where)
if action == "recreate":
    store.create_collection(collection, None, None, None, False, *where)
"""


class Backend(Protocol):
    """One collection, and who opens it."""

    name: str

    def open(
        self, *, create: bool = True, rows_per_call: int | None = None
    ) -> AbstractAsyncContextManager[Store]: ...

    def recreate(self) -> None:
        """Remove the collection and make one of the same name."""

    def remove(self) -> None:
        """Remove the collection."""


def run(
    backend: Backend, body: Body, *, create: bool = True, rows_per_call: int | None = None
) -> None:
    """Open the backend's store and run `body` on it."""

    async def main() -> None:
        async with backend.open(create=create, rows_per_call=rows_per_call) as store:
            await body(store)

    trio.run(main)


class MemoryBackend:
    """The fake."""

    name = "memory"

    def __init__(self) -> None:
        self._store = MemoryStore()

    @asynccontextmanager
    async def open(
        self, *, create: bool = True, rows_per_call: int | None = None
    ) -> AsyncIterator[Store]:
        if rows_per_call is not None:
            self._store = MemoryStore(rows_per_call=rows_per_call)
        yield self._store

    def recreate(self) -> None:
        self._store.recreate()

    def remove(self) -> None:
        self._store.remove()


class _Real:
    location: StoreLocation

    def open(
        self, *, create: bool = True, rows_per_call: int | None = None
    ) -> AbstractAsyncContextManager[Store]:
        return open_store(self.location, create=create, rows_per_call=rows_per_call)


class EmbeddedBackend(_Real):
    """A directory."""

    name = "embedded"

    def __init__(self, directory: Path, collection: str) -> None:
        self.location = parse_store(str(directory), collection=collection)

    def recreate(self) -> None:
        self._admin("recreate")

    def remove(self) -> None:
        self._admin("remove")

    def _admin(self, action: str) -> None:
        subprocess.run(
            [sys.executable, "-c", _ADMIN, self.location.path, self.location.collection, action],
            check=True,
            timeout=30,
        )


class ServerBackend(_Real):
    """A server, reached directly or through the quota proxy."""

    name = "server"

    def __init__(
        self,
        server: ChromaServer,
        collection: str,
        proxy: QuotaProxy | None = None,
        token_file: Path | None = None,
    ) -> None:
        self._server = server
        if proxy is not None:
            self.name = "cloud"
        url = server.url if proxy is None else proxy.url
        self.location = parse_store(url, collection=collection, token_file=token_file, env={})

    def recreate(self) -> None:
        self.remove()
        self._admin("POST", "", {"name": self.location.collection})

    def remove(self) -> None:
        self._admin("DELETE", f"/{self.location.collection}")

    def _admin(self, method: str, path: str, body: object = None) -> None:
        request = urllib.request.Request(
            f"{self._server.url}/api/v2/tenants/default_tenant/databases/default_database/collections{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=10):
            pass
