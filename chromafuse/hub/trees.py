"""Which tree is published, and the one that a hub before this one served.

Trees come from the cache on disk where it has them, else from the store; either way the digest decides.

Concurrency: one trio thread; a large tree is decoded in a thread, so that readers go on meanwhile.
"""

from __future__ import annotations

import logging

import trio

from ..errors import RecordDamaged
from ..model.records import TREE_MAX, PathTree, Root, decode_tree, join_tree
from ..store.protocol import Store
from ..store.reader import load_root, load_tree
from .treecache import TreeCache

log = logging.getLogger(__name__)

_PARTS = 100  # rows a look for the parts of a tree whose root record is gone


class Trees:
    """The trees of one collection."""

    def __init__(self, store: Store, cache: TreeCache) -> None:
        self._store = store
        self._cache = cache
        self._listed: tuple[str, frozenset[bytes]] = ("", frozenset())  # sha256, page versions

    async def published(self) -> PathTree:
        """Load the tree that is published now."""
        return await self._load(await load_root(self._store))

    async def listed(self) -> frozenset[bytes]:
        """Return the page versions of the tree that is published now."""
        root = await load_root(self._store)
        if root.sha256 != self._listed[0]:
            tree = await self._load(root)
            self._listed = (root.sha256, frozenset(entry.version for entry in tree.entries))
        return self._listed[1]

    async def pinned(self, generation: int, sha256: str) -> PathTree | None:
        """Return a tree that was published once, None where nobody has it any more."""
        canonical = await trio.to_thread.run_sync(self._cache.load, sha256)
        if canonical is None:
            canonical = await self._from_parts(generation, sha256)
        if canonical is None:
            return None
        return await trio.to_thread.run_sync(decode_tree, canonical, generation)

    async def _load(self, root: Root) -> PathTree:
        canonical = await trio.to_thread.run_sync(self._cache.load, root.sha256)
        if canonical is None:
            canonical = await load_tree(self._store, root)
            await trio.to_thread.run_sync(self._cache.save, root.sha256, canonical)
        return await trio.to_thread.run_sync(decode_tree, canonical, root.generation)

    async def _from_parts(self, generation: int, sha256: str) -> bytes | None:
        """Put a tree together whose number of parts nobody knows: garbage collection leaves it for a while."""
        texts: list[str] = []
        while len(texts) % _PARTS == 0:
            root = Root(generation, sha256, len(texts) + _PARTS, TREE_MAX, "", 0)
            ids = root.part_ids()[len(texts) :]
            rows = await self._store.get(ids)
            found = [rows[part].document for part in ids if part in rows]
            texts += found
            if not found:
                break
        if not texts:
            return None
        try:
            root = Root(generation, sha256, len(texts), TREE_MAX, "", 0)
            return await trio.to_thread.run_sync(join_tree, root, texts)
        except RecordDamaged as exc:
            log.warning("the tree of generation %d cannot be had: %s", generation, exc)
            return None
