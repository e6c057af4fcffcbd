"""What a mount has cost so far: requests, fetches, bytes, and CPU of each process; read from outside.

Everything is a counter that only grows, so the cost of some work is the difference of two readings.

Concurrency: reads /proc; a process that ends meanwhile counts as having used nothing more.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

INDEXER = "chromafuse.hub.indexer"  # its command line has this
_TICK = 1 / os.sysconf("SC_CLK_TCK")  # s


@dataclass(frozen=True, slots=True)
class Usage:
    """One reading, or the difference of two. CPU in seconds, user and system, of all threads.

    `requests` reached the view; `asked` went on to the hub; `fetches` are calls to the store; `fetched` bytes
    of pages came in by them (counted by what the hub's cache gained, so too low once it is full). `cpu_store`
    is the embedded engine's process, or the Chroma server; `cpu_index` builds the search index meanwhile.
    """

    requests: float = 0
    asked: float = 0
    fetches: float = 0
    fetched: float = 0
    cpu_view: float = 0
    cpu_hub: float = 0
    cpu_store: float = 0
    cpu_index: float = 0

    def __sub__(self, other: Usage) -> Usage:
        """Return what was used between the other reading and this one."""
        return Usage(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Usage)))


def median(usages: Iterable[Usage]) -> Usage:
    """Return the medians of some differences, 0 of none."""
    all_of = list(usages)
    if not all_of:
        return Usage()
    return Usage(
        *(statistics.median(getattr(one, f.name) for one in all_of) for f in fields(Usage))
    )


def read(status: Mapping[str, Any], store_pid: int | None = None) -> Usage:
    """Return the reading that belongs to a mount's status; `store_pid` is a server's process."""
    hub, view = int(status["hub_pid"]), int(status["view_pid"])
    children = {pid: _command(pid) for pid in descendants(hub)}
    indexers = [pid for pid, command in children.items() if INDEXER in command]
    store = [pid for pid in children if pid not in indexers]
    if store_pid is not None:
        store = [store_pid, *descendants(store_pid)]
    return Usage(
        requests=sum(n for name, n in status["counters"].items() if name != "bugs"),
        asked=status["requests"],
        fetches=status["fetches"],
        fetched=status["cache_bytes"],
        cpu_view=cpu_seconds(view),
        cpu_hub=cpu_seconds(hub),
        cpu_store=sum(cpu_seconds(pid) for pid in store),
        cpu_index=sum(cpu_seconds(pid) for pid in indexers),
    )


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used, without its children; 0 when it is gone."""
    found = _stat(pid)
    return (int(found[11]) + int(found[12])) * _TICK if found else 0.0


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as line:
            return line.read().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def busy_share(seconds: float = 1.0) -> float:
    """Wait; return the share of all CPUs that was in use meanwhile, by others than this process."""
    busy, total = _cpu_of_machine()
    time.sleep(seconds)
    busy_after, total_after = _cpu_of_machine()
    return (busy_after - busy) / max(total_after - total, 1)


def _cpu_of_machine() -> tuple[int, int]:
    """Return the ticks of all CPUs so far: in use (stolen ones too), and all of them; see proc_stat(5)."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def descendants(pid: int) -> list[int]:
    """Return the process ids of children, their children and so on."""
    parents = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found, new = [], [pid]
    while new:
        new = [child for child, stat in parents.items() if stat and int(stat[1]) in new]
        found += new
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the state on; the name before may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
