"""The program under measurement: a store with the corpus in it, and mounts of it, through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = (sys.executable, "-m", "chromafuse")


@dataclass(frozen=True)
class Mount:
    """A live mount and the seconds from `chromafuse mount` to the answer of the first `ls`."""

    path: Path
    first_ls: float
    environment: dict[str, str]

    def status(self) -> dict[str, Any]:
        """Return what `chromafuse status --json` says of this mount."""
        out = subprocess.run(
            [*PROGRAM, "status", str(self.path), "--json"],
            check=True,
            capture_output=True,
            env=self.environment,
        ).stdout
        found: dict[str, Any] = json.loads(out)
        return found

    def requests(self) -> dict[str, int]:
        """Return how many requests reached the view so far, by handler."""
        counters: dict[str, int] = self.status()["counters"]
        return counters


def ingest(source: Path, store: Path, environment: dict[str, str]) -> float:
    """Ingest `source` into an embedded store; return the seconds."""
    start = time.perf_counter()
    command = [*PROGRAM, "ingest", str(source), str(store), "--default-access", "public"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


@contextmanager
def mount(store: Path, path: Path, environment: dict[str, str]) -> Iterator[Mount]:
    """Mount `store` for the operator; unmount at the end, whatever happened."""
    path.mkdir(exist_ok=True)
    start = time.perf_counter()
    command = [*PROGRAM, "mount", str(store), str(path), "--unrestricted", "--daemon"]
    log = path.with_name(path.name + ".log")
    subprocess.run(
        [*command, "--log-file", str(log)], check=True, env=environment, stderr=subprocess.DEVNULL
    )
    try:
        subprocess.run(["ls", str(path)], check=True, stdout=subprocess.DEVNULL)
        yield Mount(path, time.perf_counter() - start, environment)
    finally:
        subprocess.run([*PROGRAM, "umount", str(path)], check=True, env=environment)
