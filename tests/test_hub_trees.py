"""Which tree the hub serves: from the cache on disk, from the store, or put together from what is left of it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from chromafuse.errors import NotPublished
from chromafuse.hub import trees as hub_trees
from chromafuse.hub.treecache import TreeCache
from chromafuse.hub.trees import Trees
from chromafuse.model.access import PUBLIC
from chromafuse.model.records import (
    ROOT_ID,
    PathTree,
    Root,
    TreeEntry,
    decode_tree,
    encode_root,
    encode_tree,
    split_tree,
)
from chromafuse.store.protocol import Row
from tests.support.memory_store import MemoryStore
from tests.support.publishing import run


def entries(count: int, salt: str = "") -> list[TreeEntry]:
    """Return entries that do not compress well: some 500 go into one part."""
    return [
        TreeEntry(
            f"{number:05}",
            PUBLIC,
            hashlib.sha256(f"{salt}{number}".encode()).digest()[:16],
            1,
            9,
            5,
        )
        for number in range(count)
    ]


class Counting(MemoryStore):
    """A store that says which ids it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    async def get(self, ids):  # type: ignore[no-untyped-def]
        self.asked.append(list(ids))
        return await super().get(ids)

    def put(self, generation: int, tree: list[TreeEntry]) -> PathTree:
        """Store a tree and publish it."""
        canonical = encode_tree(tree)
        parts, digest = split_tree(canonical)
        root = Root(generation, digest, len(parts), len(canonical), "constant", 3)
        document, metadata = encode_root(root)
        assert self.rows is not None
        self.rows[ROOT_ID] = Row(ROOT_ID, document, metadata)
        for id, text in zip(root.part_ids(), parts, strict=True):
            self.rows[id] = Row(id, text)
        return decode_tree(canonical, generation)

    def parts(self, tree: PathTree) -> list[str]:
        """Return the ids of a tree's parts that are stored."""
        assert self.rows is not None
        return [id for id in self.rows if id.startswith(f"{ROOT_ID}:{tree.sha256}:")]


def with_store(body: Callable[[Counting], Awaitable[None]]) -> None:
    """Run `body` on an empty store."""

    async def main() -> None:
        await body(Counting())

    run(main)


def test_a_tree_is_downloaded_once(tmp_path: Path) -> None:
    """The second hub asks for the root alone; the tree comes from the disk, under its own digest."""

    async def body(store: Counting) -> None:
        tree = store.put(4, entries(3))
        assert await Trees(store, TreeCache(tmp_path / "cache")).published() == tree
        store.asked.clear()
        assert await Trees(store, TreeCache(tmp_path / "cache")).published() == tree
        assert store.asked == [[ROOT_ID]]

    with_store(body)


@pytest.mark.expect_log("is damaged; the tree is fetched again")
def test_a_damaged_file_costs_a_download_and_nothing_else(tmp_path: Path) -> None:
    """A tree that was changed on disk, also into another proper tree, is never served."""

    async def body(store: Counting) -> None:
        tree = store.put(4, entries(3))
        trees = Trees(store, TreeCache(tmp_path / "cache"))
        assert await trees.published() == tree
        (path,) = (tmp_path / "cache").iterdir()
        path.write_bytes(encode_tree(entries(5)))
        assert await trees.published() == tree
        assert path.read_bytes() == encode_tree(tree.entries)

    with_store(body)


def test_what_is_listed_follows_the_root() -> None:
    """While the root stays, asking what is listed costs one small call; a new root is taken up at once."""

    async def body(store: Counting) -> None:
        trees = Trees(store, TreeCache(None))
        old, new = entries(3), entries(3, "new")
        store.put(1, old)
        for _ in range(3):
            assert await trees.listed() == {entry.version for entry in old}
        assert [len(ids) for ids in store.asked] == [1, 1, 1, 1]
        assert store.asked[0] == store.asked[2] == store.asked[3] == [ROOT_ID]
        store.put(2, new)
        assert await trees.listed() == {entry.version for entry in new}
        store.recreate()
        with pytest.raises(NotPublished):
            await trees.listed()

    with_store(body)


@pytest.mark.parametrize("count", [1, 800, 1_500, 2_000, 2_700])
def test_an_older_tree_is_put_together_from_its_parts(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the number of its parts, one to six of them here, the tree is found whole by its digest."""
    monkeypatch.setattr(hub_trees, "_PARTS", 2)

    async def body(store: Counting) -> None:
        old = store.put(7, entries(count))
        store.put(8, entries(2, "new"))
        assert await Trees(store, TreeCache(None)).pinned(7, old.sha256) == old

    with_store(body)


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_an_older_tree_with_a_part_missing_is_gone(
    lost: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Where the collector took any part, first, middle or last, no tree is made of the others."""
    monkeypatch.setattr(hub_trees, "_PARTS", 2)
    log = request.getfixturevalue("log_guard")
    log.expect("the tree of generation 7 cannot be had: the path tree")

    async def body(store: Counting) -> None:
        old = store.put(7, entries(2_000))
        assert store.rows is not None
        assert len(store.parts(old)) > 3
        del store.rows[store.parts(old)[lost]]
        assert await Trees(store, TreeCache(None)).pinned(7, old.sha256) is None

    with_store(body)


def test_an_older_tree_that_nobody_has_is_gone() -> None:
    """Where cache and store have nothing of it there is no tree, by one call."""

    async def body(store: Counting) -> None:
        store.put(8, entries(2))
        assert await Trees(store, TreeCache(None)).pinned(7, "ab" * 32) is None
        assert len(store.asked) == 1

    with_store(body)


def test_an_older_tree_in_the_cache_needs_no_store(tmp_path: Path) -> None:
    """What is on disk is taken from there, though the collection has nothing of it any more."""

    async def body(store: Counting) -> None:
        old = store.put(7, entries(4))
        trees = Trees(store, TreeCache(tmp_path / "cache"))
        await trees.published()
        store.recreate()
        store.asked.clear()
        assert await trees.pinned(7, old.sha256) == old
        assert store.asked == []

    with_store(body)
