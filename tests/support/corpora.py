"""Real documentation trees that may lie beside the checkout; absent, the test that asks skips.

Unpacked once a run, by whichever worker comes first, into the directory of the run. Read only: a
test that changes files works on a copy.
"""

from __future__ import annotations

import fcntl
import tarfile
from pathlib import Path

import pytest

from tests.support.session import session_root

ARCHIVES = Path(__file__).resolve().parents[3] / "shared" / "corpora"
NAMES = ("mintlify-docs", "powershell-docs")


def corpus(name: str) -> Path:
    """Return the unpacked tree `name` (one of NAMES), or skip the test."""
    archive = ARCHIVES / f"{name}.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no corpus {name}: {archive} is absent")
    place = session_root() / "corpora"
    place.mkdir(mode=0o755, exist_ok=True)
    done = place / f".{name}.done"
    with open(place / f".{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _unpack(archive, place / "trees" / name)
            done.touch()
    return place / "trees" / name


def corpora() -> Path:
    """Return a directory that holds every tree of NAMES and nothing else, or skip the test."""
    for name in NAMES:
        tree = corpus(name)
    return tree.parent


def _unpack(archive: Path, target: Path) -> None:
    """Unpack into `target`, without the one top directory that an archive may have."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r:xz") as packed:
        if hasattr(tarfile, "tar_filter"):  # absent in the first releases of Python 3.11
            packed.extractall(target, filter="tar")
        else:
            packed.extractall(target)
    inside = list(target.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        top = inside[0].rename(target.with_name(f"{target.name}.top"))
        target.rmdir()
        top.rename(target)
