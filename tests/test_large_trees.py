"""Large trees: what they cost in bytes, requests and objects. Counts, never times."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyfuse3
import pytest
import trio

from chromafuse import wire
from chromafuse.hub.scope import Scope
from chromafuse.model.access import PUBLIC, Access, Identity, Kind
from chromafuse.model.entry import TreeEntry
from chromafuse.model.names import sort_key
from chromafuse.model.records import PathTree, decode_tree, encode_tree
from chromafuse.model.snapshot import ROOT_INODE, Snapshot, build
from chromafuse.view.attributes import Owner
from chromafuse.view.control import ControlFiles, Facts
from chromafuse.view.ops import Operations
from tests.support.fake_hub import FakeHub
from tests.support.view_process import mounted

T = TypeVar("T")
STAFF = Access(True, frozenset({"staff"}))
OPERATOR = Identity(Kind.UNRESTRICTED)


def path_of(number: int) -> str:
    """Return the path of a page: twenty to a directory, fifteen directories to a section."""
    return f"section-{number // 300:03}/topic-{number // 20 % 15:02}/page-{number:06}.mdx"


def entries_of(count: int) -> list[TreeEntry]:
    """Return `count` pages, in order; every fourth is for the staff."""
    return [
        TreeEntry(
            path_of(number),
            STAFF if number % 4 == 3 else PUBLIC,
            number.to_bytes(16, "big"),
            1 + number % 3,
            1_000 + number,
            1_700_000_000_000_000_000 + number,
        )
        for number in range(count)
    ]


def measured(make: Callable[[], T]) -> tuple[T, int, int]:
    """Return what `make` makes, the bytes that stay and the most there were on the way."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        after, peak = tracemalloc.get_traced_memory()
        return made, after - before, peak - before
    finally:
        tracemalloc.stop()


def test_a_tree_is_read_within_little_more_than_it_takes() -> None:
    """Reading a tree needs no second copy of it as JSON objects, and a page takes below 300 bytes."""
    count = 20_000
    canonical = encode_tree(entries_of(count))
    tree, kept, peak = measured(lambda: decode_tree(canonical, 1))
    assert len(tree.entries) == count
    assert kept <= 300 * count
    assert peak <= 400 * count  # all objects at once: 2,000


def test_the_accesses_of_a_tree_are_shared() -> None:
    """A site has few distinct accesses, and as many objects for them."""
    tree = decode_tree(encode_tree(entries_of(1_000)), 1)
    assert len({id(entry.access) for entry in tree.entries}) == 2


def test_what_a_hub_and_a_view_hold_of_a_node_is_small() -> None:
    """Beside the tree, a hub keeps 40 bytes and the name of a node; so does a view."""
    count = 20_000
    tree = PathTree(1, "", tuple(entries_of(count)))
    scope, kept, _ = measured(lambda: Scope.of(tree, OPERATOR))
    nodes, names = len(scope.view.snapshot), len(scope.view.snapshot.blob)
    assert (scope.pages, nodes) == (count, count + 1_000 + 67 + 1)
    assert kept <= 40 * nodes + names + 4_096
    encoded = scope.encoded
    decoded, kept, peak = measured(lambda: wire.decode_snapshot(encoded))
    assert decoded == scope.view.snapshot
    assert kept <= 30 * nodes + names + 4_096
    assert peak <= 1.3 * (30 * nodes + names)


def test_looking_names_up_builds_nothing_as_large_as_the_tree() -> None:
    """After every name was looked up a view holds the inodes of each directory, and no name twice."""
    count = 20_000
    snapshot = build(1, entries_of(count)).snapshot
    names = [path_of(number).encode().split(b"/") for number in range(count)]

    def look_up() -> int:
        return sum(walk(snapshot, parts) != 0 for parts in names)

    found, kept, _ = measured(look_up)
    directories = len(snapshot) - count
    assert found == count
    assert kept <= 8 * len(snapshot) + 100 * directories


def walk(snapshot: Snapshot, names: list[bytes]) -> int:
    """Return the inode at the end of some names, or 0."""
    inode = ROOT_INODE
    for name in names:
        inode = snapshot.lookup(inode, name)
    return inode


class Nothing:
    """Has no bytes of any page."""

    async def read(self, inode: int, offset: int, size: int) -> bytes:
        raise AssertionError("no page is read here")

    def listed(self, directory: int) -> None:
        """Take no notice."""


def test_attributes_are_made_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers make one object of the kernel's for each answer, and before that as many for any tree."""
    made: list[Any] = []
    original = pyfuse3.EntryAttributes

    def counted() -> pyfuse3.EntryAttributes:
        made.append(original())
        return made[-1]

    def handlers(pages: int) -> tuple[Operations, int]:
        made.clear()
        snapshot = build(1, entries_of(pages)).snapshot
        files = ControlFiles(Facts(bytes(32), pages, "stock"), lambda: True, Owner(0, 0), 1)
        return Operations(snapshot, files, Nothing(), Owner(0, 0)), len(made)

    async def ask(ops: Operations) -> None:
        context: Any = None
        await ops.statfs(context)
        await ops.lookup(pyfuse3.ROOT_INODE, pyfuse3.FileNameT(b"section-001"), context)
        await ops.lookup(pyfuse3.ROOT_INODE, pyfuse3.FileNameT(b"absent"), context)
        await ops.getattr(pyfuse3.InodeT(1), context)

    monkeypatch.setattr(pyfuse3, "EntryAttributes", counted)
    _, few = handlers(1)
    ops, many = handlers(20_000)
    trio.run(ask, ops)
    assert (many, len(made)) == (few, few + 3)


@pytest.mark.slow
def test_a_hundred_thousand_pages_reach_a_view_as_they_were_published() -> None:
    """Through the stored form, the pruning and the frames, every visible page is there, and no other."""
    entries = entries_of(100_000)
    canonical = encode_tree(entries)
    tree = decode_tree(canonical, 3)
    assert list(tree.entries) == entries
    assert encode_tree(tree.entries) == canonical
    scope = Scope.of(tree, Identity())
    visible = [entry for entry in entries if entry.access is PUBLIC]
    snapshot = wire.decode_snapshot(scope.encoded)
    shown = [
        (snapshot.path(inode), snapshot.size(inode), snapshot.mtime_ns(inode))
        for inode in snapshot.pages()
    ]
    assert shown == [(entry.path, entry.size, entry.mtime_ns) for entry in visible]
    assert [entry for entry in scope.view.entries if entry is not None] == visible


@pytest.mark.mount
def test_a_directory_of_ten_thousand_names_is_listed_once_and_in_linear_work(
    tmp_path: Path,
) -> None:
    """Ten times the names take at most ten times the requests; each name comes once, in order."""
    sizes = (1_000, 10_000)
    pages = {f"flat-{size}/{number:05}.md": b"x" for size in sizes for number in range(size)}
    requests = {}
    with mounted(FakeHub(pages), tmp_path / "mount") as view:
        for size in sizes:
            before = view.counters()
            with os.scandir(tmp_path / "mount" / f"flat-{size}") as listing:
                found = [entry.name for entry in listing]
            assert found == [f"{number:05}.md" for number in range(size)]
            requests[size] = view.counters()["readdir"] - before.get("readdir", 0)
        stats = [os.stat(tmp_path / "mount" / path) for path in pages]
        after = view.counters()
    assert requests[10_000] <= 10 * requests[1_000]
    assert [stat.st_size for stat in stats] == [1] * len(pages)
    # Listed with their attributes: the names below the first page of a listing need no look-up.
    assert after["lookup"] + after.get("getattr", 0) <= 100


def test_depth_first_order_is_what_the_helpers_make() -> None:
    """The pages of this module are in a tree's order, as `build` wants them."""
    paths = [entry.path for entry in entries_of(1_000)]
    assert paths == sorted(paths, key=sort_key)
