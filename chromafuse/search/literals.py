"""Which literals a regular expression requires: from Python's own parse tree to a Need.

The caller brings a pattern in Python's notation that matches at least whatever the real tool's pattern
matches; `ANY_TEXT` and its like are there to write one. What is not understood makes the answer None, or the
part of the pattern say nothing. The parser is a private module of the standard library, so a self-test at
import looks at what we rely on; where it fails, nothing is known of any pattern.

The algebra is that of RE2's prefilter: a part of a pattern matches one of a few exact strings, or begins with
one of `heads`, ends with one of `tails`, and fulfils its clauses. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from re import _parser  # type: ignore[attr-defined]  # no public module has the tree
from typing import Any, Final

from .needs import Need, fold

# For writing a wider pattern.
ANY_CHARACTER: Final = "."
ANY_TEXT: Final = "(?:.*)"
MAYBE_CHARACTER: Final = "(?:.?)"
NOTHING: Final = "(?:)"

MOST_CHARACTERS: Final = 4096  # of one expression; the work grows with its square
_MOST_EXACT: Final = 32  # strings carried along; more end the literals before them
_MOST_ALTERNATIVES: Final = 256  # literals of one clause
_MOST_CLAUSES: Final = 4
_LONGEST: Final = 256  # characters of a literal; a part of it says enough
_TELLING: Final = 3  # characters of a literal that some pages do not have
_MOST_LISTED: Final = 16  # characters of a class that are tried one by one

_Strings = frozenset[str]
_EMPTY: Final[_Strings] = frozenset([""])


class _Unknown(Exception):
    """The tree holds something whose meaning we do not know."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a part of a pattern matches: one of `exact`, where that is known; else what the rest says."""

    exact: _Strings | None = None
    heads: _Strings = _EMPTY
    tails: _Strings = _EMPTY
    clauses: tuple[_Strings, ...] = ()


_ANYTHING: Final = _Part()
_ZERO_WIDTH: Final = _Part(exact=_EMPTY)


def quote(text: str) -> str:
    """Return the pattern that matches `text` alone."""
    return re.escape(text)


def literal_need(text: str, *, fold: bool = False) -> Need | None:
    """Return what a page needs for the fixed string `text`; None where it needs nothing."""
    return _need(_sequence(_text(text, fold)), fold)


def need_of(pattern: str, *, fold: bool = False) -> Need | None:
    """Return what a page needs for a pattern of Python's `re`; None where it needs nothing, or who knows what.

    A `(?i)` at its start counts as `fold`; other flags are not understood. Classes with `[`, `--`, `&&`, `||`
    or `~~` in them are the caller's to keep out: Python warns of them.
    """
    if not _USABLE or len(pattern) > MOST_CHARACTERS:
        return None
    try:
        tree, folds = _parse(pattern)
        return _need(_tree(tree, fold or folds), fold or folds)
    except (re.error, _Unknown, RecursionError, OverflowError):
        return None


def _parse(pattern: str) -> tuple[Any, bool]:
    """Return the parse tree, and whether it is to ignore case as a whole."""
    tree = _parser.parse(pattern)
    flags = tree.state.flags
    if flags & ~(re.IGNORECASE | re.UNICODE):
        raise _Unknown
    return tree, bool(flags & re.IGNORECASE)


def _tree(nodes: Iterable[tuple[Any, Any]], fold: bool) -> _Part:
    """Return what a concatenation of nodes matches."""
    parts: list[_Part] = []
    for op, run in groupby(nodes, key=lambda node: str(node[0])):
        if op == "LITERAL":
            parts += _text("".join(chr(code) for _, code in run), fold)
        else:
            parts += [_node(op, argument, fold) for _, argument in run]
    return _sequence(parts)


def _node(op: str, argument: Any, fold: bool) -> _Part:
    """Return what one node of the tree matches."""
    match op:
        case "NOT_LITERAL" | "ANY" | "ASSERT_NOT" | "GROUPREF":
            return _ANYTHING
        case "ASSERT":  # its text is in the page, where the rest may match it again
            return _Part(clauses=_clauses(_tree(argument[1], fold)))
        case "AT":
            return _ZERO_WIDTH
        case "IN":
            return _class(argument, fold)
        case "BRANCH":
            return _alternation([_tree(branch, fold) for branch in argument[1]])
        case "SUBPATTERN":
            _, added, removed, body = argument
            if added or removed:
                raise _Unknown
            return _tree(body, fold)
        case "ATOMIC_GROUP":
            return _tree(argument, fold)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, body = argument
            return _repeat(int(least), int(most), _tree(body, fold))
        case _:
            raise _Unknown


def _text(text: str, ignore_case: bool) -> list[_Part]:
    """Return what a run of characters matches: in any case, and then anything for those beyond ASCII."""
    if not ignore_case:
        return [_Part(exact=frozenset([text]))]
    # Beyond ASCII each tool folds by tables of its own.
    return [
        _Part(exact=frozenset([fold("".join(run))])) if plain else _ANYTHING
        for plain, run in groupby(text, key=str.isascii)
    ]


def _class(items: Sequence[tuple[Any, Any]], fold: bool) -> _Part:
    """Return what a bracket expression matches: its characters where they are few, and ASCII."""
    chars: set[int] = set()
    for op, argument in items:
        match str(op):
            case "LITERAL":
                chars.add(argument)
            case "RANGE" if argument[1] - argument[0] < _MOST_LISTED:
                chars.update(range(argument[0], argument[1] + 1))
            case _:
                return _ANYTHING
    # A tool that works by bytes takes a character beyond ASCII for several.
    if len(chars) > _MOST_LISTED or any(char > 0x7F for char in chars):
        return _ANYTHING
    return _alternation([_sequence(_text(chr(char), fold)) for char in sorted(chars)])


def _product(left: _Strings, right: _Strings) -> _Strings | None:
    """Return every string of `left` followed by every one of `right`, or None where that is too many."""
    if len(left) * len(right) > _MOST_EXACT:
        return None
    return frozenset(one + other for one in left for other in right)


def _sequence(parts: Iterable[_Part]) -> _Part:
    """Return what the parts match one after the other."""
    current = _EMPTY  # what the text read so far ends with
    heads: _Strings | None = None  # None: the text so far is `current` and nothing else
    clauses: list[_Strings] = []
    for part in parts:
        grown = None if part.exact is None else _product(current, part.exact)
        if grown is not None:
            current = grown
            continue
        begin, end = (part.heads, part.tails) if part.exact is None else (part.exact, part.exact)
        joined = _product(current, begin) or current
        clauses += [joined, *part.clauses]
        heads = joined if heads is None else heads
        current = end
    if heads is None:
        return _Part(exact=current)
    return _Part(None, heads, current, _useful([*clauses, current]))


def _alternation(parts: Sequence[_Part]) -> _Part:
    """Return what one of the parts matches."""
    exact = [part.exact for part in parts if part.exact is not None]
    united = frozenset[str]().union(*exact)
    if len(exact) == len(parts) and len(united) <= _MOST_EXACT:
        return _Part(exact=united)
    heads = frozenset[str]().union(*(part.exact or part.heads for part in parts))
    tails = frozenset[str]().union(*(part.exact or part.tails for part in parts))
    best = [next(iter(_clauses(part)), _EMPTY) for part in parts]
    clause = frozenset[str]().union(*best)
    return _Part(
        None,
        heads if len(heads) <= _MOST_EXACT else _EMPTY,
        tails if len(tails) <= _MOST_EXACT else _EMPTY,
        _useful([clause]) if len(clause) <= _MOST_ALTERNATIVES else (),
    )


def _repeat(least: int, most: int, part: _Part) -> _Part:
    """Return what `least` to `most` copies of a part match."""
    if most == 0:
        return _ZERO_WIDTH
    if least == 0:
        if most == 1 and part.exact is not None and len(part.exact) < _MOST_EXACT:
            return _Part(exact=part.exact | _EMPTY)
        return _ANYTHING
    copies = min(least, _MOST_EXACT)
    some = _sequence([part] * copies)
    if copies == least == most:
        return some
    if some.exact is not None:
        return _Part(None, some.exact, some.exact)
    return some


def _useful(clauses: Iterable[_Strings]) -> tuple[_Strings, ...]:
    """Return the clauses that ask for something, the best few first."""
    asking = {_shortest(clause) for clause in clauses if clause and "" not in clause}
    chosen: list[_Strings] = []
    for clause in sorted(asking, key=_worth, reverse=True):
        if len(chosen) < _MOST_CLAUSES and not any(_implies(one, clause) for one in chosen):
            chosen.append(clause)
    return tuple(chosen)


def _shortest(clause: _Strings) -> _Strings:
    """Return a clause without the literals that hold another one of it."""
    return frozenset(
        one for one in clause if not any(other != one and other in one for other in clause)
    )


def _implies(one: _Strings, other: _Strings) -> bool:
    """Whether a page that fulfils `one` fulfils `other`."""
    return all(any(literal in longer for literal in other) for longer in one)


def _worth(clause: _Strings) -> tuple[int, int, list[str]]:
    """Rank a clause: by its shortest literal, then by how few they are; the rest settles ties."""
    return min(map(len, clause)), -len(clause), sorted(clause)


def _clauses(part: _Part) -> tuple[_Strings, ...]:
    """Return all that is known of a page with a match of a part."""
    return _useful(part.clauses if part.exact is None else (part.exact,))


def _need(part: _Part, fold: bool) -> Need | None:
    """Return the need of a whole pattern."""
    clauses = _clauses(part)
    # One with a short literal fits nearly every page: only if there is no other.
    telling = tuple(clause for clause in clauses if min(map(len, clause)) >= _TELLING)
    cut = [frozenset(one[:_LONGEST] for one in clause) for clause in telling or clauses[:1]]
    return Need(tuple(cut), fold) if cut else None


# Pattern -> its tree. If the parser ever says something else, we no longer know what it says.
_SAMPLES: Final = {
    "a[bc]": [("LITERAL", 97), ("IN", [("LITERAL", 98), ("LITERAL", 99)])],
    "a+b*?": [
        ("MAX_REPEAT", (1, "MAXREPEAT", [("LITERAL", 97)])),
        ("MIN_REPEAT", (0, "MAXREPEAT", [("LITERAL", 98)])),
    ],
    "(a)\\1^": [
        ("SUBPATTERN", (1, 0, 0, [("LITERAL", 97)])),
        ("GROUPREF", 1),
        ("AT", "AT_BEGINNING"),
    ],
    "ab|cd": [
        (
            "BRANCH",
            (
                None,
                [
                    [("LITERAL", 97), ("LITERAL", 98)],
                    [("LITERAL", 99), ("LITERAL", 100)],
                ],
            ),
        )
    ],
    "[^a-b\\w].": [
        (
            "IN",
            [("NEGATE", None), ("RANGE", (97, 98)), ("CATEGORY", "CATEGORY_WORD")],
        ),
        ("ANY", None),
    ],
    "(?=a)(?!b)": [("ASSERT", (1, [("LITERAL", 97)])), ("ASSERT_NOT", (1, [("LITERAL", 98)]))],
}


def _plain(value: Any) -> Any:
    """Return a tree in tuples, lists, numbers and names."""
    if isinstance(value, _parser.SubPattern | list):
        return [_plain(one) for one in value]
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    return str(value) if type(value) is not int and value is not None else value


def _self_test() -> bool:
    """Whether the parser speaks of the samples as it did when this was written."""
    try:
        return all(_plain(_parser.parse(text)) == tree for text, tree in _SAMPLES.items())
    except (re.error, AttributeError, TypeError):
        return False


_USABLE: Final = _self_test()
