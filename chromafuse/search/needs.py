"""What a page must hold for a pattern to match in it: a necessary condition, never a sufficient one.

A condition is sound when every page that the real tool would report fulfils it. It speaks of a page as a
whole, so it holds for lines, for -z records and for matches over several lines alike.

Values only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """What one pattern needs: of each clause, at least one literal occurs in the page.

    Literals are not empty. Where `fold` is set they are ASCII and occur in any case, and `i`, `k` and `s` also
    as the letters beyond ASCII that a tool may take for them (see `fold`).
    """

    clauses: tuple[frozenset[str], ...]
    fold: bool = False


# One of them is enough. None: nothing is known, every page can match. Empty: no page can.
Needs = tuple[Need, ...] | None

# GNU grep, PCRE2 and Rust's regex fold these into one another, each in its own way and by locale.
_FOLDED = {0x130: "i", 0x131: "i", 0x17F: "s", 0x212A: "k"}
_FOLDED |= {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def fold(text: str) -> str:
    """Return `text` with one letter for all that any of the tools takes for that ASCII letter.

    Character by character, so a literal that occurs in a text, exactly or in another case, occurs folded in
    the folded text.
    """
    return text.translate(_FOLDED)
