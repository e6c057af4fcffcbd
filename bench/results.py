"""What was measured: rows and tables, their JSON, and how they are printed. Pure but for the printing.

A file of results holds one table for each question and corpus; a later run of a question replaces its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table as Grid

from . import usage
from .corpus import GENERATED
from .measure import Run, median_ms, median_ratio
from .usage import Usage

FORMAT = 1
_QUIET = 0.05  # share of the CPU that others may use without a word


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one work: milliseconds, median and every run; ratios to others of the same rounds.

    `used` is the median cost of a run to the mount, None where nothing is mounted by us.
    """

    work: str
    contender: str
    ms: float
    runs_ms: list[float]
    ratios: dict[str, float]
    lines: int
    used: Usage | None = None
    note: str = ""
    requests: list[int] = field(default_factory=list)  # that reached the view, of each run


@dataclass(frozen=True, slots=True)
class Table:
    """The answer to one question. `bases` are the contenders that ratios are to; `missing` is (what, why)."""

    question: str
    title: str
    corpus: str
    files: int
    size: int  # bytes
    rounds: int
    bases: list[str]
    rows: list[Row] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    repeated: dict[str, int] = field(default_factory=dict)  # work -> rounds that were disturbed
    busy: float = 0.0  # share of the machine's CPU that others used just before

    def row(self, work: str, contender: str) -> Row | None:
        """Return a row, or None where it is missing."""
        found = (r for r in self.rows if (r.work, r.contender) == (work, contender))
        return next(found, None)


def rows_of(work: str, runs: Mapping[str, Sequence[Run]], bases: Sequence[str]) -> list[Row]:
    """Return a row for each contender that ran; `bases` that ran give the ratios, and the lines to print."""
    present = [base for base in bases if runs.get(base)]
    expected = runs[present[0]][0].lines if present else 0
    rows = []
    for contender, all_of in runs.items():
        if not all_of:
            continue
        used = [one.usage for one in all_of if one.usage is not None]
        lines = all_of[0].lines
        rows.append(
            Row(
                work,
                contender,
                round(median_ms(all_of), 2),
                [round(one.seconds * 1000, 2) for one in all_of],
                {base: _round(median_ratio(all_of, runs[base])) for base in present},
                lines,
                usage.median(used) if used else None,
                "" if lines == expected else f"printed {lines:,} lines, not {expected:,}",
                [round(one.requests) for one in used],
            )
        )
    return rows


def _round(ratio: float) -> float:
    return float(f"{ratio:.4g}")


def main_tables(tables: Iterable[Table]) -> dict[str, Table]:
    """Return each question's table that counts: of real pages, else of the fewest generated ones."""
    ordered = sorted(tables, key=lambda one: (one.corpus.startswith(GENERATED), one.files))
    return {one.question: one for one in reversed(ordered)}


# -- JSON


def merge(document: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's content with a later run's tables in place of older ones of the same question."""
    fresh = {(one["question"], one["corpus"], one["files"]) for one in new["tables"]}
    kept = [
        one
        for one in document.get("tables", [])
        if (one["question"], one["corpus"], one["files"]) not in fresh
    ]
    return {**document, **new, "tables": kept + list(new["tables"])}


def to_json(table: Table) -> dict[str, Any]:
    """Return a table as JSON has it."""
    found = asdict(table)
    for row in found["rows"]:
        if row["used"] is not None:
            row["used"] = {name: round(value, 3) for name, value in row["used"].items()}
    return found


def from_json(found: Mapping[str, Any]) -> Table:
    """Return a table from what `to_json` made. Raises KeyError, TypeError for anything else."""
    rows = [
        Row(**{**row, "used": None if row["used"] is None else Usage(**row["used"])})
        for row in found["rows"]
    ]
    missing = [(what, why) for what, why in found["missing"]]
    return Table(**{**found, "rows": rows, "missing": missing})


# -- printing


def grid(table: Table) -> Grid:
    """Return the table for a terminal."""
    title = f"{table.title}; {table.files:,} files, {table.size >> 20} MB, {table.corpus}; "
    busy = f"; others used {table.busy:.0%} of the CPU" if table.busy >= _QUIET else ""
    result = Grid(title=f"{title}medians of {table.rounds}{busy}", title_justify="left")
    result.add_column("work")
    result.add_column("on")
    headings = ["ms", *(f"/ {base}" for base in table.bases)]
    headings += ["requests", "to hub", "fetches", "MB fetched", "CPU ms view / hub / store / index"]
    for heading in headings:
        result.add_column(heading, justify="right")
    for row in table.rows:
        ratios = (row.ratios.get(base) for base in table.bases)
        result.add_row(
            row.work,
            row.contender + (f" ({row.note})" if row.note else ""),
            f"{row.ms:,.1f}",
            *("" if ratio is None else times(ratio) for ratio in ratios),
            *costs(row),
        )
    for work, rounds in table.repeated.items():
        result.add_row(f"[dim]{work}[/dim]", f"[dim]{rounds} rounds disturbed and repeated[/dim]")
    for what, why in table.missing:
        result.add_row(f"[dim]{what}[/dim]", f"[dim]left out: {why}[/dim]")
    return result


def times(ratio: float) -> str:
    """Return a ratio as it is printed: 1.05, or 1/80 for a small one."""
    return f"{ratio:,.2f}" if ratio >= 0.1 else f"1/{1 / ratio:,.0f}"


def costs(row: Row) -> list[str]:
    """Return the five cells of what a run cost, empty where nothing of ours was mounted."""
    used = row.used
    if used is None:
        return [""] * 5
    low, high = min(row.requests, default=0), max(row.requests, default=0)
    cpu = (used.cpu_view, used.cpu_hub, used.cpu_store, used.cpu_index)
    return [
        f"{used.requests:,.0f}" + (f" ({low:,}..{high:,})" if low < high else ""),
        f"{used.asked:,.0f}",
        f"{used.fetches:,.0f}",
        f"{used.fetched / (1 << 20):,.1f}",
        " / ".join(f"{seconds * 1000:,.0f}" for seconds in cpu),
    ]
