"""Timing commands: wall time of whole processes, interleaved over targets, medians of several rounds.

The machine may be shared and noisy, so results are given as ratios of runs made side by side.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence


def run(command: Sequence[str], cwd: str | None = None) -> float:
    """Run `command` and return its seconds. Its output is read through a pipe and dropped.

    Not /dev/null: GNU grep stops at the first match when it sees that its output goes there. Exit code 1 is
    right for a grep that finds nothing; anything above is an error.
    """
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd
    ) as process:
        out, err = process.communicate()
    seconds = time.perf_counter() - start
    if process.returncode > 1 or err or not out:
        raise RuntimeError(f"{command}: exit {process.returncode}, {len(out)} bytes, {err[:200]!r}")
    return seconds


def interleave(rounds: int, targets: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run each target once a round, in turn; return the seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in targets}
    for _ in range(rounds):
        for name, target in targets.items():
            seconds[name].append(target())
    return seconds


def median_ms(seconds: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1000


def median_ratio(ours: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios of the runs made side by side."""
    return statistics.median(a / b for a, b in zip(ours, base, strict=True))


def private_kb(pid: int) -> int:
    """Return the private memory of a process in kB, see proc_pid_smaps(5)."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields[key].split()[0]) for key in ("Private_Clean", "Private_Dirty"))
