"""Making and ending the kernel mount, and turning what fails there into one line with the way out.

libfuse and fusermount3 say what is wrong on stderr only, so stderr is caught while they mount. What the
kernel made is read back from mountinfo: options that were dropped on the way fail the mount.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pyfuse3
import trio

from ..errors import UserError
from ..mounttable import Mount, read_mounts

log = logging.getLogger(__name__)

NAME = "chromafuse"
OPTIONS = frozenset(
    {f"fsname={NAME}", f"subtype={NAME}", "ro", "nosuid", "nodev", "noexec", "default_permissions"}
)
REQUIRED = frozenset({"ro", "nosuid", "nodev", "noexec", "default_permissions"})
_POLL = 0.05  # s between attempts to unmount
_SAID_MAX = 8192  # bytes kept of what the helpers print


def mounts_at(point: str) -> list[Mount]:
    """Return what is mounted at `point`, the topmost last."""
    return [mount for mount in read_mounts() if mount.path == point]


def mount(ops: pyfuse3.Operations, point: str, *, allow_other: bool) -> Mount:
    """Mount at `point`, a path without symlinks, and check what the kernel made of it. Raises UserError."""
    _require_directory(point)
    wanted = OPTIONS | {"allow_other"} if allow_other else OPTIONS
    said = bytearray()
    try:
        with _caught_stderr(said):
            pyfuse3.init(ops, point, set(wanted))
    except RuntimeError:
        raise UserError(explain(said.decode(errors="replace"), point)) from None
    if said:
        log.warning("while mounting: %s", said.decode(errors="replace").strip())
    made = mounts_at(point)
    required = REQUIRED | {"allow_other"} if allow_other else REQUIRED
    options = made[-1].options | made[-1].super_options if made else frozenset()
    if made and made[-1].is_ours and options >= required:
        return made[-1]
    missing = ", ".join(sorted(required - options)) if made else "everything"
    pyfuse3.close(unmount=True)
    raise UserError(
        f"{point}: mounted without {missing}, so unmounted again; is fusermount3 of fuse3?"
    )


def is_there(mounted: Mount) -> bool:
    """Say whether this very mount is the topmost at its point."""
    return any(mount.is_same(mounted) for mount in mounts_at(mounted.path)[-1:])


async def unmount_within(mounted: Mount, grace: float) -> bool:
    """Unmount as soon as nobody uses the mount; say whether that was within `grace` seconds.

    The mount has to be served meanwhile. What is left after that takes a lazy unmount, which fails the
    reads under way.
    """
    command = ["fusermount3", "-u", "--", mounted.path]
    if os.geteuid() == 0:
        command = ["umount", "-i", "--", mounted.path]
    with trio.move_on_after(grace):
        while is_there(mounted):
            try:
                done = await trio.run_process(
                    command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            except OSError as exc:
                log.warning("cannot run %s: %s", command[0], exc.strerror)
                return False
            if done.returncode:
                await trio.sleep(_POLL)
        return True
    return False


def explain(said: str, point: str) -> str:
    """Return one line for a mount that failed, from what libfuse and fusermount3 said about it."""
    for pattern, line in _REASONS:
        if re.search(pattern, said):
            return line.format(point=point)
    last = said.strip().splitlines()[-1:] or ["no reason given"]
    return f"{point}: cannot mount: {last[0]}"


_NO_DEVICE = (
    "there is no /dev/fuse: load the module (`modprobe fuse`), or start the container with"
    " `--device /dev/fuse --cap-add SYS_ADMIN`"
)
_NO_ACCESS = "this user may not open /dev/fuse: run as root, or give access (`chmod 666 /dev/fuse`)"
_NO_OTHERS = "--allow-other needs a line `user_allow_other` in /etc/fuse.conf, or root"
_NO_HELPER = "fusermount3 is missing: install the package fuse3, or mount as root"
_TOO_MANY = "there are too many FUSE mounts on this machine: unmount some, or raise `mount_max` in /etc/fuse.conf"
_NOT_OURS = (
    "{point}: a user can mount only on a directory that is theirs: choose one, or mount as root"
)
_NOT_EMPTY = "{point} is not empty: choose an empty directory"
_NO_DIRECTORY = "{point}: cannot mount there: choose an existing directory that this user can enter"
_FORBIDDEN = (
    "{point}: the system refuses a FUSE mount there; AppArmor's profile of fusermount3 (Ubuntu 25.04 and"
    " later) allows $HOME, $XDG_RUNTIME_DIR, /mnt, /media and /tmp; a container needs --cap-add SYS_ADMIN"
)
# The most telling first. Texts of libfuse 3.10 to 3.17; what none of them matches is passed on as it is.
_REASONS = (
    (r"device not found|/dev/fuse: No such", _NO_DEVICE),
    (r"open /dev/fuse: (Permission denied|Operation not permitted)", _NO_ACCESS),
    (r"user_allow_other", _NO_OTHERS),
    (r"failed to exec fusermount|fusermount3?: No such file|posix_spawn", _NO_HELPER),
    (r"too many FUSE filesystems", _TOO_MANY),
    (r"no write access to mountpoint|not owned by user", _NOT_OURS),
    (r"mountpoint is not empty", _NOT_EMPTY),
    (r"bad mount point|failed to access mountpoint", _NO_DIRECTORY),
    (r"mount failed: (Permission denied|Operation not permitted)|over filesystem type", _FORBIDDEN),
)


def _require_directory(point: str) -> None:
    # libfuse would mount on a file as well, with a root that is none of a directory and a file.
    try:
        mode = os.stat(point).st_mode
    except OSError as exc:
        raise UserError(f"{point}: cannot mount there: {exc.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise UserError(f"{point}: cannot mount there: not a directory")


@contextmanager
def _caught_stderr(into: bytearray) -> Iterator[None]:
    kept, caught = os.dup(2), os.memfd_create("stderr")
    os.dup2(caught, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        into += os.pread(caught, _SAID_MAX, 0)
        os.close(caught)
