"""Timing commands: wall time of whole processes, interleaved over contenders, medians of several rounds.

The machine may be shared and noisy, so a result is the median of ratios of runs made side by side.

Concurrency: one thread; the processes that are timed are the only ones started meanwhile.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .usage import Usage

SLOW = 5.0  # s
_REPEATED = 4  # times as many rounds are repeated at most


@dataclass(frozen=True, slots=True)
class Run:
    """One run of some work: its seconds, the lines it printed, and what it cost the mount it ran on."""

    seconds: float
    lines: int = 0
    usage: Usage | None = None


class Failed(Exception):
    """A contender of somebody else's could not do the work."""


def run(command: Sequence[str], cwd: str | None = None) -> Run:
    """Run `command` to its end. Its output is read through a pipe and dropped.

    Not /dev/null: GNU grep stops at the first match when it sees that its output goes there. Exit code 1 is
    right for a grep that finds nothing; anything above, or a word on stderr, is a RuntimeError.
    """
    start = time.perf_counter()
    with _started(command, cwd) as process:
        out, err = process.communicate()
    seconds = time.perf_counter() - start
    _check(command, process.returncode, out, err)
    return Run(seconds, out.count(b"\n"))


def run_together(command: Sequence[str], cwd: str, times: int) -> Run:
    """Run `command` several times at once; return the seconds until the last is done, and all lines."""
    start = time.perf_counter()
    shell = " & ".join(['"$@"'] * times) + " & wait"
    with _started(["sh", "-c", shell, "sh", *command], cwd) as process:
        out, err = process.communicate()
    seconds = time.perf_counter() - start
    _check(command, process.returncode, out, err)
    return Run(seconds, out.count(b"\n"))


def _started(command: Sequence[str], cwd: str | None) -> subprocess.Popen[bytes]:
    # No stdin: rg without a path would search it.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
    )


def _check(command: Sequence[str], code: int, out: bytes, err: bytes) -> None:
    if code not in (0, 1) or err or not out:
        raise RuntimeError(f"{list(command)}: exit {code}, {len(out)} bytes, {err[:200]!r}")


@dataclass(slots=True)
class Interleaving:
    """Rounds in which each contender runs once, in turn; the order is turned around every other round.

    A contender that has taken `patience` seconds in all sits out the rest: it has fewer runs then. So does
    one that raises Failed.

    Those named in `warm_up` run once before. A round in which somebody had the machine drop its caches does
    not count: it is played again, warmed up again. Only a run of over SLOW seconds counts all the same.
    """

    contenders: Mapping[str, Callable[[], Run]]
    warm_up: Sequence[str] = ()
    patience: float = float("inf")
    drops: Callable[[], int] = field(default_factory=lambda: _drops)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    repeated: int = 0

    def play(self, rounds: int) -> dict[str, list[Run]]:
        """Play some rounds; return the runs of each contender."""
        self.runs = {name: [] for name in self.contenders}
        done, warm = 0, False
        while done < rounds:
            before = self.drops()
            if not warm:
                self._round(done, self.warm_up)
            found = self._round(done, [name for name in self.contenders if self._may_run(name)])
            warm = self.drops() == before or self.repeated >= _REPEATED * rounds
            for name, one in found.items():
                if warm or one.seconds > SLOW:
                    self.runs[name].append(one)
            done += warm
            self.repeated += not warm
        return self.runs

    def _may_run(self, name: str) -> bool:
        spent = sum(one.seconds for one in self.runs[name])
        return name not in self.failures and spent < self.patience

    def _round(self, number: int, names: Sequence[str]) -> dict[str, Run]:
        found = {}
        for name in names if number % 2 == 0 else names[::-1]:
            try:
                found[name] = self.contenders[name]()
            except Failed as exc:
                self.failures[name] = str(exc)
        return found


def _drops() -> int:
    """Return how often anybody had this machine's kernel drop its caches (drop_caches in proc(5))."""
    with open("/proc/vmstat", encoding="ascii") as lines:
        found = dict(line.split() for line in lines)
    return sum(int(found.get(name, 0)) for name in ("drop_pagecache", "drop_slab"))


def median_ms(runs: Sequence[Run]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(one.seconds for one in runs) * 1000


def median_ratio(ours: Sequence[Run], base: Sequence[Run]) -> float:
    """Return the median of the ratios of runs of one round; rounds that one side sat out do not count."""
    pairs = zip(ours, base, strict=False)
    return statistics.median(a.seconds / b.seconds for a, b in pairs)
