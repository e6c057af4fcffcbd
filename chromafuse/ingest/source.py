"""A source directory: which files are meant, and their bytes. Nothing outside the directory is ever read.

Every file is opened component by component below the directory's own descriptor, no component followed if
it is a symbolic link: exchanging a directory for a link while ingest runs leads to an error, not outside.

Concurrency: plain blocking calls, no state but one descriptor. A file that changes while it is read is read
again; one that does not come to rest is an error, never a mixture.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from ..errors import UsageError, UserError
from ..model import names
from .globs import Glob, names_segment, parse_glob

VCS = ("CVS", "_darcs")  # version control that keeps its files in the tree, under no dot
_ATTEMPTS = 3
_BENEATH = os.O_NOFOLLOW | os.O_CLOEXEC
_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFLNK: "a symbolic link",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which paths are meant: --include and --exclude. Exclude beats include."""

    include: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()

    def left_out_as_dot(self, path: str) -> bool:
        """Say whether the last name of `path` is a dot-file or a VCS folder that no include names."""
        name = path.rpartition("/")[2]
        if name.lower() == ".git":
            return True
        if name in VCS:
            return not any(name in glob.segments for glob in self.include)
        if not name.startswith("."):
            return False
        return not any(names_segment(glob, name) for glob in self.include)

    def excludes(self, path: str) -> bool:
        """Say whether an --exclude means `path`."""
        return any(glob.matches(path) for glob in self.exclude)

    def includes(self, path: str) -> bool:
        """Say whether the includes mean the file `path`, every dot-name in it included."""
        matching = [glob for glob in self.include if glob.matches(path)]
        dots = [name for name in path.split("/") if name.startswith(".")]
        if self.include and not matching:
            return False
        return all(any(names_segment(glob, name) for glob in matching) for name in dots)


def parse_selection(include: list[str], exclude: list[str]) -> Selection:
    """Read the globs of the command line. Raises UsageError."""
    return Selection(_parse_all("--include", include), _parse_all("--exclude", exclude))


def _parse_all(flag: str, globs: list[str]) -> tuple[Glob, ...]:
    try:
        return tuple(parse_glob(text) for text in globs)
    except ValueError:
        pass
    for text in globs:
        try:
            parse_glob(text)
        except ValueError as exc:
            raise UsageError(f"{flag} {text!r} {exc}") from exc
    raise AssertionError("one of the globs was refused")


@dataclass(slots=True)
class Listing:
    """What a walk found. Paths are relative; those of files are valid UTF-8 and can be shown in a mount.

    `skipped` are (path, why) of what was meant but cannot go in; `dot_names` counts names left out for
    their dot, a directory as one.
    """

    files: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    dot_names: int = 0
    deselected: int = 0


class Source:
    """A source directory, held open."""

    def __init__(self, path: str) -> None:
        """Open the directory. Raises UserError where it is missing, none, or not readable."""
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UserError(f"there is no directory {printable(path)}; check SRC") from None
        except NotADirectoryError:
            raise UserError(
                f"{printable(path)} is not a directory; SRC is a directory of pages"
            ) from None
        except (OSError, ValueError) as exc:  # ValueError: a NUL in the path
            reason = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise UserError(f"cannot open the directory {printable(path)}: {reason}") from exc

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def is_at(self, status: os.stat_result) -> bool:
        """Say whether this is the directory with that status."""
        return os.path.samestat(os.fstat(self._fd), status)

    # -- walking ---------------------------------------------------------------------------------------

    def walk(self, selection: Selection, *, without: os.stat_result | None = None) -> Listing:
        """List the files that `selection` means, in tree order. The directory `without` is left out.

        Raises UserError for a directory that cannot be read.
        """
        listing = Listing()
        pending = [""]
        while pending:
            directory = pending.pop()
            for name, status in self._entries(directory):
                path = f"{directory}{name}"
                if without is not None and os.path.samestat(status, without):
                    listing.skipped.append((path, "the store itself"))
                elif _admit(path, status, selection, listing):
                    pending.append(f"{path}/")
        listing.files.sort(key=names.sort_key)
        listing.skipped.sort(key=lambda item: _encode(item[0]))
        return listing

    def _entries(self, directory: str) -> list[tuple[str, os.stat_result]]:
        found = []
        try:
            with (
                self._open(directory.rstrip("/"), os.O_RDONLY | os.O_DIRECTORY) as fd,
                os.scandir(fd) as it,
            ):
                for entry in it:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed since it was listed
                    found.append(
                        (os.fsencode(entry.name).decode("utf-8", "surrogateescape"), status)
                    )
        except OSError as exc:
            place = printable(directory) or "the source directory"
            raise UserError(_unreadable(place, exc)) from exc
        return found

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, path: str) -> tuple[bytes, int]:
        """Return the bytes of one file and its mtime (ns), both of one moment.

        Raises UserError where the file cannot be read, is gone, became something else or does not rest.
        """
        for _ in range(_ATTEMPTS):
            try:
                # O_NONBLOCK: a pipe put in the file's place must not hang the open
                with self._open(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
                    before = os.fstat(fd)
                    if not stat.S_ISREG(before.st_mode):
                        raise UserError(_moved(path))
                    data = _read_all(fd)
                    after = os.fstat(fd)
            except OSError as exc:
                if exc.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                    raise UserError(_moved(path)) from exc
                raise UserError(_unreadable(printable(path), exc)) from exc
            if _state(before) == _state(after) and len(data) == after.st_size:
                return data, after.st_mtime_ns
        raise UserError(
            f"{printable(path)} changes while it is read; run ingest when it is at rest"
        )

    @contextmanager
    def _open(self, path: str, flags: int) -> Iterator[int]:
        """Open `path` below the source; no component of it may be a symbolic link."""
        parts = _encode(path).split(b"/") if path else [b"."]
        at = self._fd
        try:
            for part in parts[:-1]:
                below = os.open(part, os.O_PATH | os.O_DIRECTORY | _BENEATH, dir_fd=at)
                if at != self._fd:
                    os.close(at)
                at = below
            fd = os.open(parts[-1], flags | _BENEATH, dir_fd=at)
        finally:
            if at != self._fd:
                os.close(at)
        try:
            yield fd
        finally:
            os.close(fd)


def _admit(path: str, status: os.stat_result, selection: Selection, listing: Listing) -> bool:
    """Enter one name into the listing; say whether it is a directory to walk into."""
    if selection.left_out_as_dot(path):
        listing.dot_names += 1
        return False
    is_directory = stat.S_ISDIR(status.st_mode)
    if selection.excludes(f"{path}/" if is_directory else path):
        listing.deselected += 1
        return False
    problem = names.problem_of(path)
    if is_directory:
        if problem:
            listing.skipped.append((f"{path}/", problem))
        return not problem
    if not selection.includes(path):
        listing.deselected += 1
    elif not stat.S_ISREG(status.st_mode):
        listing.skipped.append((path, _SPECIAL.get(stat.S_IFMT(status.st_mode), "no regular file")))
    elif problem:
        listing.skipped.append((path, problem))
    else:
        listing.files.append(path)
    return False


def _read_all(fd: int) -> bytes:
    with open(fd, "rb", buffering=0, closefd=False) as file:
        return file.readall()


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _unreadable(place: str, exc: OSError) -> str:
    return f"cannot read {place}: {exc.strerror}; make it readable, or leave it out with --exclude"


def _moved(path: str) -> str:
    return f"{printable(path)} was removed or replaced while ingest ran; run it again"


def printable(text: str) -> str:
    """Return `text` for a terminal: bytes that are no UTF-8 and control characters as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in _encode(text).decode("utf-8", "backslashreplace")
    )
