"""The child process that holds an embedded Chroma: `python -m chromafuse.store.worker`, started by child.py.

It is the only process that loads Chroma's engine, since that can crash, panic or hang for minutes: it is
killed at the parent's deadline and started anew. It talks to the engine's bindings, one layer below the
`chromadb` package: that layer never looks at the embedding function stored with a collection (a poisoned one
runs code in the client, CVE-2026-45829), has no telemetry, reads no `.env`, and starts in 0.1 s, not 0.9 s.

Frames on descriptor 0, a socket, both ways: 4 bytes of length, then JSON. One request, one reply, in turn:

    {"op": "open", "path", "collection", "tenant", "database", "create"}   first, before the others
    {"op": "get", "ids", "rows": bool} {"op": "list"} {"op": "info"} {"op": "delete", "ids"}
    {"op": "search", "text" | "metadata": condition}                       ids of rows, in Chroma's words
    {"op": "add" | "upsert", "ids", "embeddings", "metadatas", "documents"}
    {"op": "embed", "texts"}                                               needs no open store
    -> {"ok": …} | {"error": kind, "message": text}

Concurrency: one thread, serial. It ends at end of file and with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

LENGTH = struct.Struct(">I")
MODEL_DIR = Path("~/.cache/chroma/onnx_models/all-MiniLM-L6-v2/onnx")
_PR_SET_PDEATHSIG = 1
_HNSW_FILES = 128  # index files the engine may keep open; we never ask it for vectors

# What SQLite and the engine say -> what a person needs to hear. The first match counts.
_EXPLAINED = (
    (
        "readonly database",
        "denied",
        "it cannot be written, and Chroma writes even when it only reads",
    ),
    ("unable to open database", "denied", "it cannot be opened; look at its owner and permissions"),
    ("Permission denied", "denied", "it cannot be opened; look at its owner and permissions"),
    ("not a database", "failed", "chroma.sqlite3 is not a SQLite database"),
    ("malformed", "failed", "chroma.sqlite3 is damaged"),
    ("database is locked", "unavailable", "another process holds its lock"),
    ("no space left", "failed", "the disk is full"),
    ("database or disk is full", "failed", "the disk is full"),
    (
        "unapplied migrations",
        "failed",
        "an older version of Chroma wrote it; an ingest upgrades it",
    ),
    ("migration", "failed", "it was written by another version of Chroma"),
    ("no such column", "failed", "it was written by another version of Chroma"),
    ("no such table", "failed", "it was written by another version of Chroma"),
)
_REJECTIONS = (
    "InvalidArgumentError",
    "BatchSizeExceededError",
    "DuplicateIDError",
    "ValueError",
    "TypeError",
)


class _Failure(Exception):
    """A reply of another kind than "ok"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Engine:
    """One collection of one store directory, bound by id."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._path = Path(request["path"])
        self._name: str = request["collection"]
        self._where = (request["tenant"], request["database"])
        create: bool = request["create"]
        self._make_directory(create)
        self._bindings = _bindings(self._path, migrate=create)
        self._id = ""
        self._resolve(create)

    def _make_directory(self, create: bool) -> None:
        """Chroma would create whatever path it is given, also a mistyped one."""
        if create:
            try:
                self._path.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise _Failure("denied", f"it cannot be created: {exc.strerror}") from exc
        elif not (self._path / "chroma.sqlite3").is_file():
            raise _Failure("no store", "it is not a Chroma directory (no chroma.sqlite3 in it)")

    def _resolve(self, create: bool = False) -> Any:
        """Look the collection up by its name and bind to its id."""
        if create:
            configuration = orjson.dumps({"embedding_function": None}).decode()
            found = self._bindings.create_collection(
                self._name, configuration, None, None, True, *self._where
            )
        else:
            try:
                found = self._bindings.get_collection(self._name, *self._where)
            except Exception as exc:
                if type(exc).__name__ == "NotFoundError":
                    raise _Failure("no collection", f"it has no collection {self._name!r}") from exc
                raise
        self._id = str(found.id)
        return found

    def _bound(self, call: Callable[[str], Any]) -> Any:
        """Run `call` with the collection's id; once more when the collection was made anew meanwhile."""
        try:
            return call(self._id)
        except Exception as exc:
            if type(exc).__name__ != "NotFoundError":
                raise
        self._resolve()
        return call(self._id)

    def info(self) -> dict[str, Any]:
        """Describe the collection that has the name now."""
        found = self._resolve()
        return {
            "id": self._id,
            "name": self._name,
            "configuration": found.configuration,
            "schema": found.schema,
            "dimension": found.dimension,
        }

    def get(self, ids: list[str] | None, rows: bool) -> dict[str, Any]:
        """Return rows, or ids alone, of `ids` or of everything."""
        include = ["documents", "metadatas"] if rows else []
        got = self._bound(
            lambda id: self._bindings.get(id, ids, None, None, 0, None, include, *self._where)
        )
        if not rows:
            return {"ids": got.ids}
        return {"ids": got.ids, "documents": got.documents, "metadatas": got.metadatas}

    def search(self, text: Any, metadata: Any) -> dict[str, Any]:
        """Return the ids of the rows that fulfil a condition."""
        where, where_document = (
            None if c is None else orjson.dumps(c).decode() for c in (metadata, text)
        )
        got = self._bound(
            lambda id: self._bindings.get(
                id, None, where, None, 0, where_document, [], *self._where
            )
        )
        return {"ids": got.ids}

    def write(self, request: dict[str, Any]) -> None:
        """Add or upsert the rows of `request`."""
        ids = request["ids"]
        rest = (
            request["embeddings"],
            request["metadatas"],
            request["documents"],
            None,
            *self._where,
        )
        if request["op"] == "add":
            self._bound(lambda id: self._bindings.add(ids, id, *rest))
        else:
            self._bound(lambda id: self._bindings.upsert(id, ids, *rest))

    def delete(self, ids: list[str]) -> None:
        """Remove `ids`."""
        self._bound(lambda id: self._bindings.delete(id, ids, None, None, None, *self._where))


def _bindings(path: Path, *, migrate: bool) -> Any:
    """Open the engine on `path`; this waits for other processes' locks, and for write permission.

    Only a writer upgrades an older store, since the Chroma that made it cannot open it afterwards.
    """
    import chromadb_rust_bindings as engine  # type: ignore[import-untyped]

    try:
        modes = engine.MigrationMode
        return engine.Bindings(
            allow_reset=False,
            sqlite_db_config=engine.SqliteDBConfig(
                hash_type=engine.MigrationHash.MD5,
                migration_mode=modes.Apply if migrate else modes.Validate,
                url=str(path / "chroma.sqlite3"),
            ),
            persist_path=str(path),
            hnsw_cache_size=_HNSW_FILES,
        )
    except (AttributeError, TypeError) as exc:
        version = metadata.version("chromadb")
        raise _Failure("failed", f"chromadb {version} is not a version this program knows") from exc


class Worker:
    """The requests of one parent, answered in turn."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._embedding: Any = None

    def answer(self, request: dict[str, Any]) -> Any:
        """Do what `request` asks and return what goes under "ok"."""
        op = request["op"]
        if op == "open":
            self._engine = Engine(request)
            return None
        if op == "embed":
            return self._embed(request["texts"])
        assert self._engine is not None, "the first request opens the store"
        match op:
            case "get":
                return self._engine.get(request["ids"], request["rows"])
            case "list":
                return self._engine.get(None, rows=False)
            case "search":
                return self._engine.search(request.get("text"), request.get("metadata"))
            case "info":
                return self._engine.info()
            case "delete":
                return self._engine.delete(request["ids"])
            case "add" | "upsert":
                return self._engine.write(request)
        raise _Failure("failed", f"unknown request {op!r}")

    def _embed(self, texts: list[str]) -> list[list[float]]:
        """Run Chroma's own function, after fetching its model where that is not on this machine."""
        try:
            if self._embedding is None:
                from chromadb.utils.embedding_functions import (
                    onnx_mini_lm_l6_v2 as onnx,
                )

                self._embedding = onnx.ONNXMiniLM_L6_V2()
            return [[float(x) for x in vector] for vector in self._embedding(texts)]
        except Exception as exc:
            present = (MODEL_DIR.expanduser() / "model.onnx").exists()
            reason = f"{type(exc).__name__}: {exc}".splitlines()[0]
            raise _Failure("failed" if present else "no model", reason) from exc


def reply_to(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to `request`; only a bug or a panic of the engine gets out as an exception."""
    try:
        return {"ok": worker.answer(request)}
    except _Failure as exc:
        return {"error": exc.kind, "message": str(exc)}
    except Exception as exc:  # noqa: BLE001 - the parent decides; a bug is told apart by its class
        text = str(exc)
        for mark, kind, meaning in _EXPLAINED:
            if mark.lower() in text.lower():
                return {"error": kind, "message": f"{meaning} ({text.splitlines()[0]})"}
        kind = "rejected" if type(exc).__name__ in _REJECTIONS else "failed"
        return {"error": kind, "message": f"{type(exc).__name__}: {text}"}


def _receive(sock: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes; end of file ends the process, there is nobody to work for."""
    data = bytearray(size)
    view = memoryview(data)
    filled = 0
    while filled < size:
        count = sock.recv_into(view[filled:])
        if not count:
            os._exit(0)
        filled += count
    return bytes(data)


def main() -> None:
    """Serve requests until the parent closes the socket."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        return  # the parent died before the line above
    sock = socket.socket(fileno=os.dup(0))
    worker = Worker()
    while True:
        (size,) = LENGTH.unpack(_receive(sock, LENGTH.size))
        reply = orjson.dumps(reply_to(worker, orjson.loads(_receive(sock, size))))
        sock.sendall(LENGTH.pack(len(reply)))
        sock.sendall(reply)


if __name__ == "__main__":
    main()
