"""A pruned copy: the bytes, names and times of a mount for the same identity, as a directory or a tar."""

from __future__ import annotations

import io
import os
import pty
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chromafuse.export import to_directory, to_tar
from chromafuse.model.access import PUBLIC, Access, Identity, Kind
from chromafuse.model.names import sort_key
from chromafuse.model.records import TreeEntry, cut, page_version
from chromafuse.model.snapshot import build
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.publish import PlannedPage, publish
from tests.support.memory_store import MemoryStore
from tests.support.mounts import foreground, small_store  # noqa: F401
from tests.support.program import PROGRAM, chromafuse, environment

OPERATOR = Identity(Kind.UNRESTRICTED)
Site = dict[str, tuple[bytes, Access, int]]


def entry_of(path: str, page: tuple[bytes, Access, int]) -> TreeEntry:
    """Return the tree entry of a page."""
    data, access, mtime_ns = page
    chunks = len(cut(data).documents)
    return TreeEntry(path, access, page_version(path, data), chunks, len(data), mtime_ns)


async def published(site: Site) -> MemoryStore:
    """Publish a site in memory."""
    store = MemoryStore(rows_per_call=3)
    planned = [
        PlannedPage(entry_of(path, site[path]), lambda path=path: site[path][0])  # type: ignore[misc]
        for path in sorted(site, key=sort_key)
    ]
    await publish(store, ConstantEmbedder(), planned, expected=None)
    return store


def expected(site: Site, identity: Identity) -> dict[str, tuple[bytes | None, int]]:
    """Return path -> (bytes, mtime) of what a mount shows, directories with None."""
    entries = [entry_of(path, site[path]) for path in sorted(site, key=sort_key)]
    view = build(1, [entry for entry in entries if entry.access.admits(identity)])
    found: dict[str, tuple[bytes | None, int]] = {}
    for inode in range(2, len(view.snapshot) + 1):
        entry = view.entry(inode)
        data = site[entry.path][0] if entry else None
        found[view.snapshot.path(inode)] = (data, view.snapshot.mtime_ns(inode))
    return found


def read_directory(root: Path) -> dict[str, tuple[bytes | None, int]]:
    """Return path -> (bytes, mtime) of a directory."""
    return {
        str(path.relative_to(root)): (
            None if path.is_dir() else path.read_bytes(),
            path.stat().st_mtime_ns,
        )
        for path in root.rglob("*")
    }


def read_tar(data: bytes) -> dict[str, tuple[bytes | None, int]]:
    """Return path -> (bytes, mtime) of a tar, in its order."""
    found: dict[str, tuple[bytes | None, int]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            file = tar.extractfile(info)
            seconds, _, rest = info.pax_headers.get("mtime", str(info.mtime)).partition(".")
            assert (info.uid, info.gid, info.mode) == (0, 0, 0o644 if file else 0o755)
            found[info.name] = (
                file.read() if file else None,
                int(seconds) * 10**9 + int(rest[:9].ljust(9, "0")),
            )
    return found


pages = st.tuples(
    st.binary(max_size=9000) | st.just(b"x" * 40_000),
    st.builds(Access, public=st.sampled_from([True, False, None])),
    st.integers(1, 2**61),
)
names = st.lists(
    st.sampled_from(["a", "b.md", "c d", "é" * 100, "a~page", "\n"]), min_size=1, max_size=4
).map("/".join)
sites = st.dictionaries(names, pages, max_size=8)


@given(site=sites, kind=st.sampled_from(list(Kind)))
@settings(max_examples=40)
def test_a_copy_is_what_a_mount_shows(
    tmp_path_factory: pytest.TempPathFactory, site: Site, kind: Kind
) -> None:
    """Directory and tar hold exactly the visible pages, under the names, with bytes and times, of a mount."""
    target, out = tmp_path_factory.mktemp("x") / "copy", io.BytesIO()

    async def main() -> None:
        store = await published(site)
        await to_directory(store, Identity(kind), str(target))
        await to_tar(store, Identity(kind), out)

    trio.run(main)
    assert read_directory(target) == expected(site, Identity(kind))
    assert list(read_tar(out.getvalue()).items()) == list(expected(site, Identity(kind)).items())
    assert len(out.getvalue()) % tarfile.RECORDSIZE == 0
    assert os.listdir(target.parent) == ["copy"]


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_modes_are_the_users_own(tmp_path: Path, there: bool) -> None:
    """A copy can be changed and removed by its owner, and is as open as the umask allows."""
    target = tmp_path / "copy"
    if there:
        target.mkdir(mode=0o711)

    async def main() -> None:
        store = await published({"d/a": (b"x", PUBLIC, 1)})
        await to_directory(store, Identity(), str(target))

    before = os.umask(0o027)
    try:
        trio.run(main)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (target, *target.rglob("*"))}
    assert modes == {"copy": 0o711 if there else 0o750, "d": 0o750, "a": 0o640}


def test_a_deep_path_is_written(tmp_path: Path) -> None:
    """A path longer than a system call takes is exported all the same."""
    path = "/".join(["n" * 250] * 20) + "/page"

    async def main() -> None:
        store = await published({path: (b"deep", PUBLIC, 1)})
        await to_directory(store, Identity(), str(tmp_path / "copy"))

    trio.run(main)


def _read_deep(root: Path) -> tuple[int, bytes]:
    """Go down where each directory has one entry; return how deep the page lies, and its bytes."""
    depth, above = 0, os.open(root, os.O_RDONLY)
    while True:
        (name,) = os.listdir(above)
        below = os.open(name, os.O_RDONLY, dir_fd=above)
        os.close(above)
        if stat.S_ISREG(os.fstat(below).st_mode):
            with open(below, "rb") as page:
                return depth, page.read()
        depth, above = depth + 1, below


@pytest.mark.chroma
@pytest.mark.mount
def test_a_copy_equals_the_mount(tmp_path: Path, store: Path, mount_root: Path) -> None:
    """`diff -r` finds no difference between an export and a mount for one identity."""
    done = chromafuse(tmp_path, "export", store, "--group", "billing", tmp_path / "copy")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("chromafuse: 4 pages for authenticated, groups billing, ")
    with foreground(tmp_path, store, mount_root / "m", "--group", "billing"):
        subprocess.run(["diff", "-r", mount_root / "m", tmp_path / "copy"], check=True)


@pytest.mark.chroma
def test_a_tar_is_not_for_a_terminal(tmp_path: Path, store: Path) -> None:
    """On a terminal `export STORE -` refuses; into a full disk it fails, into a closed pipe quietly."""
    ours, theirs = pty.openpty()
    command = [*PROGRAM, "export", str(store), "-"]
    ends = []
    with open("/dev/full", "wb") as full:
        for out in (theirs, full):
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), check=False
            )  # fmt: skip
            ends.append((done.returncode, done.stderr))
    os.close(ours)
    os.close(theirs)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), check=False
    )  # fmt: skip
    os.close(writing)
    ends.append((done.returncode, done.stderr))
    assert ends == [
        (1, "chromafuse: a tar is not for a terminal; redirect it, or give a directory\n"),
        (
            1,
            "chromafuse: cannot write the tar: No space left on device; what there is of it is not whole\n",
        ),
        (1, ""),
    ]
