"""What a run of the suite owns: a directory, the mounts in it, the processes that know its name.

The directory lies outside pytest's own 0700 tree, so that other users can enter mountpoints in it.
Its path travels in the environment to every child, and so tells our processes from everyone else's.
It is locked as long as the run lives: `sweep_dead_sessions` clears what a killed run left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ENVIRONMENT = "CHROMAFUSE_TEST_ROOT"
PREFIX = "chromafuse-test-"
FSTYPE = "fuse.chromafuse"


def session_root() -> Path:
    """Return the directory of this run, in the controller and in every worker."""
    return Path(os.environ[ENVIRONMENT])


def create_root() -> tuple[Path, IO[str]]:
    """Make the directory of a run; the returned lock file holds it until closed."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{PREFIX}")).resolve()
    fresh.chmod(0o755)
    lock = open(fresh / ".lock", "w", encoding="ascii")  # noqa: SIM115 - held while the run lives
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Under its final name only once locked: another run's sweep must not take it for a dead one.
    root = fresh.rename(fresh.with_name(fresh.name.removeprefix(".")))
    os.environ[ENVIRONMENT] = str(root)
    return root, lock


def mounts_below(root: Path) -> list[str]:
    """Return the mountpoints of our type at or below `root`, the innermost first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]:
        before, _, after = line.partition(b" - ")
        point = os.fsdecode(before.split(b" ")[4].decode("unicode_escape").encode("latin-1"))
        inside = point == str(root) or point.startswith(f"{root}/")
        if inside and after.split(b" ")[0] == FSTYPE.encode():
            found.append(point)
    return found[::-1]


def unmount_below(root: Path) -> list[str]:
    """Unmount lazily whatever of ours is mounted below `root`; return where that was."""
    points = mounts_below(root)
    for point in points:
        subprocess.run(["fusermount3", "-u", "-z", point], check=False, capture_output=True)
        if point in mounts_below(root):
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)
    return points


def processes_of(root: Path) -> dict[int, str]:
    """Return pid and command line of the processes that inherited this run's name, but this one."""
    token = f"{ENVIRONMENT}={root}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if token in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = b" ".join(words).decode(errors="replace").strip()
    return {pid: line for pid, line in found.items() if line}  # a zombie has no command line


def kill(pids: dict[int, str]) -> None:
    """Kill processes of ours by their ids."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def clear(root: Path) -> None:
    """End everything that a run left: processes, mounts, directory."""
    kill(processes_of(root))
    unmount_below(root)
    if not mounts_below(root):  # never walk into a mount
        shutil.rmtree(root, ignore_errors=True)


def sweep_dead_sessions() -> None:
    """Clear what is left of this user's runs that are gone and did not do it themselves."""
    for root in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if root.is_symlink() or root.stat().st_uid != os.getuid():
                continue
            with open(root / ".lock", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clear(root.resolve())


def start_janitor(root: Path) -> subprocess.Popen[bytes]:
    """Start the process that clears `root` when this one is killed: it waits on a pipe of ours."""
    environment = {name: value for name, value in os.environ.items() if name != ENVIRONMENT}
    return subprocess.Popen(
        [sys.executable, "-S", __file__, str(root)],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        cwd="/",
    )


def _janitor(root: Path) -> None:
    if sys.stdin.buffer.read() != b"done":
        clear(root)


if __name__ == "__main__":
    _janitor(Path(sys.argv[1]))
