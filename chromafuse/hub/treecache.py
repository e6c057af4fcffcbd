"""The path trees kept on disk, so that a second mount does not wait for the download.

A file is the canonical JSON of a tree and has its sha256 for a name, so nothing about it has to be trusted:
what does not have the digest that was asked for is fetched again. The directory is 0700 and ours, the files
are 0600, for they hold every name of a site. A cache that cannot be used costs time, never a mount: it warns
once and is passed over.

Concurrency: files appear whole, by rename; any number of processes may share the directory. An object serves
one call at a time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import time
from pathlib import Path

log = logging.getLogger(__name__)

KEPT = 16  # trees; the least recently used go first
_SUFFIX = ".tree"
_UNFINISHED = ".new"
_ABANDONED = 3_600.0  # s; no process writes one file for longer


class TreeCache:
    """The trees in one directory. `directory` None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._checked = False

    def load(self, sha256: str) -> bytes | None:
        """Return the tree with this digest, or None where it is not here whole."""
        directory = self._usable()
        if directory is None:
            return None
        path = directory / (sha256 + _SUFFIX)
        try:
            canonical = _read(path)
            if hashlib.sha256(canonical).hexdigest() == sha256:
                os.utime(path)
                return canonical
            log.warning("%s is damaged; the tree is fetched again", path)
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError as exc:
            log.warning("a cached tree cannot be read, it is fetched again: %s", exc)
        return None

    def save(self, sha256: str, canonical: bytes) -> None:
        """Keep a tree, and drop the oldest ones over KEPT."""
        directory = self._usable()
        if directory is None:
            return
        try:
            _write(directory, sha256 + _SUFFIX, canonical)
            _trim(directory)
        except OSError as exc:
            log.warning("the tree cache cannot be written: %s", exc)

    def _usable(self) -> Path | None:
        """Return the directory, made where it is missing; None, with one warning, where it is not for us."""
        if not self._checked and self._directory is not None:
            self._checked = True
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                check_private(self._directory)
            except OSError as exc:
                log.warning("no tree is cached: %s", exc)
                self._directory = None
        return self._directory


def check_private(directory: Path) -> None:
    """Raise PermissionError unless a directory is ours and closed to others."""
    found = os.stat(directory)
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{directory} is open to others; chmod 0700 it")


def _read(path: Path) -> bytes:
    # O_NONBLOCK: a pipe of this name must not hold up a mount.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(path, flags), "rb") as stream:
        return stream.read() or b""


def _write(directory: Path, name: str, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=_UNFINISHED, dir=directory)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
        os.rename(temporary, directory / name)
    except BaseException:
        os.unlink(temporary)
        raise


def _trim(directory: Path) -> None:
    trees = sorted(directory.glob("*" + _SUFFIX), key=_mtime)
    killed = [
        path
        for path in directory.glob(".*" + _UNFINISHED)
        if _mtime(path) < time.time() - _ABANDONED
    ]
    for path in trees[:-KEPT] + killed:
        path.unlink(missing_ok=True)


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process trims as well
        return 0.0
