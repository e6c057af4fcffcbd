"""Writes the shims: shim.py, under the names of the tools that it stands for, into a directory for PATH.

Concurrency: blocking; each file is replaced in one step, so a shim that is running stays whole.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import UserError
from . import shim

NAMES = ("egrep", "fgrep", "grep", "rg")
# The path first: `env` looks python3 up on PATH, where a slow stand-in of its own may come first.
PYTHON = "/usr/bin/python3"
_ISOLATED = "-IS"  # neither the user's modules nor site-packages, nor what the environment says


def shebang(python: str = PYTHON) -> bytes:
    """Return the first line of a shim."""
    if os.access(python, os.X_OK):
        return f"#!{python} {_ISOLATED}\n".encode()
    return f"#!/usr/bin/env -S python3 {_ISOLATED}\n".encode()


def text() -> bytes:
    """Return a whole shim."""
    return shebang() + Path(shim.__file__).read_bytes()


def write_shims(directory: Path) -> None:
    """Write all shims into a directory, which is made where it is missing. Raises UserError.

    Shims that are there are replaced; anything else of their names is left, and nothing is written then.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            _require_ours(directory / name)
        for name in NAMES:
            _write(directory / name, text())
    except OSError as exc:
        raise UserError(f"{exc.filename or directory}: {exc.strerror}") from exc


def _require_ours(path: Path) -> None:
    if not os.path.lexists(path):
        return
    if not path.is_symlink() and path.is_file():
        with open(path, "rb") as file:
            if shim.MARK in file.read(256):
                return
    raise UserError(f"{path} is there and no shim: name another directory")


def _write(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, 0o755)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
