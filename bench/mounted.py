"""The program under measurement, through its command line: ingest, mounts, and what a mount has cost.

Concurrency: one thread. A mount's processes are daemons; they end with the unmount, which always comes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chromafuse import status

from . import peers, usage
from .measure import Run
from .usage import Usage

PROGRAM = (sys.executable, "-m", "chromafuse")
_QUIET = 0.05  # s without any cost: what the work left to be done in the background is done
_LITTLE = 0.015  # s of CPU in that time
_PATIENCE = 3.0  # s until a mount that never rests is read anyway


@dataclass(frozen=True)
class Mount:
    """A live mount and the seconds from `chromafuse mount` to the answer of the first `ls`."""

    path: Path
    first_ls: float
    store_pid: int | None = None  # of a Chroma server

    def status(self) -> dict[str, Any]:
        """Return what `chromafuse status` says of this mount."""
        return status.one_mount(str(self.path))

    def usage(self) -> Usage:
        """Return what this mount has cost so far, once it rests."""
        deadline = time.monotonic() + _PATIENCE
        last = self._read()
        while time.monotonic() < deadline:
            time.sleep(_QUIET)
            now = self._read()
            if _rests(now - last):
                return now
            last = now
        return last

    def metered(self, work: Callable[[], Run]) -> Run:
        """Do some work and return its run with what it cost this mount."""
        before = self.usage()
        run = work()
        return replace(run, usage=self.usage() - before)

    def forget(self) -> None:
        """Have the kernel drop all it caches of this mount, as of a new one; the hub keeps its pages.

        A remount drops the dentries, with them FUSE's inodes, and with those the pages. It takes root.
        """
        subprocess.run(["mount", "-i", "-o", "remount,ro", str(self.path)], check=True)

    def _read(self) -> Usage:
        return usage.read(self.status(), self.store_pid)


def _rests(cost: Usage) -> bool:
    """Say whether nothing happened but being asked, which costs hub and view a little themselves."""
    return (
        replace(cost, cpu_view=0, cpu_hub=0) == Usage() and cost.cpu_view + cost.cpu_hub < _LITTLE
    )


def settle_in(root: Path) -> None:
    """Have this process and all it starts keep their caches, sockets and configuration below `root`."""
    for name in list(os.environ):
        if name.startswith(("CHROMA", "XDG_", "NOTIFY_")) and name != peers.VARIABLE:
            del os.environ[name]
    for name in ("CACHE_HOME", "CONFIG_HOME", "RUNTIME_DIR"):
        (root / name.lower()).mkdir(mode=0o700)
        os.environ[f"XDG_{name}"] = str(root / name.lower())
    os.environ["CHROMAFUSE_CACHE_DIR"] = str(cache_of(root))


def cache_of(root: Path) -> Path:
    """Return the directory where the hubs of this run keep path trees."""
    return root / "cache"


def ingest(source: Path, store: str) -> float:
    """Ingest `source` into a store; return the seconds. Everybody may see every page."""
    start = time.perf_counter()
    command = [*PROGRAM, "ingest", str(source), store, "--default-access", "public"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    # Or the disk is busy with it while something else is timed. This file system alone: a plain `sync` waits
    # for every mount of the machine, dead ones included.
    subprocess.run(["sync", "-f", str(source)], check=True)
    return seconds


@contextmanager
def mount(
    store: str, path: Path, *, fast: bool = True, store_pid: int | None = None
) -> Iterator[Mount]:
    """Mount a store for the operator; unmount at the end, whatever happened.

    A mount that is not in the mode asked for is a RuntimeError.
    """
    path.mkdir(parents=True)
    environment = {**os.environ, "CHROMAFUSE_FAST": "1" if fast else "0"}
    log = path.with_name(path.name + ".log")
    command = [*PROGRAM, "mount", store, str(path), "--unrestricted", "--daemon"]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--log-file", str(log)], env=environment, stderr=subprocess.PIPE, check=False
    )
    try:
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr.decode().strip()}")
        subprocess.run(["ls", str(path)], check=True, stdout=subprocess.DEVNULL)
        live = Mount(path, time.perf_counter() - start, store_pid)
        mode = live.status()["mode"]
        if not str(mode).startswith("fast" if fast else "stock"):
            raise RuntimeError(f"the mount is in the mode {mode!r}; its log: {log.read_text()}")
        yield live
    finally:
        subprocess.run([*PROGRAM, "umount", str(path)], check=done.returncode == 0)
