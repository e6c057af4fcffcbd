"""What `stat` answers for a page, a directory and a name that is not there. Values made on demand, no state.

Attributes and names of the tree never change under their inode, so the kernel may keep them for ever.
Control files come and go with what they say: the kernel asks for them every time.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass

import pyfuse3

from ..model.snapshot import BLOCK, DIRECTORY, Snapshot

FOREVER = float("inf")  # libfuse takes it for the longest timeout there is
DIRECTORY_SIZE = 4096  # bytes; what ext4 shows for a small one
BLOCK_SIZE = 128 << 10  # st_blksize: tools read in pieces as large as the kernel's readahead
STATFS_BLOCK = 4096  # bytes
FILE_MODE = stat.S_IFREG | 0o444
DIRECTORY_MODE = stat.S_IFDIR | 0o555


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns everything in a mount: the user that mounted it."""

    uid: int
    gid: int


def absent(timeout: float) -> pyfuse3.EntryAttributes:
    """Return the answer for a name that is not there, which the kernel keeps for `timeout` seconds."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = timeout
    return entry


def page(
    owner: Owner, inode: int, size: int, mtime_ns: int, timeout: float = FOREVER
) -> pyfuse3.EntryAttributes:
    """Return the attributes of a page of `size` bytes."""
    entry = _common(owner, inode, mtime_ns, timeout)
    entry.st_mode = pyfuse3.ModeT(FILE_MODE)
    entry.st_size = size
    entry.st_blocks = -(-size // BLOCK)
    return entry


def directory(
    owner: Owner, inode: int, mtime_ns: int, timeout: float = FOREVER
) -> pyfuse3.EntryAttributes:
    """Return the attributes of a directory."""
    entry = _common(owner, inode, mtime_ns, timeout)
    entry.st_mode = pyfuse3.ModeT(DIRECTORY_MODE)
    entry.st_size = DIRECTORY_SIZE
    entry.st_blocks = -(-DIRECTORY_SIZE // BLOCK)
    return entry


def of(owner: Owner, snapshot: Snapshot, inode: int) -> pyfuse3.EntryAttributes:
    """Return the attributes of a node of the tree; ESTALE where there is no such node."""
    if not snapshot.has(inode):
        raise pyfuse3.FUSEError(errno.ESTALE)
    mtime_ns = snapshot.mtime_ns(inode)
    if snapshot.is_directory(inode):
        return directory(owner, inode, mtime_ns)
    return page(owner, inode, snapshot.size(inode), mtime_ns)


class Listing:
    """The attributes of one entry after another: readdir_reply copies them, so one object does for all."""

    def __init__(self, owner: Owner, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._page = page(owner, 0, 0, 0)
        self._directory = directory(owner, 0, 0)

    def of(self, inode: int) -> pyfuse3.EntryAttributes:
        """Return the attributes of a node that exists; valid until the next call."""
        size = self._snapshot.size(inode)
        if size == DIRECTORY:
            entry = self._directory
        else:
            entry = self._page
            entry.st_size = size
            entry.st_blocks = -(-size // BLOCK)
        entry.st_ino = pyfuse3.InodeT(inode)
        mtime_ns = self._snapshot.mtime_ns(inode)
        entry.st_atime_ns = entry.st_ctime_ns = entry.st_mtime_ns = mtime_ns
        return entry


def filesystem(snapshot: Snapshot) -> pyfuse3.StatvfsData:
    """Return what `statfs` answers: the pages and nodes of this view, and nothing free."""
    data = pyfuse3.StatvfsData()
    data.f_bsize = data.f_frsize = STATFS_BLOCK
    # `df` leaves a file system of no blocks out of its list.
    data.f_blocks = max(1, -(-snapshot.blocks() * BLOCK // STATFS_BLOCK))
    data.f_bfree = data.f_bavail = 0
    data.f_files = len(snapshot)
    data.f_ffree = data.f_favail = 0
    data.f_namemax = 255
    return data


def _common(owner: Owner, inode: int, mtime_ns: int, timeout: float) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(inode)
    entry.st_nlink = 1  # directories too: find then walks them without its leaf shortcut
    entry.st_uid = owner.uid
    entry.st_gid = owner.gid
    entry.st_blksize = BLOCK_SIZE
    entry.st_atime_ns = entry.st_ctime_ns = entry.st_mtime_ns = mtime_ns
    entry.entry_timeout = entry.attr_timeout = timeout
    return entry
