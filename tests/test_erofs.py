"""Nothing can be written: one table of attempts, by root and by another user, also after a remount."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import write_attempts
from tests.support.fake_hub import FakeHub
from tests.support.modes import FAST
from tests.support.view_process import ViewProcess, mounted

pytestmark = pytest.mark.mount

PAGES = {"page.md": b"page\n", "sub/page.md": b"other\n"}
NOBODY = 65534

# attempt -> errno as mounted, by anybody. The same for root and nobody: the kernel refuses by the mount.
READ_ONLY = {
    "open for writing": "EROFS",
    "open for reading and writing": "EROFS",
    "open for appending": "EROFS",
    "open and truncate": "EROFS",
    "open for reading and truncate": "EROFS",
    "open a directory for writing": "EISDIR",
    "open for writing and write": "EROFS",
    "open the status file for writing and write": "EROFS",
    "create": "EROFS",
    "create, new only": "EROFS",
    "create for reading": "EROFS",
    "create where a page is, new only": "EEXIST",
    "create an unnamed file": "EROFS",
    "truncate": "EROFS",
    "truncate a descriptor for reading": "EINVAL",
    "write to a descriptor for reading": "EBADF",
    "allocate on a descriptor for reading": "EBADF",
    "map for shared writing": "EACCES",
    "mkdir": "EROFS",
    "mkdir where a directory is": "EEXIST",
    "mkdir where a page is": "EEXIST",
    "rmdir": "EROFS",
    "rmdir of nothing": "EROFS",
    "unlink": "EROFS",
    "unlink of nothing": "EROFS",
    "unlink of a directory": "EROFS",
    "rename": "EROFS",
    "rename over a page": "EROFS",
    "rename a directory": "EROFS",
    "rename of nothing": "EROFS",
    "link": "EROFS",
    "symlink": "EROFS",
    "symlink where a page is": "EEXIST",
    "mknod of a file": "EROFS",
    "mkfifo": "EROFS",
    "bind a socket": "EROFS",
    "chmod": "EROFS",
    "chmod of the root": "EROFS",
    "chmod of a descriptor": "EROFS",
    "chown": "EROFS",
    "set times": "EROFS",
    "set times to now": "EROFS",
    "set times of a directory": "EROFS",
    "set an attribute": "EROFS",
    "remove an attribute": "EROFS",
    "set inode flags": "EROFS",
    "ask for write access": "EROFS",
    "write the status file": "EROFS",
    "unlink the status file": "EROFS",
    "create a control file": "EROFS",
    "create the control directory": "EEXIST",
    "rename over the control directory": "EROFS",
}

# Where root's answer differs after `mount -i -o remount,rw`: what Linux decides before it asks the handlers.
ROOT_REMOUNTED = {
    "create an unnamed file": "ENOTSUP",
    "rmdir of nothing": "ENOENT",
    "unlink of nothing": "ENOENT",
    "unlink of a directory": "EISDIR",
    "rename of nothing": "ENOENT",
    "set inode flags": "ENOTTY",
    "ask for write access": "OK",  # the kernel's own rule for root; the write itself is refused
}

if FAST:
    # No open reaches a handler in fast mode, so root may open; what he then writes is refused.
    ROOT_REMOUNTED |= {
        "open for writing": "OK",
        "open for reading and writing": "OK",
        "open for appending": "OK",
        "write the status file": "OK",
    }

# nobody after the remount: the modes refuse first.
NOBODY_REMOUNTED = {
    **{name: "EACCES" for name, code in READ_ONLY.items() if code == "EROFS"},
    **{name: "ENOENT" for name in READ_ONLY if name.endswith("of nothing")},
    **{
        name: "EPERM"
        for name in READ_ONLY
        if name.startswith(("chmod", "chown", "link", "set times"))
    },
    "set times to now": "EACCES",
    "set inode flags": "EPERM",
    "ask for write access": "EROFS",
}


def attempts(mountpoint: Path, user: int) -> dict[str, str]:
    """Make every attempt as `user`, with the system's own interpreter, which other users can run."""
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-", mountpoint],
        input=Path(write_attempts.__file__).read_text(encoding="utf-8"),
        user=user,
        group=user,
        extra_groups=[],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def content(mountpoint: Path) -> dict[str, bytes]:
    """Read the whole mount."""
    files = (path for path in mountpoint.rglob("*") if path.is_file())
    return {str(path.relative_to(mountpoint)): path.read_bytes() for path in files}


@pytest.fixture
def view(mount_root: Path) -> Iterator[ViewProcess]:
    """Mount two pages, for other users too."""
    with mounted(FakeHub(PAGES), mount_root / "m", "--allow-other") as process:
        yield process


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "nobody"])
def test_every_write_is_refused(view: ViewProcess, user: int) -> None:
    """As mounted, every kind of write gets EROFS, or what Linux says before; nothing changes."""
    assert attempts(view.mountpoint, user) == READ_ONLY
    assert content(view.mountpoint) == PAGES


def test_no_write_reaches_the_view(view: ViewProcess) -> None:
    """The `ro` of the mount stops writes in the kernel already."""
    attempts(view.mountpoint, 0)
    reads = {"lookup", "getattr", "open", "release", "flush", "read", "opendir", "readdir"}
    assert set(view.counters()) - reads - {"releasedir", "statfs", "getxattr", "forget"} == set()


def test_the_handlers_refuse_after_a_remount(view: ViewProcess) -> None:
    """Root can remount read-write; the handlers refuse every write all the same, and nothing changes."""
    subprocess.run(["mount", "-i", "-o", "remount,rw", view.mountpoint], check=True)
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert f" {view.mountpoint} rw," in table
    assert attempts(view.mountpoint, 0) == READ_ONLY | ROOT_REMOUNTED
    assert attempts(view.mountpoint, NOBODY) == READ_ONLY | NOBODY_REMOUNTED
    assert content(view.mountpoint) == PAGES
    handlers = {
        "setattr",
        "mknod",
        "mkdir",
        "unlink",
        "rmdir",
        "symlink",
        "rename",
        "link",
        "create",
    }
    assert handlers | {"setxattr", "removexattr"} <= set(view.counters())


def test_the_table_names_every_attempt() -> None:
    """No attempt is without its row."""
    assert list(write_attempts.ATTEMPTS) == list(READ_ONLY)
