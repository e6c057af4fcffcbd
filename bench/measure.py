"""Timing commands: wall time of whole processes, interleaved over contenders, medians of several rounds.

The machine may be shared and noisy, so a result is the median of ratios of runs made side by side.

Concurrency: one thread; the processes that are timed are the only ones started meanwhile.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .usage import Usage


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


def interleave(
    rounds: int,
    contenders: Mapping[str, Callable[[], Run]],
    *,
    patience: float = float("inf"),
    failures: dict[str, str] | None = None,
) -> dict[str, list[Run]]:
    """Run each contender once a round, in turn; return the runs of each.

    The order is turned around every other round, so that no contender always follows the same other one.
    A contender that has taken `patience` seconds in all sits out the rest: it has fewer runs then. So does
    one that raises Failed, where there are `failures` to note it in.
    """
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    failures = {} if failures is None else failures
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            if name in failures or sum(one.seconds for one in runs[name]) >= patience:
                continue
            try:
                runs[name].append(contenders[name]())
            except Failed as exc:
                failures[name] = str(exc)
    return runs


def median_ms(runs: Sequence[Run]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(one.seconds for one in runs) * 1000


def median_ratio(ours: Sequence[Run], base: Sequence[Run]) -> float:
    """Return the median of the ratios of runs of one round; rounds that one side sat out do not count."""
    pairs = zip(ours, base, strict=False)
    return statistics.median(a.seconds / b.seconds for a, b in pairs)
