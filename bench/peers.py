"""Where the peers are installed, and how: each in an environment of its own, in versions that are named here.

    python -m bench.peers           install what is missing (make bench-peers)

They go below build/bench-peers, or CHROMAFUSE_BENCH_PEERS. What is not there is left out of the tables, with
the reason.

Concurrency: none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "CHROMAFUSE_BENCH_PEERS"
MIRAGE = "mirage-ai[chroma,fuse]==0.0.7"
JUST_BASH = "just-bash@3.4.2"
_INSTALL = "not installed: make bench-peers"


def place() -> Path:
    """Return the directory of all peers."""
    default = Path(__file__).resolve().parents[1] / "build" / "bench-peers"
    return Path(os.environ.get(VARIABLE, default))


def mirage() -> tuple[Path | None, str]:
    """Return Mirage's interpreter, or none and why."""
    python = place() / "mirage" / "bin" / "python"
    return (python, "") if (place() / "mirage" / ".installed").exists() else (None, _INSTALL)


def just_bash() -> tuple[Path | None, str]:
    """Return the node_modules that just-bash is in, or none and why."""
    modules = place() / "just-bash" / "node_modules"
    if not shutil.which("node"):
        return None, "no node (20 or newer) here"
    return (modules, "") if (modules / "just-bash").is_dir() else (None, _INSTALL)


def install() -> int:
    """Install what is missing; return 1 where something could not be."""
    done = [_install_mirage(place() / "mirage"), _install_just_bash(place() / "just-bash")]
    return 0 if all(done) else 1


def _install_mirage(home: Path) -> bool:
    if mirage()[0]:
        return True
    home.parent.mkdir(parents=True, exist_ok=True)
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [str(home / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", MIRAGE],
    ]
    done = _run(steps, home)
    if done:
        (home / ".installed").touch()
    return done


def _install_just_bash(home: Path) -> bool:
    if just_bash()[0]:
        return True
    if not shutil.which("npm"):
        print("just-bash needs node (20 or newer) and npm", file=sys.stderr)
        return False
    home.mkdir(parents=True, exist_ok=True)
    # Its optional native parts are of no use here; they would be compiled.
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    return _run([[*command, str(home), JUST_BASH]], home)


def _run(steps: list[list[str]], home: Path) -> bool:
    try:
        for step in steps:
            subprocess.run(step, check=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        print(exc, file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(install())
