"""Every way to write that a program has: what each gets, as JSON. Standard library only, run as any user.

    python3 - MOUNTPOINT < write_attempts.py      prints {attempt: errno name, or "OK"}

The mount holds the page `page.md`, the page `sub/page.md` and nothing else.
"""

import contextlib
import errno
import fcntl
import json
import mmap
import os
import socket
import stat
import struct
import sys

FS_IOC_SETFLAGS = 0x40086602


def opening(path: str, flags: int) -> None:
    """Open and close at once; the opening is the attempt."""
    os.close(os.open(path, flags, 0o644))


def writing(path: str) -> None:
    """Open for writing and write: where the opening is not refused the write is."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, b"x")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def reading(path: str):  # type: ignore[no-untyped-def]
    """Hold an ordinary descriptor for reading."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def through_descriptor(action):  # type: ignore[no-untyped-def]
    """Make an attempt of an action on a descriptor opened for reading."""

    def attempt() -> None:
        with reading("page.md") as descriptor:
            action(descriptor)

    return attempt


def bind_socket() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("new")


ATTEMPTS = {
    "open for writing": lambda: opening("page.md", os.O_WRONLY),
    "open for reading and writing": lambda: opening("page.md", os.O_RDWR),
    "open for appending": lambda: opening("page.md", os.O_WRONLY | os.O_APPEND),
    "open and truncate": lambda: opening("page.md", os.O_WRONLY | os.O_TRUNC),
    "open for reading and truncate": lambda: opening("page.md", os.O_RDONLY | os.O_TRUNC),
    "open a directory for writing": lambda: opening("sub", os.O_WRONLY),
    "open for writing and write": lambda: writing("page.md"),
    "open the status file for writing and write": lambda: writing(".chromafuse/status"),
    "create": lambda: opening("new", os.O_WRONLY | os.O_CREAT),
    "create, new only": lambda: opening("new", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "create for reading": lambda: opening("new", os.O_RDONLY | os.O_CREAT),
    "create where a page is, new only": lambda: opening("page.md", os.O_CREAT | os.O_EXCL),
    "create an unnamed file": lambda: opening(".", os.O_TMPFILE | os.O_WRONLY),
    "truncate": lambda: os.truncate("page.md", 0),
    "truncate a descriptor for reading": through_descriptor(lambda fd: os.ftruncate(fd, 0)),
    "write to a descriptor for reading": through_descriptor(lambda fd: os.write(fd, b"x")),
    "allocate on a descriptor for reading": through_descriptor(
        lambda fd: os.posix_fallocate(fd, 0, 10)
    ),
    "map for shared writing": through_descriptor(
        lambda fd: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_WRITE)
    ),
    "mkdir": lambda: os.mkdir("new"),
    "mkdir where a directory is": lambda: os.mkdir("sub"),
    "mkdir where a page is": lambda: os.mkdir("page.md"),
    "rmdir": lambda: os.rmdir("sub"),
    "rmdir of nothing": lambda: os.rmdir("absent"),
    "unlink": lambda: os.unlink("page.md"),
    "unlink of nothing": lambda: os.unlink("absent"),
    "unlink of a directory": lambda: os.unlink("sub"),
    "rename": lambda: os.rename("page.md", "new"),
    "rename over a page": lambda: os.rename("page.md", "sub/page.md"),
    "rename a directory": lambda: os.rename("sub", "new"),
    "rename of nothing": lambda: os.rename("absent", "new"),
    "link": lambda: os.link("page.md", "new"),
    "symlink": lambda: os.symlink("page.md", "new"),
    "symlink where a page is": lambda: os.symlink("x", "page.md"),
    "mknod of a file": lambda: os.mknod("new", 0o644 | stat.S_IFREG),
    "mkfifo": lambda: os.mkfifo("new"),
    "bind a socket": bind_socket,
    "chmod": lambda: os.chmod("page.md", 0o777),
    "chmod of the root": lambda: os.chmod(".", 0o777),
    "chmod of a descriptor": through_descriptor(lambda fd: os.fchmod(fd, 0o777)),
    "chown": lambda: os.chown("page.md", os.getuid(), os.getgid()),
    "set times": lambda: os.utime("page.md", (1, 1)),
    "set times to now": lambda: os.utime("page.md"),
    "set times of a directory": lambda: os.utime("sub", (1, 1)),
    "set an attribute": lambda: os.setxattr("page.md", "user.x", b"x"),
    "remove an attribute": lambda: os.removexattr("page.md", "user.x"),
    "set inode flags": through_descriptor(
        lambda fd: fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", 0x10))
    ),
    "ask for write access": lambda: _require(os.access("page.md", os.W_OK)),
    "write the status file": lambda: opening(".chromafuse/status", os.O_WRONLY),
    "unlink the status file": lambda: os.unlink(".chromafuse/status"),
    "create a control file": lambda: opening(".chromafuse/new", os.O_WRONLY | os.O_CREAT),
    "create the control directory": lambda: os.mkdir(".chromafuse"),
    "rename over the control directory": lambda: os.rename("sub", ".chromafuse"),
}


def _require(granted: bool) -> None:
    if not granted:
        raise OSError(errno.EROFS, "access(2) says no, which Python does not explain")


def outcome(attempt) -> str:  # type: ignore[no-untyped-def]
    """Return the name of the errno that an attempt ends with."""
    try:
        attempt()
    except OSError as exc:
        return errno.errorcode[exc.errno]
    return "OK"


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    sys.stdout.write(json.dumps({name: outcome(attempt) for name, attempt in ATTEMPTS.items()}))
