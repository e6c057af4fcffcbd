"""Who is measured: a directory in which real tools run, or a program that searches by itself.

Concurrency: one thread; a program answers one line at a time.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import peers
from .corpus import WORD
from .measure import Failed, Run
from .workplace import child

HOSTS = Path(__file__).with_name("hosts")


@dataclass(frozen=True, slots=True)
class Work:
    """Something to do with a tree: the real tool's command, and how an emulated shell or a class is asked."""

    name: str
    command: tuple[str, ...]
    tool: str
    shell: str | None = None  # the line, where emulated shells have the tool
    asked: dict[str, str] = field(default_factory=dict)  # of the naive class

    def missing(self) -> str:
        """Return why this work cannot be done here, or nothing."""
        return "" if shutil.which(self.tool) else f"no {self.tool} here"


def _grep(tool: str, *options: str, **more: Any) -> Work:
    command = (tool, *options, WORD, ".")
    return Work(" ".join((tool, *options)), command, tool, " ".join(command), **more)


FIND = Work("find", ("find", "."), "find", "find .", {"do": "find"})
BFS = Work("bfs", ("bfs", "."), "bfs")
LS = Work("ls -lR", ("ls", "-lR"), "ls", "ls -lR")
TAR = Work("tar c | cat", ("sh", "-c", "tar cf - . | cat | wc -c"), "tar")
GREP = _grep("grep", "-r", asked={"do": "grep", "word": WORD})
GREP_N = _grep("grep", "-rn", asked={"do": "grep", "word": WORD})
RG = _grep("rg")
UGREP = Work("ugrep -r", ("ugrep", "-r", WORD, "."), "ugrep")
CONTAINS = Work("$contains", (), "true", None, {"do": "contains", "word": WORD})


class Program:
    """A contender that is a process of its own (hosts/)."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, question: dict[str, Any]) -> Run:
        """Have it do something; return what it measured. Failed where it could not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed("it ended") from None
        answer = self.answer()
        return Run(answer["seconds"], answer["lines"])

    def answer(self) -> dict[str, Any]:
        """Read one line of its answers."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise Failed(str(answer["error"]))
        return answer


@contextmanager
def program(command: Sequence[str], log: Path) -> Iterator[Program]:
    """Start a program of hosts/ and wait until it is ready; it ends with the block."""
    with open(log, "ab") as out, child(command, stdout=subprocess.PIPE, stderr=out) as process:
        started = Program(process)
        try:
            started.answer()
        except Failed as exc:
            said = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{list(command)}: {exc}: {said}") from None
        yield started


def python_host(name: str, *arguments: str, python: Path | None = None) -> list[str]:
    """Return the command of a Python program of hosts/."""
    return [str(python or sys.executable), str(HOSTS / f"{name}.py"), *arguments]


def just_bash_host(tree: Path) -> tuple[list[str], str]:
    """Return the command of just-bash over a tree, or nothing and why."""
    modules, why = peers.just_bash()
    if modules is None:
        return [], why
    return ["node", str(HOSTS / "justbash.mjs"), str(modules), str(tree)], ""
