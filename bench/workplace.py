"""The directory of one run, and what must be gone when it ends: mounts, processes, files.

A run that ends by Ctrl-C or SIGTERM cleans up like one that ends by itself. One that is killed leaves its
directory; the next run finds it by the lock that nobody holds, unmounts what is in it and removes it. Servers
and contenders that are processes of their own end with their parent (`setpriv --pdeathsig`).

Concurrency: one thread; signals arrive as exceptions, and none while the place is cleared.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PREFIX = "chromafuse-bench-"
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_STOPS = (signal.SIGINT, *_ENDINGS)


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a fresh directory; whatever happens, nothing of it is left, nor mounted in it."""
    sweep()
    for number in _ENDINGS:
        signal.signal(number, _end)
    fresh = Path(tempfile.mkdtemp(prefix=f".{PREFIX}")).resolve()
    with open(fresh / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under its final name only once locked: another run's sweep must not take it for a dead one.
        root = fresh.rename(fresh.with_name(fresh.name.removeprefix(".")))
        try:
            yield root
        finally:
            for number in _STOPS:
                signal.signal(number, signal.SIG_IGN)
            clear(root)


def sweep() -> None:
    """Clear what this user's killed runs left."""
    for root in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if root.is_symlink() or root.stat().st_uid != os.getuid():
                continue
            with open(root / ".lock", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clear(root.resolve())


def clear(root: Path) -> None:
    """Unmount what is mounted below `root`, the innermost first, and remove it; never walk into a mount."""
    for point in mounts_below(root):
        subprocess.run(["fusermount3", "-u", "-z", point], check=False, capture_output=True)
        if point in mounts_below(root):
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)
    if not mounts_below(root):
        shutil.rmtree(root, ignore_errors=True)


def mounts_below(root: Path) -> list[str]:
    """Return the mountpoints at or below `root`, the innermost first. `root` is of our own making: no blanks."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    points = [line.split(" ")[4] for line in lines]
    return [one for one in points if one == str(root) or one.startswith(f"{root}/")][::-1]


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process for as long as the block lasts; it also ends when this process is killed.

    Its stdin is a pipe where `options` do not say otherwise: closing it asks a contender to clean up and end.
    """
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", *command],
        start_new_session=True,  # Ctrl-C is for this process, which ends them in order
        **{"stdin": subprocess.PIPE, **options},
    )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes], patience: float = 10) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    else:
        process.terminate()
    for ending in (process.terminate, process.kill):
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            ending()
    process.wait()


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
