"""The tables of the docs, written from a file of results into the texts. Pure: text in, text out.

A text has `<!-- bench: NAME -->` where the table of a question, of real pages, belongs, `<!-- bench: NAME 60000
-->` for that of generated ones, or `summary`, `targets`, `memory`, `machine`; `<!-- end -->` closes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import picture, results, targets
from .questions import COPY, FAST
from .results import Table

_AGAIN, _HUB, _COLD = "again", "first; pages in the hub", "first; nothing cached anywhere"
_SUMMARY = (
    *((_AGAIN, "warm", work) for work in ("grep -r", "rg", "find", "ls -lR", "tar c | cat")),
    *((_HUB, "first", work) for work in ("grep -r", "rg")),
    *((_COLD, "cold", work) for work in ("grep -r", "rg")),
)
_PLACE = re.compile(r"(<!-- bench: ([a-z-]+)(?: (\d+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, document: Mapping[str, Any]) -> str:
    """Return the text with its tables made anew. KeyError for a table that the file does not hold."""
    tables = [results.from_json(one) for one in document["tables"]]

    def place(found: re.Match[str]) -> str:
        name, pages = found[2], found[3]
        return found[1] + _part(name, pages, tables, document) + found[4]

    return _PLACE.sub(place, text)


def _part(
    name: str, pages: str | None, tables: Sequence[Table], document: Mapping[str, Any]
) -> str:
    if name == "targets":
        return _targets(tables, document)
    if name == "summary":
        return _summary(results.main_tables(tables))
    if name == "memory":
        return _memory(document["memory"])
    if name == "machine":
        return ", ".join(f"{key} {value}" for key, value in document["machine"].items()) + "\n"
    if pages is None:
        return _table(results.main_tables(tables)[name])
    return _table({(one.question, one.files): one for one in tables}[name, int(pages)])


def _table(table: Table) -> str:
    headings = ["", "on", "ms", *(f"/ {base}" for base in table.bases)]
    costs = any(row.used is not None for row in table.rows)
    if costs:
        headings += ["requests", "to hub", "fetches", "MB", "CPU ms: view / hub / store / index"]
    lines = [_line(headings), _line(["---", "---", *["---:"] * (len(headings) - 2)])]
    before = ""
    for row in table.rows:
        ratios = (row.ratios.get(base) for base in table.bases)
        lines.append(
            _line(
                [
                    f"`{row.work}`" if row.work != before else "",
                    row.contender + (f"; {row.note}" if row.note else ""),
                    f"{row.ms:,.0f}" if row.ms >= 100 else f"{row.ms:.1f}",
                    *("" if ratio is None else results.times(ratio) for ratio in ratios),
                    *(results.costs(row) if costs else ()),
                ]
            )
        )
        before = row.work
    left_out = "".join(f"\nLeft out: {what}: {why}.\n" for what, why in table.missing)
    about = f"{table.files:,} files, {table.size / 1e6:.0f} MB, {table.corpus}, medians of {table.rounds}"
    return (
        f"{about}; others used {table.busy:.0%} of the CPU when it began.\n\n"
        + "".join(lines)
        + left_out
    )


def _summary(tables: Mapping[str, Table]) -> str:
    """Return the short table of the README: our mount beside the copy."""
    lines = [
        _line(["", "mount", "plain copy", "ratio", "requests to the view"]),
        _line(["---", *["---:"] * 4]),
    ]
    for words, question, work in _SUMMARY:
        table = tables[question]
        row, base = table.row(work, FAST), table.row(work, COPY)
        if row is None or base is None:
            continue
        times = [picture.time(row.ms), picture.time(base.ms), results.times(row.ratios[COPY])]
        requests = f"{row.used.requests:,.0f}" if row.used else ""
        lines.append(_line([f"`{work}`, {words}", *times, requests]))
    return "".join(lines)


def _targets(tables: Sequence[Table], document: Mapping[str, Any]) -> str:
    found = targets.verdicts(tables, document.get("memory", []))
    words = {True: "met", False: "**missed**", None: ""}
    rows = [[one.target, one.limit, one.goal, one.found, words[one.met]] for one in found]
    return "".join(map(_line, [["target", "limit", "goal", "found", ""], ["---"] * 5, *rows]))


def _memory(memory: Sequence[Mapping[str, Any]]) -> str:
    headings = ["private MB (Pss)", *(f"{one['pages']:,} pages" for one in memory)]
    lines = [_line(headings), _line(["---", *["---:"] * len(memory)])]
    for when, words in (("at_first", "after the first `ls`"), ("after_walk", "after a walk")):
        for part in ("view", "hub"):
            used = [one[when][part] for one in memory]
            cells = [f"{one['private']} ({one['pss']})" for one in used]
            lines.append(_line([f"{part}, {words}", *cells]))
    return "".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"
