"""What the project promises itself, and whether a file of results keeps it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table as Grid

from . import results
from .questions import COPY, FAST, SCRIPT
from .results import Table, times
from .rivals import FIRST, MIRAGE

_KEEP_WARM = ("grep -r", "find", "ls -lR", "tar c | cat")


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the ratio of our mount to a contender; `requests` bounds what the view may be asked."""

    question: str
    work: str
    base: str
    limit: float
    goal: float
    requests: float = float("inf")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target in words, what was found, and whether that keeps it; None where nothing was measured."""

    target: str
    limit: str
    goal: str
    found: str
    met: bool | None


TARGETS = (
    *(Target("warm", work, COPY, 1.15, 1.05, requests=0) for work in _KEEP_WARM),
    *(Target("warm", work, COPY, 1.3, 1.1, requests=0) for work in ("rg", "ugrep -r")),
    *(Target("first", work, COPY, 4.5, 3) for work in ("grep -r", "rg")),
    *(Target(question, "grep -r", SCRIPT, 1.3, 1.1) for question in ("cold", "cold-server")),
    Target("mirage", FIRST, MIRAGE, 1 / 70, 1 / 100),
    *(Target("parallel", work, COPY, 1.3, 1.1) for work in ("4 x grep -r", "4 x rg")),
)
# Pages -> MB of private memory that a view may take.
VIEW_MB = {4_000: 12.0, 100_000: 60.0}
HUB_MB = {100_000: 250.0}


def verdicts(tables: Sequence[Table], memory: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Return what became of every target; of several corpora the main one counts."""
    main = results.main_tables(tables)
    found = [_verdict(target, main.get(target.question)) for target in TARGETS]
    return [*found, *_of_memory(memory)]


def _verdict(target: Target, table: Table | None) -> Verdict:
    text = f"{target.question}: {target.work}, against {target.base}"
    row = table.row(target.work, FAST) if table else None
    ratio = row.ratios.get(target.base) if row else None
    if row is None or ratio is None:
        return Verdict(text, times(target.limit), times(target.goal), "not measured", None)
    requests = row.used.requests if row.used else 0
    found, met = times(ratio), ratio <= target.limit and requests <= target.requests
    if target.requests < float("inf"):
        found += f", {requests:,.0f} requests"
    return Verdict(text, times(target.limit), times(target.goal), found, met)


def _of_memory(memory: Iterable[Mapping[str, Any]]) -> list[Verdict]:
    by_pages = {int(one["pages"]): one["after_walk"] for one in memory}
    found = []
    for part, limits in (("view", VIEW_MB), ("hub", HUB_MB)):
        for pages, limit in limits.items():
            text = f"memory: private, {part}, {pages:,} pages"
            used = by_pages.get(pages, {}).get(part, {}).get("private")
            met = None if used is None else used <= limit
            said = "not measured" if used is None else f"{used} MB"
            found.append(Verdict(text, f"{limit:.0f} MB", "", said, met))
    return found


def grid(found: Iterable[Verdict]) -> Grid:
    """Return the verdicts for a terminal."""
    table = Grid(title="targets", title_justify="left")
    for heading in ("target", "limit", "goal", "found", ""):
        table.add_column(heading)
    words = {True: "met", False: "MISSED", None: "-"}
    for one in found:
        table.add_row(one.target, one.limit, one.goal, one.found, words[one.met])
    return table
