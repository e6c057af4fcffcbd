"""The path trees kept on disk, so that a second mount does not wait for the download.

A file is the canonical JSON of a tree and has its sha256 for a name, so nothing about it has to be trusted:
what does not have the digest that the collection's root promises is fetched again. The directory is 0700 and
ours, the files are 0600, for they hold every name of a site. A cache that cannot be used costs time, never a
mount: it warns and is passed over.

Concurrency: files appear whole, by rename; any number of processes may share the directory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

KEPT = 16  # trees; the least recently used go first
_SUFFIX = ".tree"


class TreeCache:
    """The trees in one directory. `directory` None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def load(self, sha256: str) -> bytes | None:
        """Return the tree with this digest, or None where it is not here whole."""
        if self._directory is None:
            return None
        path = self._path(sha256)
        try:
            self._check_directory()
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(descriptor, "rb") as stream:
                canonical = stream.read()
            if hashlib.sha256(canonical).hexdigest() != sha256:
                log.warning("%s is damaged; the tree is fetched again", path)
                path.unlink()
                return None
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as exc:
            log.warning("the tree cache cannot be read: %s", exc)
            return None
        return canonical

    def save(self, sha256: str, canonical: bytes) -> None:
        """Keep a tree, and drop the oldest ones over KEPT."""
        if self._directory is None:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_directory()
            self._write(self._path(sha256), canonical)
            self._trim()
        except OSError as exc:
            log.warning("the tree cache cannot be written: %s", exc)

    def _path(self, sha256: str) -> Path:
        assert self._directory is not None
        return self._directory / (sha256 + _SUFFIX)

    def _check_directory(self) -> None:
        assert self._directory is not None
        found = os.stat(self._directory)
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{self._directory} belongs to another user")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{self._directory} is open to others; chmod 0700 it")

    def _write(self, path: Path, canonical: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".new", dir=self._directory)
        try:
            with open(descriptor, "wb") as stream:
                stream.write(canonical)
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def _trim(self) -> None:
        assert self._directory is not None
        trees = sorted(self._directory.glob("*" + _SUFFIX), key=_mtime)
        for path in trees[:-KEPT]:
            path.unlink(missing_ok=True)


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # another process trims as well
        return 0
