"""A search as a user gave it, and what is to be run instead. Values only; the tools' modules make them.

The real tool always does the searching: a plan names the words to run it with, and what a page needs to be
worth a look. Whoever does not understand a command line says Plain, and it runs untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .needs import Needs


@dataclass(frozen=True, slots=True)
class Request:
    """A command line: the name it was called by, the words after it, and what of the environment counts."""

    tool: str  # grep, egrep, fgrep or rg
    words: tuple[bytes, ...]
    env: Mapping[bytes, bytes] = field(default_factory=dict)
    # By position of the word: the content of -f FILE.
    files: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plain:
    """Run it untouched, and why, in a few words for --explain."""

    reason: str


@dataclass(frozen=True, slots=True)
class Send:
    """Ask again with the contents of the files that these words name (-f FILE).

    The real tool reads them again, so anything but a regular file must be left to it, and runs untouched.
    """

    words: tuple[tuple[int, bytes], ...]  # position of the word, path


class Selection(Protocol):
    """Which files below a directory operand the tool looks at (--include and the like)."""

    def admits(self, path: bytes) -> bool:
        """Say so for a path relative to the operand."""
        ...

    def admits_operand(self, operand: bytes) -> bool:
        """Say so for an operand as it was given that is there and no directory; others stay as they are."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run the real tool on a list of files: TOOL options [prefix] -- files.

    Where `enumerate` is set, `TOOL enumerate -- DIRECTORY…` (without operands: `TOOL enumerate`), its stdin
    /dev/null, lists the files below directories as they are to be named, each ended by a NUL. Its status must be
    0 and its stderr empty; with a message, another status or no file at all, the command line runs untouched,
    and so it does where no operand is a directory: what the listing's words alone would say is then not seen.
    Operands that are no directories stay where they are. A name `-` is never put on a list, nor, since rg
    leaves it out when it walks, the file that is the search's own stdout.
    Without operands rg searches stdin if that is a file, a pipe or a socket: it runs untouched unless stdin is
    a character device (a terminal, /dev/null).
    """

    needs: Needs
    options: tuple[bytes, ...]  # patterns included, what the list replaces left out
    operands: tuple[bytes, ...]  # as given; none: the current directory, shown without "./"
    recursive: bool  # directories among the operands are walked
    # Added where a directory was walked or there is more than one operand; b"": never.
    prefix: bytes
    selection: Selection | None = None
    # Of rg: the words of the `rg --files` that lists the files.
    enumerate: tuple[bytes, ...] | None = None
    # rg shows matches in a named file with NULs, and not in one that it finds.
    plain_on_nul: bool = False
