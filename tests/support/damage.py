"""Stores with something wrong in them, made from whole ones by the store's own calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import trio

from chromafuse.model.records import ROOT_ID, decode_tree
from chromafuse.store.location import open_store, parse_store
from chromafuse.store.protocol import Store
from chromafuse.store.reader import load_root, load_tree

Harm = Callable[[Store], Awaitable[None]]


def damaged(whole: Path, home: Path, harm: Harm) -> Path:
    """Copy a store and do `harm` to the copy."""
    copy = home / "damaged"
    shutil.copytree(whole, copy)

    async def main() -> None:
        async with open_store(parse_store(str(copy))) as store:
            await harm(store)

    trio.run(main)
    return copy


async def lose_tree_part(store: Store) -> None:
    """Remove a part of the path tree."""
    await store.delete((await load_root(store)).part_ids()[:1])


async def lose_root(store: Store) -> None:
    """Remove the root record."""
    await store.delete([ROOT_ID])


async def change_format(store: Store) -> None:
    """Make the root record one of a format that is not known."""
    row = (await store.get([ROOT_ID]))[ROOT_ID]
    root = {**json.loads(row.document), "format": 99}
    embedding = [1.0] * root["embedding"]["dimension"]
    await store.upsert([replace(row, document=json.dumps(root), embedding=embedding)])


async def lose_chunks(store: Store) -> None:
    """Remove the chunks of open.md."""
    await store.delete(await _chunks(store))


async def change_chunk(store: Store) -> None:
    """Write other bytes into a chunk of open.md."""
    (chunk,) = await _chunks(store)
    row = (await store.get([chunk]))[chunk]
    embedding = [1.0] * (await load_root(store)).dimension
    await store.upsert([replace(row, document="for EVERYONE\n", embedding=embedding)])


async def _chunks(store: Store) -> list[str]:
    root = await load_root(store)
    tree = decode_tree(await load_tree(store, root), root.generation)
    return next(entry.chunk_ids() for entry in tree.entries if entry.path == "open.md")
