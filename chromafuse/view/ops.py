"""The handlers of a mount. Thin: metadata is read from the snapshot, bytes are asked of the hub.

Metadata never waits: lookup, getattr, readdir, opendir, statfs do no I/O and contain no await, because a
caller that waits in one of them cannot be killed. Only `read` may wait, under the link's deadline.

There are no handle tables: the handle of an open file or directory is its inode. Every write is refused here
as well as by the `ro` of the mount, which root can remount away.

Concurrency: handlers run as tasks of the trio thread; all they share is immutable or changed between awaits.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn, Protocol

import pyfuse3
import trio
from pyfuse3 import FileHandleT, FileInfo, FileNameT, FlagT, FUSEError, InodeT, ModeT

from ..errors import RecordDamaged
from ..model.names import NAME_MAX
from ..model.snapshot import Child, Snapshot
from . import attributes
from .attributes import Owner
from .control import ControlFiles
from .guard import Counters, guarded
from .link import Refused

log = logging.getLogger(__name__)

_DOTS = 2  # "." and ".." take the first two positions of every listing


class Reader(Protocol):
    """Where the bytes of a page come from."""

    async def read(self, inode: int, offset: int, size: int) -> bytes | memoryview:
        """Return bytes of a page. Raises Refused or another ChromafuseError."""
        ...

    def listed(self, directory: int) -> None:
        """Learn that the kernel knows the names in a directory."""
        ...


async def _refuse(*_: Any) -> Any:
    raise FUSEError(errno.EROFS)


@guarded
class Operations(pyfuse3.Operations):
    """One identity's mount."""

    # Inodes are not looked up by `.` and `..`: the mount is not exported.
    supports_dot_lookup = False

    def __init__(
        self, snapshot: Snapshot, control: ControlFiles, reader: Reader, owner: Owner
    ) -> None:
        super().__init__()
        self.counters = Counters()
        self.started = trio.Event()  # the kernel has begun the session
        self._snapshot = snapshot
        self._control = control
        self._reader = reader
        self._owner = owner
        self._listing = attributes.Listing(owner, snapshot)
        self._statfs = attributes.filesystem(snapshot)
        self._written: set[int] = set()
        self._wrote = trio.Event()

    def init(self) -> None:
        """Note that the kernel has begun the session."""
        self.started.set()

    # -- metadata: no await in here

    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if len(name) > NAME_MAX:
            raise FUSEError(errno.ENAMETOOLONG)
        if self._control.owns(parent_inode):
            return self._control.lookup(parent_inode, name)
        self._require_directory(parent_inode)
        if self._control.hides(parent_inode, name):
            return self._control.lookup(parent_inode, name)
        inode = self._snapshot.lookup(parent_inode, name)
        if not inode:
            return attributes.absent(attributes.FOREVER)
        return attributes.of(self._owner, self._snapshot, inode)

    async def getattr(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(inode)

    async def opendir(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> FileHandleT:
        self._require_directory(inode)
        return pyfuse3.FileHandleT(inode)

    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        self._require_directory(fh)
        attributes_of = self._listing.of
        if self._control.owns(fh):
            attributes_of = self._attributes
        elif start_id:
            self._reader.listed(fh)  # whoever goes on has taken in what came before
        for position, name, inode in self._entries(fh, start_id):
            if not pyfuse3.readdir_reply(token, FileNameT(name), attributes_of(inode), position):
                break

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return self._statfs

    async def access(self, inode: InodeT, mode: ModeT, ctx: pyfuse3.RequestContext) -> bool:
        # Not called while the kernel checks modes itself (default_permissions).
        if mode & os.W_OK:
            raise FUSEError(errno.EROFS)
        return not mode & os.X_OK or self._is_directory(inode)

    async def readlink(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> NoReturn:
        raise FUSEError(errno.EINVAL)

    async def open(self, inode: InodeT, flags: FlagT, ctx: pyfuse3.RequestContext) -> FileInfo:
        if self._is_directory(inode):
            raise FUSEError(errno.EISDIR)
        # O_TRUNC comes with the open (libfuse asks for that) and needs no write mode: answered with
        # success, the kernel takes the page for empty from then on.
        if flags & (os.O_ACCMODE | os.O_TRUNC) != os.O_RDONLY:
            raise FUSEError(errno.EROFS)
        return FileInfo(fh=pyfuse3.FileHandleT(inode), keep_cache=True)

    async def release(self, fh: FileHandleT) -> None:
        """Nothing is kept for an open file."""

    async def releasedir(self, fh: FileHandleT) -> None:
        """Nothing is kept for an open directory."""

    # -- bytes

    async def read(  # type: ignore[override] # pyfuse3 takes any buffer
        self, fh: FileHandleT, off: int, size: int
    ) -> bytes | memoryview:
        if self._is_directory(fh):
            raise FUSEError(errno.EISDIR)
        if self._control.owns(fh):
            return (await self._control.read(fh))[off : off + size]
        wanted = max(0, min(size, self._snapshot.size(fh) - off))
        if not wanted:
            return b""
        try:
            data = await self._reader.read(fh, off, wanted)
        except Refused as refused:
            raise FUSEError(refused.errno) from None
        if len(data) != wanted:  # the kernel would fill up with NULs, or cut
            log.error("the hub sent %d bytes where %d belong (inode %d)", len(data), wanted, fh)
            raise RecordDamaged("an answer of the wrong length")
        return data

    # -- writes: none. flush, fsync, fsyncdir, get/listxattr and poll stay ENOSYS: the kernel asks once.

    _writes: Any = _refuse  # one handler for all signatures
    setattr = mknod = mkdir = unlink = rmdir = symlink = rename = link = create = _writes
    setxattr = removexattr = _writes

    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> NoReturn:
        # In fast mode root may open for writing once he remounted. What he writes through a mapping is in the
        # kernel's cache, and stays there although it is refused, until it is dropped.
        self._written.add(fh)
        self._wrote.set()
        raise FUSEError(errno.EROFS)

    async def drop_written(self) -> NoReturn:
        """Drop from the kernel's cache, as long as the mount lives, what was written there and refused."""
        while True:
            await self._wrote.wait()
            self._wrote = trio.Event()
            while self._written:
                inode = InodeT(self._written.pop())
                with suppress(FileNotFoundError):  # forgotten, and the bytes with it
                    # In a thread: the kernel waits for the answer to the write first.
                    await trio.to_thread.run_sync(pyfuse3.invalidate_inode, inode)

    # -- helpers

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        if self._control.owns(inode):
            return self._control.attributes(inode)
        return attributes.of(self._owner, self._snapshot, inode)

    def _is_directory(self, inode: int) -> bool:
        if self._control.owns(inode):
            return self._control.is_directory(inode)
        if not self._snapshot.has(inode):
            raise FUSEError(errno.ESTALE)
        return self._snapshot.is_directory(inode)

    def _require_directory(self, inode: int) -> None:
        if not self._is_directory(inode):
            raise FUSEError(errno.ENOTDIR)

    def _entries(self, inode: int, after: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield (position, name, inode) of a directory's entries that come after position `after`."""
        if self._control.owns(inode):
            parent = self._control.parent(inode)
            shown = self._control.children(inode)[max(0, after - _DOTS) :]
            children: Iterator[Child] = iter(shown)
        else:
            parent = self._snapshot.parent(inode)
            children = self._snapshot.children(inode, after - _DOTS)
        if after < 1:
            yield 1, b".", inode
        if after < 2:
            yield 2, b"..", parent
        for child in children:
            yield child.slot + _DOTS, child.name, child.inode
