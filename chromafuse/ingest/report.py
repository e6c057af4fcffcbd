"""What ingest tells: who sees how much, what changes, whose access widens, what was left out.

One report, three forms: tables on a terminal, aligned plain text elsewhere, JSON for scripts. Names are
printed with control characters escaped: a file's name must not steer the reader's terminal.

Concurrency: pure, but for `write_report` and `progress_bar`, which write to their console.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..model.access import AUTHENTICATED, PUBLIC, Access, Identity, Kind
from ..model.records import TreeEntry
from ..store.publish import Published
from .plan import Plan
from .scan import Scan
from .source import Listing, printable

SHOWN = 20  # names listed before "and N more"; --json has them all
_STAGES = {
    "read": "reading the source",
    "write": "writing chunks",
    "check": "checking chunks",
    "collect": "collecting old records",
    "verify": "reading pages",
}


@dataclass(frozen=True, slots=True)
class Count:
    """Pages and bytes under one heading."""

    label: str
    pages: int
    size: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run has to tell."""

    plan: Plan
    scan: Scan
    listing: Listing
    warnings: tuple[str, ...]
    dry_run: bool
    refused: str = ""
    before: int | None = None  # generation that was published when the run began
    published: Published | None = None

    def outcome(self) -> str:
        """Say in one line what came of the run."""
        if self.refused:
            return "refused; nothing was written"
        if self.published is None:
            return "dry run; nothing was written"
        done = self.published
        if done.generation == self.before:
            return f"nothing to do: generation {done.generation} is this source already"
        return (
            f"published generation {done.generation}: {done.written_chunks:,} chunks written, "
            f"{done.reused_chunks:,} already there, {done.collected:,} old records collected"
        )


def count_accesses(entries: Sequence[TreeEntry]) -> list[Count]:
    """Count the pages of each access that occurs: public, authenticated, each set of groups, hidden."""
    by_access: dict[Access, list[TreeEntry]] = {}
    for entry in entries:
        by_access.setdefault(entry.access, []).append(entry)
    ordered = sorted(by_access, key=_access_order)
    return [_count(printable(str(access)), by_access[access]) for access in ordered]


def count_readers(entries: Sequence[TreeEntry]) -> list[Count]:
    """Count what each kind of identity sees: anonymous, authenticated, a member of each group, the operator."""
    groups = sorted({group for entry in entries for group in entry.access.groups})
    identities = [("anonymous", Identity()), ("authenticated", Identity(Kind.AUTHENTICATED))]
    identities += [
        (f"group {printable(group)}", Identity(Kind.AUTHENTICATED, frozenset({group})))
        for group in groups
    ]
    identities.append(("operator", Identity(Kind.UNRESTRICTED)))
    return [
        _count(label, [entry for entry in entries if entry.access.admits(identity)])
        for label, identity in identities
    ]


def _access_order(access: Access) -> tuple[int, list[str]]:
    if access.groups:
        return 2, sorted(access.groups)
    return {PUBLIC: 0, AUTHENTICATED: 1}.get(access, 3), []


def _count(label: str, entries: Sequence[TreeEntry]) -> Count:
    return Count(label, len(entries), sum(entry.size for entry in entries))


# -- forms ---------------------------------------------------------------------------------------------


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values. Names that are no UTF-8 have their bytes as \\x escapes."""
    plan, scan, listing, done = report.plan, report.scan, report.listing, report.published
    return {
        "dry_run": report.dry_run,
        "refused": report.refused or None,
        "outcome": report.outcome(),
        "generation": done.generation if done else None,
        "written_chunks": done.written_chunks if done else 0,
        "reused_chunks": done.reused_chunks if done else 0,
        "collected_records": done.collected if done else 0,
        "access": [_count_json("access", count) for count in count_accesses(plan.entries)],
        "seen_by": [_count_json("identity", count) for count in count_readers(plan.entries)],
        "added": list(plan.added),
        "changed": list(plan.changed),
        "removed": list(plan.removed),
        "kept": plan.kept,
        "access_changed": [
            {"path": c.path, "from": str(c.old), "to": str(c.new), "widened": c.widened}
            for c in plan.access
        ],
        "lists_withheld": scan.withheld,
        "opened_by_front_matter": scan.opened_by_page,
        "skipped": [{"path": printable(path), "reason": why} for path, why in listing.skipped],
        "left_out": {"dot_names": listing.dot_names, "by_globs": listing.deselected},
        "warnings": list(report.warnings),
    }


def _count_json(key: str, count: Count) -> dict[str, Any]:
    return {key: count.label, "pages": count.pages, "bytes": count.size}


def write_report(report: Report, console: Console, *, as_json: bool) -> None:
    """Write the report in the form that fits the console."""
    if as_json:
        _write_lines(console, [json.dumps(to_json(report), indent=2)])
        return
    for title, counts in (
        ("access", count_accesses(report.plan.entries)),
        ("seen by", count_readers(report.plan.entries)),
    ):
        if console.is_terminal:
            console.print(_rich_table(title, counts))
        else:
            _write_lines(console, [*_plain_table(title, counts), ""])
    _write_lines(console, list(_lines(report)))


def _write_lines(console: Console, lines: list[str]) -> None:
    # Not console.print: it wraps at the width of a terminal that may not be there, and reads [markup].
    encoding = console.encoding
    text = "".join(f"{line}\n" for line in lines)
    console.file.write(text.encode(encoding, "backslashreplace").decode(encoding))
    console.file.flush()


def _rich_table(title: str, counts: Sequence[Count]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title)
    table.add_column("pages", justify="right")
    table.add_column("bytes", justify="right")
    for count in counts:
        table.add_row(Text(count.label), f"{count.pages:,}", f"{count.size:,}")
    return table


def _plain_table(title: str, counts: Sequence[Count]) -> list[str]:
    rows = [(title, "pages", "bytes")]
    rows += [(count.label, f"{count.pages:,}", f"{count.size:,}") for count in counts]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]


def _lines(report: Report) -> Iterator[str]:
    plan, scan, listing = report.plan, report.scan, report.listing
    yield (
        f"{len(plan.added):,} added, {len(plan.changed):,} changed, {len(plan.removed):,} removed, "
        f"{plan.kept:,} kept; access of {len(plan.access):,} changed"
    )
    if plan.published:
        yield from _names("added", plan.added)
    yield from _names("changed", plan.changed)
    yield from _names("removed", plan.removed)
    yield from _names(
        "access widened", [f"{c.path} ({c.old} -> {c.new})" for c in plan.access if c.widened]
    )
    yield from _names(
        "access narrowed", [f"{c.path} ({c.old} -> {c.new})" for c in plan.access if not c.widened]
    )
    yield from _names("opened beyond the ACL file by their own front matter", scan.opened_by_page)
    yield from _names("lists of pages, for the operator alone as no rule names them", scan.withheld)
    yield from _names("skipped", [f"{path} ({why})" for path, why in listing.skipped])
    if listing.dot_names or listing.deselected:
        yield (
            f"left out: {listing.dot_names:,} dot-names, "
            f"{listing.deselected:,} by --include and --exclude"
        )
    yield from (f"warning: {printable(warning)}" for warning in report.warnings[:SHOWN])
    if len(report.warnings) > SHOWN:
        yield f"warning: {len(report.warnings) - SHOWN:,} more warnings (--json has all)"
    yield report.outcome()


def _names(title: str, names: Sequence[str]) -> Iterator[str]:
    if not names:
        return
    yield f"{title}:"
    yield from (f"  {printable(name)}" for name in names[:SHOWN])
    if len(names) > SHOWN:
        yield f"  … and {len(names) - SHOWN:,} more (--json names all)"


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that shows progress as a bar, where `console` is a terminal, else one that does nothing."""
    if not console.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(_STAGES.get(stage, stage), total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield show
