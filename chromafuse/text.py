"""Text for a terminal: names that cannot steer it, and aligned columns. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def printable(text: str) -> str:
    """Return `text` with control characters, and bytes that are no UTF-8, as escapes: always one line."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    )


def quoted(path: str) -> str:
    """Return `path` as a word of a shell command to be shown."""
    return shlex.quote(printable(path))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, its cells in columns two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
