"""Shims as an agent has them on PATH, and a command line run by them and by the real tools."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chromafuse.search.shims import write_shims

LOCALE = "C.UTF-8"
_EXPLAINED = re.compile(rb"chromafuse: (filtered|plain): (.*); [\d.]+ ms of CPU\n")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command line left behind; for one of a shim, which way it went and why."""

    status: int
    stdout: bytes
    stderr: bytes
    ways: tuple[tuple[str, str], ...] = ()  # several, where a shim ran another

    @property
    def output(self) -> tuple[int, bytes, bytes]:
        """What a caller sees."""
        return self.status, self.stdout, self.stderr

    @property
    def filtered(self) -> bool:
        """Say whether a shim ran the tool on a part of the pages."""
        return any(way == "filtered" for way, _ in self.ways)

    @property
    def why(self) -> str:
        """What the last shim said of it."""
        return self.ways[-1][1]


class Shell:
    """Runs command lines with a directory of shims on PATH, or without."""

    def __init__(self, directory: Path, prefix: Sequence[str | Path] = ()) -> None:
        self.directory = directory
        write_shims(directory)
        self._prefix = [str(word) for word in prefix]

    def shim(
        self, line: str | Sequence[str | bytes], place: Path, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a command line by the shims, and take what they explain out of stderr."""
        path = f"{self.directory}:{os.environ['PATH']}"
        ran = self._run(line, place, {"PATH": path, "CHROMAFUSE_EXPLAIN": "1", **(env or {})})
        ways = [(way.decode(), why.decode()) for way, why in _EXPLAINED.findall(ran.stderr)]
        return Ran(ran.status, ran.stdout, _EXPLAINED.sub(b"", ran.stderr), tuple(ways))

    def real(
        self, line: str | Sequence[str | bytes], place: Path, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a command line by the real tools."""
        return self._run(line, place, env or {})

    def _run(self, line: str | Sequence[str | bytes], place: Path, env: Mapping[str, str]) -> Ran:
        command = ["bash", "-c", line] if isinstance(line, str) else line
        done = subprocess.run(
            [*self._prefix, *command],
            cwd=place,
            env={"PATH": os.environ["PATH"], "LC_ALL": LOCALE, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)
