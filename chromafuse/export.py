"""A pruned copy of a collection, as a directory or a tar: for places where FUSE cannot go.

The names, bytes and times are those of a mount for the same identity. A directory is written under a
temporary name beside its place and renamed when it is whole. It is the user's own to change and remove, so
its modes are 0755 and 0644 less the umask, not the mount's 0555 and 0444.

Concurrency: one task; pages are fetched in batches, in the order of the snapshot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from .errors import ChromafuseError, UsageError, UserError
from .model.access import Identity
from .model.records import TreeEntry, decode_tree
from .model.snapshot import ROOT_INODE, View, build
from .store.protocol import Store
from .store.reader import load_pages, load_root, load_tree
from .text import printable

FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
_BATCH = 16 << 20  # bytes fetched before they are written
_SECOND = 1_000_000_000  # ns


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    pages: int
    bytes: int
    generation: int
    renamed: tuple[tuple[str, str], ...]


class Sink(Protocol):
    """Takes the nodes of a snapshot, depth first; a directory's are those until `leave`."""

    def enter(self, path: str, mtime_ns: int) -> None: ...
    def page(self, path: str, data: bytes, mtime_ns: int) -> None: ...
    def leave(self, path: str, mtime_ns: int) -> None: ...


async def export(store: Store, identity: Identity, sink: Sink) -> Exported:
    """Write what `identity` may see. Raises UserError for a page that is damaged, and what the reader raises."""
    root = await load_root(store)
    tree = decode_tree(await load_tree(store, root), root.generation)
    view = build(root.generation, tree.visible(identity))
    snapshot, above = view.snapshot, [ROOT_INODE]
    pages = size = 0
    async for inode, data in _nodes(store, view):
        while snapshot.ends[above[-1] - 1] < inode:
            left = above.pop()
            sink.leave(snapshot.path(left), snapshot.mtime_ns(left))
        if data is None:
            above.append(inode)
            sink.enter(snapshot.path(inode), snapshot.mtime_ns(inode))
        else:
            sink.page(snapshot.path(inode), data, snapshot.mtime_ns(inode))
            pages, size = pages + 1, size + len(data)
    while above:
        left = above.pop()
        sink.leave(snapshot.path(left), snapshot.mtime_ns(left))
    return Exported(pages, size, root.generation, view.renamed)


async def _nodes(store: Store, view: View) -> AsyncIterator[tuple[int, bytes | None]]:
    """Yield every inode but the root's, with the bytes of a page and None for a directory."""
    inode, last = ROOT_INODE + 1, len(view.snapshot)
    while inode <= last:
        batch: list[TreeEntry] = []
        chunks, size, end = 0, 0, inode
        while end <= last:
            entry = view.entry(end)
            if entry is not None:
                chunks, size = chunks + entry.chunks, size + entry.size
                if batch and (chunks > store.rows_per_call or size > _BATCH):
                    break
                batch.append(entry)
            end += 1
        found = await load_pages(store, batch) if batch else {}
        for number in range(inode, end):
            entry = view.entry(number)
            data = found[entry.version] if entry is not None else None
            if isinstance(data, ChromafuseError):
                raise UserError(
                    f"{printable(str(data))}; the copy is not whole; `chromafuse verify` says more"
                ) from data
            yield number, data
        inode = end


# -- a directory ---------------------------------------------------------------------------------------


class DirectorySink:
    """Writes below a temporary directory beside `target`; `finish` puts it in its place.

    Works by descriptors of the open directories: a path may be longer than a system call takes.
    """

    def __init__(self, target: str) -> None:
        if not target:  # a shell variable that is not set; it must not mean the current directory
            raise UsageError("DIR is empty; name a directory, or - for a tar")
        self._target = os.path.realpath(target)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._mode = _check_target(self._target)
        try:
            self.path = tempfile.mkdtemp(
                prefix=f".{os.path.basename(self._target)[:100]}.",
                dir=os.path.dirname(self._target),
            )
        except OSError as exc:
            raise UserError(f"cannot write beside {printable(target)}: {exc.strerror}") from exc
        self._open = [os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)]

    def enter(self, path: str, mtime_ns: int) -> None:
        name, above = _last(path), self._open[-1]
        os.mkdir(name, 0o700, dir_fd=above)
        self._open.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above))

    def page(self, path: str, data: bytes, mtime_ns: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        opened = os.open(_last(path), flags, FILE_MODE, dir_fd=self._open[-1])
        with open(opened, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.utime(opened, ns=(mtime_ns, mtime_ns))

    def leave(self, path: str, mtime_ns: int) -> None:
        opened = self._open.pop()
        os.fchmod(opened, DIRECTORY_MODE & ~self._umask)
        os.utime(opened, ns=(mtime_ns, mtime_ns))
        os.close(opened)

    def finish(self) -> None:
        """Put the whole copy in its place."""
        if self._mode is not None:
            os.chmod(self.path, self._mode)
        try:
            os.rename(self.path, self._target)
        except OSError as exc:
            raise UserError(
                f"cannot put the copy at {printable(self._target)}: {exc.strerror}; choose a directory that "
                "does not exist"
            ) from exc

    def discard(self) -> None:
        """Remove what was written."""
        for opened in self._open:
            os.close(opened)
        self._open.clear()
        shutil.rmtree(self.path, ignore_errors=True)


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _check_target(target: str) -> int | None:
    """Return the mode of an empty directory that is replaced; None where there is none. Raises UserError."""
    shown = printable(target)
    try:
        facts = os.stat(target)
        if not stat.S_ISDIR(facts.st_mode):
            raise UserError(
                f"{shown} is not a directory; give a new one, an empty one, or - for a tar"
            )
        if os.listdir(target):
            raise UserError(f"{shown} is not empty; give a new directory, or an empty one")
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(target)):
            raise UserError(
                f"there is no directory {printable(os.path.dirname(target))}; make it first"
            ) from None
        return None
    except OSError as exc:
        raise UserError(f"cannot look at {shown}: {exc.strerror}") from exc
    return stat.S_IMODE(facts.st_mode)


async def to_directory(store: Store, identity: Identity, target: str) -> Exported:
    """Write a directory: whole, or not at all."""
    sink = DirectorySink(target)
    try:
        exported = await export(store, identity, sink)
        sink.finish()
    except OSError as exc:
        sink.discard()
        raise UserError(f"cannot write the copy: {exc.strerror}; nothing of it is left") from exc
    except BaseException:
        sink.discard()
        raise
    return exported


# -- a tar ---------------------------------------------------------------------------------------------


class TarSink:
    """Writes a PAX tar, in the order of the snapshot, owned by nobody in particular (uid and gid 0).

    Block by block: TarFile needs a place that it can ask for its position, which a pipe is not, and its
    streams write an end of their own accord, which an archive that was cut short must not have.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._written = 0

    def enter(self, path: str, mtime_ns: int) -> None:
        info = _tar_info(path + "/", mtime_ns)
        info.type, info.mode = tarfile.DIRTYPE, DIRECTORY_MODE
        self._write(info.tobuf(tarfile.PAX_FORMAT))

    def page(self, path: str, data: bytes, mtime_ns: int) -> None:
        info = _tar_info(path, mtime_ns)
        info.size, info.mode = len(data), FILE_MODE
        self._write(info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE))

    def leave(self, path: str, mtime_ns: int) -> None:
        """A tar's directory is written when it is entered."""

    def finish(self) -> None:
        """Write the end mark, and fill the last record."""
        end = 2 * tarfile.BLOCKSIZE
        self._write(bytes(end + -(self._written + end) % tarfile.RECORDSIZE))
        self._out.flush()

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._written += len(data)


def _tar_info(path: str, mtime_ns: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    seconds, rest = divmod(mtime_ns, _SECOND)
    info.mtime = seconds
    if rest:  # as text: a float would lose the nanoseconds
        info.pax_headers = {"mtime": f"{seconds}.{rest:09}".rstrip("0")}
    return info


async def to_tar(store: Store, identity: Identity, out: BinaryIO) -> Exported:
    """Write a tar to `out`. Raises BrokenPipeError where nobody reads it to its end."""
    sink = TarSink(out)
    try:
        exported = await export(store, identity, sink)
        sink.finish()
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise UserError(
            f"cannot write the tar: {exc.strerror}; what there is of it is not whole"
        ) from exc
    return exported


def check_output(out: BinaryIO) -> None:
    """Raise UserError where a tar would go to a terminal."""
    with contextlib.suppress(ValueError):
        if out.isatty():
            raise UserError("a tar is not for a terminal; redirect it, or give a directory")
