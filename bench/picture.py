"""The picture in the README, drawn from a file of results. Pure: text in, SVG out.

Times on a logarithmic scale, one line a contender, grouped by the work. Colours follow the reader's light or
dark mode; there is no background.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from . import results
from .questions import COPY, FAST, JUST_BASH, NAIVE, SCRIPT, STOCK
from .results import Table
from .rivals import AGAIN, FIRST, MIRAGE, MIRAGE_SHELL

WIDTH = 860
_LEFT, _RIGHT = 330, 90  # for the labels and the figures
_LINE, _HEAD, _GAP = 22, 30, 14  # heights
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; fill: #24292f; }
.head { font-weight: 600; }
.ours { font-weight: 600; }
.axis { font-size: 11px; fill: #656d76; }
.grid { stroke: #d0d7de; stroke-width: 1; }
.bar { fill: #8c959f; }
.ours.bar { fill: #0969da; }
.copy.bar { fill: #1a7f37; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .axis { fill: #8d96a0; }
  .grid { stroke: #3d444d; }
  .bar { fill: #6e7681; }
  .ours.bar { fill: #4493f8; }
  .copy.bar { fill: #3fb950; }
}
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One line of the picture: where its figure is, and what it is called here."""

    question: str
    work: str
    contender: str
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the picture with its figure."""

    label: str
    ms: float
    kind: str  # ours, copy, other


@dataclass(frozen=True, slots=True)
class Group:
    """Lines below one heading."""

    heading: str
    bars: Sequence[Bar]


_GREP = (
    Wanted("warm", "grep -r", COPY, "plain copy on disk"),
    Wanted("warm", "grep -r", FAST, "chromafuse, again"),
    Wanted("first", "grep -r", FAST, "chromafuse, first; pages in the hub"),
    Wanted("cold", "grep -r", FAST, "chromafuse, first; nothing cached"),
    Wanted("cold", "grep -r", SCRIPT, "plain script that pulls every page"),
    Wanted("warm", "grep -r", STOCK, "stock pyfuse3, again"),
    Wanted("warm", "grep -r", JUST_BASH, "just-bash, pages in its memory"),
    Wanted("cold", "grep -r", NAIVE, "naive class over collection.get"),
)
_RG = (
    Wanted("warm", "rg", COPY, "plain copy on disk"),
    Wanted("warm", "rg", FAST, "chromafuse, again"),
    Wanted("first", "rg", FAST, "chromafuse, first; pages in the hub"),
    Wanted("cold", "rg", FAST, "chromafuse, first; nothing cached"),
    Wanted("warm", "rg", JUST_BASH, "just-bash, pages in its memory"),
)
_PEERS = (
    Wanted("mirage", AGAIN, COPY, "plain copy on disk"),
    Wanted("mirage", AGAIN, FAST, "chromafuse, again"),
    Wanted("mirage", FIRST, FAST, "chromafuse, first; nothing cached"),
    Wanted("mirage", FIRST, MIRAGE_SHELL, "Mirage, its own grep in process"),
    Wanted("mirage", AGAIN, JUST_BASH, "just-bash, pages in its memory"),
    Wanted("mirage", FIRST, NAIVE, "naive class over collection.get"),
    Wanted("mirage", FIRST, MIRAGE, "Mirage's FUSE mount, first"),
    Wanted("mirage", AGAIN, MIRAGE, "Mirage's FUSE mount, again"),
)


def draw(document: Mapping[str, Any]) -> str:
    """Return the picture of a file of results; what was not measured is left out. ValueError for nothing."""
    tables = [results.from_json(one) for one in document["tables"]]
    groups = list(_groups(results.main_tables(tables)))
    if not groups:
        raise ValueError("the file holds nothing that the picture shows")
    return _svg(groups)


def _groups(tables: Mapping[str, Table]) -> Iterator[Group]:
    for tool, question, wanted in (
        ("grep -r", "warm", _GREP),
        ("rg", "warm", _RG),
        ("grep -rn", "mirage", _PEERS),
    ):
        bars = [bar for bar in (_bar(tables, one) for one in wanted) if bar is not None]
        if bars and question in tables:
            yield Group(f"{tool} over {_what(tables[question])}", bars)


def _what(table: Table) -> str:
    where = ", Chroma server" if table.question == "mirage" else ""
    return f"{table.files:,} pages, {table.size / 1e6:.0f} MB{where}"


def _bar(tables: Mapping[str, Table], wanted: Wanted) -> Bar | None:
    table = tables.get(wanted.question)
    row = table.row(wanted.work, wanted.contender) if table else None
    if row is None:
        return None
    kind = {COPY: "copy", FAST: "ours"}.get(wanted.contender, "other")
    return Bar(wanted.label, row.ms, kind)


# -- drawing


def _svg(groups: Sequence[Group]) -> str:
    figures = [bar.ms for group in groups for bar in group.bars]
    low = math.floor(math.log10(min(figures) / 3))  # so that the shortest can be seen
    high = max(math.ceil(math.log10(max(figures))), low + 1)
    height = sum(_HEAD + _LINE * len(group.bars) + _GAP for group in groups) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="Search times, logarithmic scale">',
        f"<style>{_STYLE}</style>",
        *_axis(low, high, height),
    ]
    top = 0
    for group in groups:
        parts.extend(_group(group, top, low, high))
        top += _HEAD + _LINE * len(group.bars) + _GAP
    return "\n".join([*parts, "</svg>", ""])


def _axis(low: int, high: int, height: int) -> Iterator[str]:
    yield _text(_LEFT - 26, height - 6, "logarithmic scale", "axis", anchor="end")
    for power in range(low, high + 1):
        x = _x(10.0**power, low, high)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_HEAD}" y2="{height - 22}"/>'
        yield _text(x, height - 6, time(10.0**power), "axis", anchor="middle")


def _group(group: Group, top: int, low: int, high: int) -> Iterator[str]:
    yield _text(4, top + _HEAD - 10, group.heading, "head")
    for number, bar in enumerate(group.bars):
        y = top + _HEAD + _LINE * number
        width = round(_x(bar.ms, low, high) - _LEFT, 1)
        yield _text(_LEFT - 10, y + 15, bar.label, bar.kind, anchor="end")
        yield (
            f'<rect class="{bar.kind} bar" x="{_LEFT}" y="{y + 4}" width="{width}" '
            f'height="{_LINE - 8}" rx="2"/>'
        )
        yield _text(_LEFT + width + 6, y + 15, time(bar.ms), bar.kind)


def _x(ms: float, low: int, high: int) -> float:
    share = (math.log10(ms) - low) / (high - low)
    return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)


def time(ms: float) -> str:
    """Return a time as people say it, in three figures at most."""
    if ms < 1000:
        return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.2g} ms"
    return f"{ms / 1000:.0f} s" if ms >= 9_950 else f"{ms / 1000:.1f} s".replace(".0 ", " ")


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
