"""The mount table: every path that a mountpoint may have, what hides what, and whether it answers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse import mountinfo
from chromafuse.mountinfo import Health, Mount, layers, parse, probe, resolve
from chromafuse.text import aligned, printable, quoted


def line(id: int, parent: int, path: bytes, fstype: bytes = b"tmpfs") -> bytes:
    """Return a line as the kernel writes it."""
    escaped = re.sub(rb"[ \t\n\\#]", lambda match: b"\\%03o" % match[0][0], path)
    return b"%d %d 0:%d / %s ro,nosuid shared:1 master:2 - %s src rw,user_id=7\n" % (
        id, parent, id + 100, escaped, fstype,
    )  # fmt: skip


@given(st.binary(min_size=1).filter(lambda raw: b"\0" not in raw))
def test_any_path_is_read_back(raw: bytes) -> None:
    """Blanks, newlines, backslashes and bytes that are no UTF-8 survive the kernel's escapes."""
    (mount,) = parse(line(5, 1, b"/" + raw, b"fuse.chromafuse"))
    assert mount == Mount(
        5, 1, 105, os.fsdecode(b"/" + raw), frozenset({"ro", "nosuid"}), "fuse.chromafuse", "src",
        frozenset({"rw", "user_id=7"}),
    )  # fmt: skip
    assert (mount.is_ours, mount.owner) == (True, 7)


def test_the_real_table_is_read() -> None:
    """The table of this very process is parsed, its root included."""
    assert "/" in {mount.path for mount in mountinfo.read_mounts()}


TABLE = parse(
    line(1, 0, b"/", b"ext4")
    + line(2, 1, b"/a", b"autofs")
    + line(3, 2, b"/a", b"fuse.chromafuse")
    + line(4, 1, b"/b/c", b"fuse.chromafuse")
    + line(5, 1, b"/b", b"tmpfs")
    + line(6, 5, b"/b/d", b"xfs")
    + line(7, 1, b"/ab", b"btrfs")
)


@pytest.mark.parametrize(
    ("path", "types"),
    [
        ("/a", ["autofs", "fuse.chromafuse"]),
        ("/b", ["tmpfs"]),
        ("/b/c", []),  # hidden by what was mounted on /b later
        ("/b/d", ["xfs"]),
        ("/a/x", []),
        ("/abc", []),
        ("/", ["ext4"]),
    ],
)
def test_layers_are_those_that_a_lookup_reaches(path: str, types: list[str]) -> None:
    """What is mounted at a place is what the kernel finds there, bottom first."""
    assert [mount.fstype for mount in layers(path, TABLE)] == types


def test_in_a_chroot_there_is_no_root() -> None:
    """Without the root in the table, the lines for the path itself count."""
    assert [mount.id for mount in layers("/b/d", [m for m in TABLE if m.id != 1])] == [6]


def test_paths_are_resolved_without_touching_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links, relative paths and trailing slashes lead to the one path; what is missing is kept."""
    (tmp_path / "real" / "docs").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "alias").symlink_to("docs")
    (tmp_path / "round").symlink_to("round")
    monkeypatch.chdir(tmp_path / "real")
    expected = str(tmp_path.resolve() / "real" / "docs")
    for path in ("docs", "docs/", "./docs", "../link/docs", f"{tmp_path}/link/alias//", "docs/."):
        assert resolve(path) == expected
    assert resolve("no/such") == f"{tmp_path.resolve()}/real/no/such"
    with pytest.raises(OSError, match="symbolic links"):
        resolve(str(tmp_path / "round"))


def test_an_ordinary_directory_is_live(tmp_path: Path) -> None:
    """The probe asks whatever file system is there."""
    assert probe(str(tmp_path)) is Health.LIVE


def test_a_probe_that_gets_no_answer_says_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time the probe gives up; whoever asked goes on."""
    monkeypatch.setattr(mountinfo, "_PROBE_CODE", "import time; time.sleep(60)")
    assert probe(str(tmp_path), timeout=0.2) is Health.HUNG
    assert mountinfo.check(str(tmp_path), timeout=0.2) == "no answer within 0.2 s"


def test_the_check_reads_the_status_file(tmp_path: Path) -> None:
    """A file system that answers but has no status file is not a mount of ours that works."""
    assert mountinfo.check(str(tmp_path), timeout=10) == "No such file or directory"
    (tmp_path / ".chromafuse").mkdir()
    (tmp_path / ".chromafuse" / "status").touch()
    assert mountinfo.check(str(tmp_path), timeout=10) == ""


@pytest.mark.mount
def test_unmounting_takes_the_top_layer(mount_root: Path) -> None:
    """One call takes one layer; a busy one is EBUSY, and goes lazily."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a tmpfs")
    for _ in range(2):
        subprocess.run(["mount", "-t", "tmpfs", "none", mount_root], check=True)
    assert len(layers(str(mount_root))) == 2
    mountinfo.unmount(str(mount_root))
    held = os.open(mount_root, os.O_RDONLY)
    with pytest.raises(OSError, match="busy"):
        mountinfo.unmount(str(mount_root))
    mountinfo.unmount(str(mount_root), lazy=True)
    os.close(held)
    assert layers(str(mount_root)) == []


def test_text_for_a_terminal() -> None:
    """Names cannot break a line or steer a terminal; columns are aligned."""
    assert printable("a b\n\x1b\udcff é") == "a b\\n\\x1b\\xff é"
    assert quoted("/a b") == "'/a b'"
    assert aligned([("a", "bb", "c"), ("aaa", "b", "")]) == ["a    bb  c", "aaa  b"]
