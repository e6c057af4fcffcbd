"""The command line as a person uses it: ingest, mount, umount, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAM = (sys.executable, "-m", "chromafuse")
CHECKOUT = Path(__file__).resolve().parents[2]


def environment(home: Path) -> dict[str, str]:
    """Return an environment whose cache and runtime directories lie below `home`, with no secrets in it."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key == "CHROMAFUSE_FAST" or not key.startswith(("CHROMA", "XDG_", "NOTIFY_SOCKET"))
    }
    for name in ("cache", "config", "run"):
        (home / name).mkdir(mode=0o700, exist_ok=True)
    return kept | {
        "PYTHONPATH": str(CHECKOUT),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "CHROMAFUSE_CACHE_DIR": str(home / "cache" / "chromafuse"),
    }


def chromafuse(home: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program to its end and return exit code, stdout and stderr."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def ok(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a run that must have succeeded."""
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def mounted(home: Path, store: str | Path, mountpoint: Path, *options: str) -> Iterator[Path]:
    """Mount with `--daemon` and yield the mountpoint; unmount at the end, whatever happened."""
    mountpoint.mkdir(exist_ok=True)
    log = home / f"{mountpoint.name}.log"
    done = chromafuse(home, "mount", store, mountpoint, *options, "--daemon", "--log-file", log)
    assert done.returncode == 0, done.stderr
    try:
        yield mountpoint
    finally:
        ok(chromafuse(home, "umount", mountpoint))


def output(command: Sequence[str | Path], cwd: Path, *, exits: tuple[int, ...] = (0,)) -> bytes:
    """Run a tool in `cwd` and return its stdout; its stderr must be empty."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        timeout=120,
        check=False,
    )
    assert done.returncode in exits, f"{command}: exit {done.returncode}: {done.stderr!r}"
    assert not done.stderr, f"{command}: {done.stderr!r}"
    return done.stdout
