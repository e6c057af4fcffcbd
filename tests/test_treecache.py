"""The trees kept on disk: private, checked on every load, bounded in number, and never in the way of a mount."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from chromafuse.hub import treecache
from chromafuse.hub.treecache import KEPT, TreeCache

TREE = b'{"a.md":{}}'


def digest(canonical: bytes) -> str:
    """Return the name of a tree."""
    return hashlib.sha256(canonical).hexdigest()


def test_a_tree_is_kept_for_the_next_mount(tmp_path: Path) -> None:
    """What one process saved another one loads; directory and file are for their owner alone."""
    directory = tmp_path / "some" / "cache"
    assert TreeCache(directory).load(digest(TREE)) is None
    TreeCache(directory).save(digest(TREE), TREE)
    assert TreeCache(directory).load(digest(TREE)) == TREE
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {f"{digest(TREE)}.tree": 0o600}


def test_the_umask_opens_nothing(tmp_path: Path) -> None:
    """Under a umask of zero the tree is still for its owner alone."""
    before = os.umask(0)
    try:
        TreeCache(tmp_path / "cache").save(digest(TREE), TREE)
    finally:
        os.umask(before)
    (path,) = (tmp_path / "cache").iterdir()
    modes = [stat.S_IMODE(found.stat().st_mode) for found in (path.parent, path)]
    assert modes == [0o700, 0o600]


@pytest.mark.expect_log("is damaged; the tree is fetched again")
@pytest.mark.parametrize("content", [b"", TREE[:-1], TREE + b" ", b'{"evil.md":{}}'])
def test_a_file_that_is_not_the_tree_is_never_served(tmp_path: Path, content: bytes) -> None:
    """A cut, changed or replaced file is thrown away with a warning, and the next save mends it."""
    cache = TreeCache(tmp_path / "cache")
    cache.save(digest(TREE), TREE)
    path = tmp_path / "cache" / f"{digest(TREE)}.tree"
    path.write_bytes(content)
    assert cache.load(digest(TREE)) is None
    assert not path.exists()
    cache.save(digest(TREE), TREE)
    assert cache.load(digest(TREE)) == TREE


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_directory_open_to_others_is_not_used(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """Where others could read or write, nothing is read or written; one warning says why."""
    request.getfixturevalue("log_guard").expect("is open to others; chmod 0700 it")
    TreeCache(tmp_path / "cache").save(digest(TREE), TREE)
    (tmp_path / "cache").chmod(mode)
    cache = TreeCache(tmp_path / "cache")
    assert cache.load(digest(TREE)) is None
    cache.save(digest(b"x"), b"x")
    assert cache.load(digest(TREE)) is None
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"{digest(TREE)}.tree"]
    assert len(caplog.records) == 1


@pytest.mark.expect_log("belongs to another user")
def test_a_directory_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that somebody else made for us to fill is left alone."""
    TreeCache(tmp_path / "cache").save(digest(TREE), TREE)
    monkeypatch.setattr(treecache.os, "geteuid", lambda: os.getuid() + 1)
    assert TreeCache(tmp_path / "cache").load(digest(TREE)) is None


@pytest.mark.expect_log("no tree is cached")
def test_a_place_that_cannot_be_made_costs_nothing_but_a_warning(tmp_path: Path) -> None:
    """Where the directory cannot be, loading finds nothing and saving does nothing."""
    (tmp_path / "file").write_text("x")
    cache = TreeCache(tmp_path / "file" / "cache")
    assert cache.load(digest(TREE)) is None
    cache.save(digest(TREE), TREE)


@pytest.mark.expect_log("the tree cache cannot be written")
def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed rename is a warning; neither the tree nor half of it stays."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(treecache.os, "rename", fail)
    TreeCache(tmp_path / "cache").save(digest(TREE), TREE)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.expect_log("a cached tree cannot be read")
def test_a_link_in_the_place_of_a_tree_is_not_followed(tmp_path: Path) -> None:
    """A symbolic link under a tree's name is not read through."""
    cache = TreeCache(tmp_path / "cache")
    cache.save(digest(b"x"), b"x")
    (tmp_path / "elsewhere").write_bytes(TREE)
    (tmp_path / "cache" / f"{digest(TREE)}.tree").symlink_to(tmp_path / "elsewhere")
    assert cache.load(digest(TREE)) is None


@pytest.mark.expect_log("is damaged")
def test_a_pipe_in_the_place_of_a_tree_holds_nothing_up(tmp_path: Path) -> None:
    """A named pipe under a tree's name is passed over at once."""
    cache = TreeCache(tmp_path / "cache")
    cache.save(digest(b"x"), b"x")
    os.mkfifo(tmp_path / "cache" / f"{digest(TREE)}.tree", 0o600)
    assert cache.load(digest(TREE)) is None


def test_the_newest_trees_are_kept(tmp_path: Path) -> None:
    """Over the bound the least recently used trees go, and what a killed process left half written."""
    cache = TreeCache(tmp_path / "cache")
    trees = [b"%d" % i for i in range(KEPT + 3)]
    for age, tree in enumerate(trees[:KEPT]):
        cache.save(digest(tree), tree)
        os.utime(tmp_path / "cache" / f"{digest(tree)}.tree", (age, age))
    assert cache.load(digest(trees[0])) == trees[0]  # used now, so it outlives those that were not
    left, fresh = tmp_path / "cache" / ".old.new", tmp_path / "cache" / ".fresh.new"
    left.touch()
    os.utime(left, (1, 1))
    fresh.touch()
    for tree in trees[KEPT:]:
        cache.save(digest(tree), tree)
    assert [tree for tree in trees if cache.load(digest(tree)) is not None] == [
        trees[0],
        *trees[4:],
    ]
    assert [left.exists(), fresh.exists()] == [False, True]


def test_many_writers_at_once(tmp_path: Path) -> None:
    """Processes that save and load one tree at once all succeed, and no half file is ever seen."""
    tree = bytes(1 << 18)
    found = []

    def work() -> None:
        for _ in range(20):
            TreeCache(tmp_path / "cache").save(digest(tree), tree)
            found.append(TreeCache(tmp_path / "cache").load(digest(tree)) == tree)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


def test_no_directory_is_no_cache() -> None:
    """Without a place nothing is kept."""
    cache = TreeCache(None)
    cache.save(digest(TREE), TREE)
    assert cache.load(digest(TREE)) is None
