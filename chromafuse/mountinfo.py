"""Mounts: what is mounted where, whether it answers, and taking it away.

A file system that hangs holds whoever touches it, and a caller waiting in statfs cannot be killed. So nothing
here touches a mountpoint but a child process, which is left behind when its time is up.

Concurrency: stateless; every function blocks, so an event loop calls them in a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from .mounttable import FSTYPE as FSTYPE
from .mounttable import Mount as Mount
from .mounttable import parse as parse
from .mounttable import read_mounts as read_mounts

PROBE = 3.0  # s that a mount has to answer
STATUS_FILE = ".chromafuse/status"
FUSECTL = Path("/sys/fs/fuse/connections")

_DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8  # umount(2)
_LINKS = 40  # symbolic links followed, as the kernel does
_FUSERMOUNT_TIME = 10.0  # s
_REAP = 0.1  # s

# Exits with 0, or the errno. A second argument is a file to be read as well.
_PROBE_CODE = """\
import os, sys
try:
    os.statvfs(sys.argv[1])
    if sys.argv[2:]:
        with open(os.path.join(*sys.argv[1:3]), "rb") as file:
            file.read()
except OSError as exc:
    os._exit(exc.errno)
os._exit(0)
"""


class Health(Enum):
    """What a mount answers."""

    LIVE = "live"
    DEAD = "dead"  # its daemon is gone
    HUNG = "hung"  # no answer in time


# -- the table -----------------------------------------------------------------------------------------


def layers(path: str, mounts: Sequence[Mount] | None = None) -> list[Mount]:
    """Return what is mounted exactly at `path`, the topmost last; none where a mount above hides it.

    `path` is absolute and without symbolic links. Walks as the kernel does: from the root, into whatever is
    mounted on each directory of the mount it is in.
    """
    mounts = read_mounts() if mounts is None else mounts
    ids = {mount.id for mount in mounts}
    root = next((m for m in mounts if m.path == "/" and m.parent not in ids - {m.id}), None)
    if root is None:  # in a chroot the root need not be a mount
        return [mount for mount in mounts if mount.path == path]
    on = {(mount.parent, mount.path): mount for mount in mounts if mount is not root}
    current, found = root, [root]
    for place in _prefixes(path):
        if place != "/":
            found = []
        while (above := on.get((current.id, place))) is not None:
            current = above
            found.append(above)
    return found


def is_mounted(mount: Mount) -> bool:
    """Say whether a mount is still where it was, at any layer, whatever `remount` changed."""
    return any(mount.is_same(layer) for layer in layers(mount.path))


def _prefixes(path: str) -> Iterator[str]:
    yield "/"
    at = 0
    while path != "/" and at >= 0:
        at = path.find("/", at + 1)
        yield path if at < 0 else path[:at]


def resolve(path: str) -> str:
    """Return `path` absolute and without symbolic links, and do not touch what is mounted at it.

    Raises OSError where a directory above it cannot be read.
    """
    path = os.path.join(os.getcwd(), path)
    mounted = {mount.path for mount in read_mounts()}
    for _ in range(_LINKS):
        above, name = os.path.split(path.rstrip("/"))
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        path = os.path.join(os.path.realpath(above), name)
        if path in mounted or not os.path.islink(path):
            return path
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


# -- asking a mount ------------------------------------------------------------------------------------


def probe(path: str, *, timeout: float = PROBE) -> Health:
    """Ask the file system at `path` for its statfs.

    A mount of another user's that is not for others answers the kernel's own nothing, and passes for live.
    """
    code = _ask([path], timeout)
    if code is None:
        return Health.HUNG
    return Health.DEAD if code in _DEAD else Health.LIVE


def check(path: str, *, timeout: float) -> str:
    """Ask for statfs and read the status file through the mount; return what is wrong, or nothing."""
    code = _ask([path, STATUS_FILE], timeout)
    if code is None:
        return f"no answer within {timeout:g} s"
    return os.strerror(code) if code else ""


def _ask(arguments: list[str], timeout: float) -> int | None:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROBE_CODE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(
                _REAP
            )  # in vain where it waits in the kernel: until the connection is aborted
        return None


# -- unmounting ----------------------------------------------------------------------------------------


def unmount(path: str, *, lazy: bool = False) -> None:
    """Unmount the topmost layer at `path`. Raises OSError; EBUSY where it is in use and not `lazy`."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    if os.geteuid() == 0 and libc.umount2(os.fsencode(path), flags) == 0:
        return
    code = ctypes.get_errno() if os.geteuid() == 0 else errno.EPERM
    if code != errno.EPERM:
        raise OSError(code, os.strerror(code), path)
    _fusermount(path, lazy)


def _fusermount(path: str, lazy: bool) -> None:
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", path]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
            timeout=_FUSERMOUNT_TIME,
            check=False,
        )
    except FileNotFoundError:
        raise OSError(errno.ENOENT, "fusermount3 is missing; install the package fuse3") from None
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, "fusermount3 does not end") from None
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        busy = "busy" in said
        raise OSError(errno.EBUSY if busy else errno.EPERM, said or "fusermount3 failed")


def abort(mount: Mount) -> bool:
    """End the kernel's side of a mount: whoever waits in it gets ECONNABORTED. Say whether that was possible.

    It stays mounted, and dead.
    """
    try:
        (FUSECTL / str(mount.minor) / "abort").write_text("1")
    except OSError:  # fusectl is not mounted, as in a container, or the mount is another user's
        return _force(mount)
    return True


def _force(mount: Mount) -> bool:
    """Have root's forced unmount end the connection, and fail over the mount that we hold."""
    try:
        held = os.open(mount.path, os.O_PATH | os.O_DIRECTORY)  # asks the file system nothing
    except OSError:
        return False
    try:
        details = Path(f"/proc/self/fdinfo/{held}").read_text(encoding="ascii").split()
        if details[details.index("mnt_id:") + 1] != str(mount.id):
            return False  # something else is mounted over it
        libc = ctypes.CDLL(None, use_errno=True)
        libc.umount2(f"/proc/self/fd/{held}".encode(), _MNT_FORCE)
        return ctypes.get_errno() == errno.EBUSY
    finally:
        os.close(held)
