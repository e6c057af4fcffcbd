"""The tree as one identity sees it, against a naive model of nested dictionaries.

The model below is written from the rules alone: prune, resolve names, nest, sort, number depth first.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chromafuse import wire
from chromafuse.model import names as names_module
from chromafuse.model.access import PUBLIC, Access, Identity, Kind
from chromafuse.model.names import NAME_MAX, problem_of, sort_key
from chromafuse.model.records import MTIME_UNKNOWN, PathTree, TreeEntry
from chromafuse.model.snapshot import ROOT_INODE, Child, Snapshot, build

groups = st.frozensets(st.sampled_from(["red", "blue"]), max_size=2)
accesses = st.builds(
    Access,
    public=st.sampled_from([True, False, None]),
    groups=groups,
    malformed=st.sampled_from(["", "", "", "odd"]),
)
identities = st.one_of(
    st.just(Identity()),
    st.builds(Identity, st.just(Kind.AUTHENTICATED), groups),
    st.just(Identity(Kind.UNRESTRICTED)),
)
# Few names, so that pages, directories and renamed pages collide; some that sort around the separator.
names = st.sampled_from(["a", "b", "a~page", "a~page~page", "a!", "a.md", "é", "\x01", "A"])
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
entries = st.builds(
    TreeEntry,
    path=paths,
    access=accesses,
    version=st.binary(min_size=16, max_size=16),
    chunks=st.just(1),
    size=st.integers(0, 2_000),
    mtime_ns=st.integers(-100, 100) | st.integers(-(2**62), 2**62),
)
trees = st.lists(entries, max_size=14, unique_by=lambda entry: entry.path)


def tree_of(found: list[TreeEntry]) -> PathTree:
    """Return the tree of some entries."""
    return PathTree(1, "", tuple(sorted(found, key=lambda entry: sort_key(entry.path))))


# -- the model -----------------------------------------------------------------------------------------


def allowed(access: Access, identity: Identity) -> bool:
    """The rules of access, as naively as they can be said."""
    if identity.kind is Kind.UNRESTRICTED:
        return True
    if access.malformed:
        return False
    if access.groups:
        return any(group in identity.groups for group in access.groups)
    if access.public is None:
        return False
    return access.public or identity.kind is Kind.AUTHENTICATED


def shown_paths(visible: list[TreeEntry]) -> dict[str, TreeEntry]:
    """Give each page the path it is shown under: one that is also a directory becomes `name~page`."""
    directories = set()
    for entry in visible:
        parts = entry.path.split("/")
        directories |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    result = {entry.path: entry for entry in visible if entry.path not in directories}
    for entry in visible:
        if entry.path in directories:
            path = entry.path + "~page"
            while path in directories or path in result:
                path += "~page"
            result[path] = entry
    return result


def nested(shown: dict[str, TreeEntry]) -> dict[bytes, Any]:
    """Return the tree as nested dictionaries."""
    root: dict[bytes, Any] = {}
    for path, entry in shown.items():
        *above, name = path.encode().split(b"/")
        directory = root
        for part in above:
            directory = directory.setdefault(part, {})
        directory[name] = entry
    return root


def newest(node: Any) -> int:
    """Return the time of a node: its own, or its newest descendant's."""
    if isinstance(node, TreeEntry):
        return node.mtime_ns
    return max(map(newest, node.values()), default=MTIME_UNKNOWN)


def walk(node: dict[bytes, Any], path: bytes = b"") -> Iterator[tuple[bytes, Any]]:
    """Yield (path, node) depth first, each directory's names in byte order."""
    yield path, node
    for name in sorted(node):
        below = path + b"/" + name if path else name
        if isinstance(node[name], dict):
            yield from walk(node[name], below)
        else:
            yield below, node[name]


# -- properties ----------------------------------------------------------------------------------------


@given(tree=trees, identity=identities)
@settings(max_examples=300)
def test_the_visible_are_those_that_the_rules_allow(
    tree: list[TreeEntry], identity: Identity
) -> None:
    """Pruning keeps exactly the entries that a naive reading of the rules admits, in order."""
    whole = tree_of(tree)
    expected = [entry for entry in whole.entries if allowed(entry.access, identity)]
    assert whole.visible(identity) == expected


@given(tree=trees, identity=identities)
@settings(max_examples=400)
def test_a_snapshot_is_the_tree_of_the_model(tree: list[TreeEntry], identity: Identity) -> None:
    """Paths, kinds, sizes, times, numbers, children, lookups and blocks are those of nested dictionaries."""
    visible = tree_of(tree).visible(identity)
    view = build(7, visible)
    snapshot = view.snapshot
    model = list(walk(nested(shown_paths(visible))))
    inodes = {path: number for number, (path, _) in enumerate(model, ROOT_INODE)}
    assert len(snapshot) == len(model)
    for inode, (path, node) in enumerate(model, ROOT_INODE):
        assert snapshot.path(inode).encode() == path
        assert snapshot.is_directory(inode) == isinstance(node, dict)
        assert snapshot.mtime_ns(inode) == newest(node)
        assert snapshot.parent(inode) == inodes[path.rpartition(b"/")[0]]
        if isinstance(node, dict):
            below = path + b"/" if path else b""
            listed = [Child(i, n, inodes[below + n]) for i, n in enumerate(sorted(node), 1)]
            assert list(snapshot.children(inode)) == listed
            assert view.entry(inode) is None
            known = {child.name: child.inode for child in listed}
            for name in [*known, b"", b".", b"..", b"none", b"a", b"a~page", b"a/b"]:
                assert snapshot.lookup(inode, name) == known.get(name, 0)
            for after in range(-1, len(listed) + 2):
                assert list(snapshot.children(inode, after)) == listed[max(after, 0) :]
        else:
            assert (snapshot.size(inode), view.entry(inode)) == (node.size, node)
    pages = [node for _, node in model if isinstance(node, TreeEntry)]
    assert [view.entry(inode) for inode in snapshot.pages()] == pages
    assert snapshot.blocks() == sum((page.size + 511) // 512 for page in pages)
    assert sorted(view.renamed) == sorted(
        (entry.path, path) for path, entry in shown_paths(visible).items() if path != entry.path
    )


@given(tree=trees, identity=identities)
def test_numbers_outside_are_nothing(tree: list[TreeEntry], identity: Identity) -> None:
    """A number that no node has is not there, and has no entry."""
    view = build(1, tree_of(tree).visible(identity))
    nodes = len(view.snapshot)
    for inode in (0, -1, nodes + 1, nodes + 100, 1 << 52, (1 << 64) - 1):
        assert not view.snapshot.has(inode)
        assert view.entry(inode) is None


def received(tree: list[TreeEntry], identity: Identity, generation: int) -> tuple[bytes, bytes]:
    """Return what a view is sent: its snapshot but for the generation, and the digest."""
    view = build(generation, tree_of(tree).visible(identity))
    encoded = wire.encode_snapshot(view.snapshot)
    versions = b"".join(entry.version for entry in view.entries if entry is not None)
    return encoded[8:], wire.snapshot_digest(encoded, versions)


@given(tree=trees, others=trees, identity=identities)
@settings(max_examples=400)
def test_hidden_entries_change_nothing(
    tree: list[TreeEntry], others: list[TreeEntry], identity: Identity
) -> None:
    """Trees that differ only in hidden entries give equal snapshots and equal digests."""
    seen = [entry for entry in tree if allowed(entry.access, identity)]
    paths = {entry.path for entry in seen}
    hidden = [e for e in others if not allowed(e.access, identity) and e.path not in paths]
    assert received(tree, identity, 1) == received(seen + hidden, identity, 2)


@given(tree=trees, others=trees)
@settings(max_examples=200)
def test_visible_differences_change_the_digest(
    tree: list[TreeEntry], others: list[TreeEntry]
) -> None:
    """For the operator, who sees all, two trees have one digest only where they show the same."""
    operator = Identity(Kind.UNRESTRICTED)
    shown = [
        {
            path: (entry.size, entry.mtime_ns, entry.version)
            for path, entry in shown_paths(found).items()
        }
        for found in (tree, others)
    ]
    same = received(tree, operator, 1)[1] == received(others, operator, 1)[1]
    assert same == (shown[0] == shown[1])


# -- cases ---------------------------------------------------------------------------------------------


def page(path: str, mtime_ns: int = 5, size: int = 1) -> TreeEntry:
    """Return a page that everybody sees."""
    return TreeEntry(path, PUBLIC, bytes(16), 1, size, mtime_ns)


def listing(snapshot: Snapshot) -> list[str]:
    """Return every path in the order of the numbers."""
    return [snapshot.path(inode) for inode in range(1, len(snapshot) + 1)]


def test_an_empty_tree_is_a_root() -> None:
    """Who may see nothing gets a root with a time, and nothing in it."""
    snapshot = build(1, []).snapshot
    assert (listing(snapshot), snapshot.mtime_ns(1)) == ([""], MTIME_UNKNOWN)
    assert (list(snapshot.children(1)), snapshot.lookup(1, b"a"), snapshot.blocks()) == ([], 0, 0)


def test_a_page_and_a_directory_of_one_name_are_both_shown() -> None:
    """The page becomes `name~page`, and once more `~page` where that is taken too."""
    tree = [page("a"), page("a/b"), page("a~page"), page("b")]
    view = build(1, tree_of(tree).visible(Identity()))
    assert listing(view.snapshot) == ["", "a", "a/b", "a~page", "a~page~page", "b"]
    assert view.renamed == (("a", "a~page~page"),)


def test_of_two_entries_with_one_key_the_first_is_shown() -> None:
    """A tree that holds a path twice shows it once."""
    twice = [page("a", size=1), page("a", size=2), page("b")]
    view = build(1, twice)
    assert listing(view.snapshot) == ["", "a", "b"]
    assert view.entry(2) == twice[0]


class CountingArray(array):  # type: ignore[type-arg]
    """A column that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        CountingArray.looks += 1
        return super().__getitem__(index)


def test_a_directory_of_many_pages_costs_few_looks_each() -> None:
    """Listing 10,000 names in pieces, as readdir does, is linear; finding one looks at 15 of them at most."""
    count = 10_000
    snapshot = build(1, [page(f"{number:05}") for number in range(count)]).snapshot
    counted = replace(
        snapshot,
        ends=CountingArray("I", snapshot.ends),
        name_ends=CountingArray("I", snapshot.name_ends),
    )
    CountingArray.looks = 0
    slot, seen = 0, 0
    while piece := list(itertools.islice(counted.children(1, slot), 100)):
        slot, seen = piece[-1].slot, seen + len(piece)
    assert seen == count
    assert CountingArray.looks <= 4 * count
    for number in range(count):
        CountingArray.looks = 0
        assert counted.lookup(1, b"%05d" % number) == number + 2
        assert CountingArray.looks <= 2 * 15  # where a name begins and ends


def test_a_hidden_directory_does_not_rename_a_visible_page() -> None:
    """Names are resolved after pruning, so a page keeps its name where the directory is hidden."""
    hidden = TreeEntry("a/b", Access(), bytes(16), 1, 1, 5)
    view = build(1, tree_of([page("a"), hidden]).visible(Identity()))
    assert (listing(view.snapshot), view.renamed) == (["", "a"], ())


def test_a_renamed_page_whose_name_would_be_too_long_is_left_out() -> None:
    """Where `~page` does not fit the name, the page is reported and the directory stays."""
    long = "x" * (NAME_MAX - 2)
    view = build(1, tree_of([page(long), page(f"{long}/b")]).visible(Identity()))
    assert listing(view.snapshot) == ["", long, f"{long}/b"]
    assert view.renamed == ((long, ""),)


def test_a_directory_is_as_new_as_its_newest_visible_page() -> None:
    """The time of every directory above is that of the newest page below it that this identity sees."""
    hidden = TreeEntry("d/e/new", Access(), bytes(16), 1, 1, 99)
    tree = [page("d/e/old", 5), page("d/f", 7), hidden, page("z", 1)]
    snapshot = build(1, tree_of(tree).visible(Identity())).snapshot
    times = {snapshot.path(inode): snapshot.mtime_ns(inode) for inode in range(1, 7)}
    assert times == {"": 7, "d": 7, "d/e": 5, "d/e/old": 5, "d/f": 7, "z": 1}


def test_a_hundred_thousand_pages_stay_small() -> None:
    """A snapshot of 100,000 pages is sent in under 6 MB and keeps its numbers."""
    tree = [page(f"section-{i // 100:03}/page-{i % 100:02}.mdx") for i in range(100_000)]
    encoded = wire.encode_snapshot(build(1, tree).snapshot)
    assert len(encoded) < 6_000_000
    found = wire.decode_snapshot(encoded)
    assert (len(found), found.path(101_001)) == (101_001, "section-999/page-99.mdx")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("a/b c/é.md", ""),
        ("x" * 255, ""),
        ("a/.hidden", ""),
        ("a/...", ""),
        ("", "an empty path"),
        ("a//b", "an empty name in the path"),
        ("/a", "an empty name in the path"),
        ("a/", "an empty name in the path"),
        ("a/./b", "a '.' in the path"),
        ("../a", "a '..' in the path"),
        ("a\0", "a NUL byte in the name"),
        ("é" * 128, "a name of 256 bytes, over 255"),
        ("a/.chromafuse", "a reserved name (.chromafuse…)"),
        (".chromafuse-query/x", "a reserved name (.chromafuse…)"),
        ("\ud800", "not valid UTF-8"),
    ],
    ids=ascii,
)
def test_what_cannot_be_shown(path: str, problem: str) -> None:
    """Each path that cannot be a name in a mount is refused for its own reason, all others are shown."""
    assert problem_of(path) == problem


@given(path=st.lists(st.sampled_from(["/", ".", "\0", "a", "é" * 100, ".chromafuse"])).map("".join))
def test_most_paths_are_accepted_at_a_glance(path: str) -> None:
    """What is accepted without being taken apart would have been accepted so, too."""
    found = problem_of(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "_is_plain", lambda raw: False)
        assert found == problem_of(path)
