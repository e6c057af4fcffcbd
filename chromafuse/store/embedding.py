"""Which vectors go with the texts, and which collections we write to.

Mount and search need no vectors, but Chroma stores none without: the default is one constant vector.
`default` is Chroma's own function, for those who want to ask the collection by meaning as well.

Concurrency: an embedder serves one task at a time or many; the default one queues them for its child.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from ..errors import StoreTimeout, UserError
from .child import ModelMissing, Worker, open_worker
from .protocol import CollectionInfo, Vector

NAMES = ("none", "default")
_BATCH = 32  # texts; the function's own batch
_BATCH_DEADLINE = 300.0  # s; the first batch also fetches a model of 80 MB
_MODEL = "all-MiniLM-L6-v2"
_MODEL_DIR = f"~/.cache/chroma/onnx_models/{_MODEL}/onnx"


class Embedder(Protocol):
    """Turns texts into vectors. Name and dimension are stored with the tree and must not change after."""

    @property
    def name(self) -> str:
        """The name that is stored."""
        ...

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in order."""
        ...


class ConstantEmbedder:
    """The same vector for every text."""

    name = "none"
    dimension = 1

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the constant, as often as there are texts."""
        return [(1.0,)] * len(texts)


class DefaultEmbedder:
    """Chroma's default function, run in a child process of its own."""

    name = "default"
    dimension = 384

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the model's vectors; raise UserError when the model cannot be had."""
        vectors: list[Vector] = []
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            try:
                answer = await self._worker.call({"op": "embed", "texts": batch})
            except (ModelMissing, StoreTimeout) as exc:
                raise UserError(
                    f"the default embedding's model {_MODEL} is not in {_MODEL_DIR} and cannot be "
                    f"fetched ({exc}); put its files there, or ingest without --embed default"
                ) from exc
            vectors += [tuple(vector) for vector in answer]
        return vectors


@asynccontextmanager
async def open_embedder(name: str) -> AsyncIterator[Embedder]:
    """Return the embedder called `name`, one of NAMES."""
    if name == "none":
        yield ConstantEmbedder()
    elif name == "default":
        async with open_worker(None, "the default embedding", _BATCH_DEADLINE) as worker:
            yield DefaultEmbedder(worker)
    else:
        raise UserError(f"no embedding is called {name!r}; there are {' and '.join(NAMES)}")


def check_embedding(info: CollectionInfo, stored_name: str | None, embedder: Embedder) -> None:
    """Raise UserError when `embedder` must not write to the collection `info`.

    `stored_name` is the embedding that the published tree names, None where no tree is published. Another
    function stored by Chroma would be built, with its author's settings, in every ordinary client that
    writes; such a collection is somebody else's.
    """
    if info.embedding_function not in (None, "default"):
        raise UserError(
            f"the collection {info.name!r} has the embedding function {info.embedding_function!r}, "
            "so another program made it; choose another --collection"
        )
    if stored_name is not None and stored_name != embedder.name:
        raise UserError(
            f"the collection {info.name!r} was ingested with --embed {stored_name}, not {embedder.name}; "
            f"use --embed {stored_name}, or another --collection"
        )
    if info.dimension not in (None, embedder.dimension):
        raise UserError(
            f"the collection {info.name!r} holds vectors of {info.dimension} numbers, the embedding "
            f"{embedder.name!r} makes {embedder.dimension}; choose another --collection"
        )
