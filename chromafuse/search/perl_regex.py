"""Perl's regular expressions, as PCRE2 reads them, rewritten for the literals in them.

Python's dialect is nearly PCRE2's. What both read alike stays as it is; what PCRE2 alone knows becomes something
wider, where that is safe; a pattern that holds anything else is not understood. PCRE2 may work by bytes, as
grep has it do in the C locale: of a character beyond ASCII it may then repeat the last byte alone, but what that
matches is in no page of whole characters. Pure.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Final

from .literals import ANY_CHARACTER, ANY_TEXT, NOTHING, need_of, quote
from .needs import Need

_DEPTH: Final = 50  # of groups; the parser of the standard library recurses

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_PUNCTUATION: Final = re.escape(string.punctuation + " ")
_SHARED_ESCAPE: Final = rf"\\(?:[{_PUNCTUATION}]|[dDsSwWbnrtfa]|x[0-7][0-9A-Fa-f])"
_PROPERTY: Final = r"\\[pP](?:[A-Za-z]|\{\^?[A-Za-z_]+\})"
_SHARED_CLASS: Final = rf"\[\^?\]?(?:{_SHARED_ESCAPE}|[^\[\]\\])*\]"
_CLASS: Final = rf"\[\^?\]?(?:{_SHARED_ESCAPE}|\\[hHvV]|{_PROPERTY}|\[:\^?[a-z]+:\]|[^\[\]\\])*\]"
_SET_OPERATORS: Final = ("--", "&&", "||", "~~")  # Python warns of them


class _Refused(Exception):
    """The pattern holds something whose meaning is not known for sure."""


_Rewrite = Callable[[re.Match[str]], str]


def _as_it_is(found: re.Match[str]) -> str:
    return found[0]


def _class(found: re.Match[str]) -> str:
    """Return a class, or any character where Python reads it in its own way, or bytes may be meant."""
    alike = found[0].isascii() and re.fullmatch(_SHARED_CLASS, found[0])
    if alike and not any(operator in found[0] for operator in _SET_OPERATORS):
        return found[0]
    return ANY_CHARACTER


# What a pattern consists of, in the order in which it is looked for.
_TOKENS: Final[tuple[tuple[re.Pattern[str], _Rewrite], ...]] = tuple(
    (re.compile(expression), rewrite)
    for expression, rewrite in (
        (r"[^\[\\({]+", _as_it_is),
        (rf"\((?!\?)|\(\?(?:[:=!>]|<[=!]|P<{_NAME}>|P={_NAME}(?=\)))", _as_it_is),
        (rf"\(\?<({_NAME})>", lambda found: f"(?P<{found[1]}>"),
        # Flags: that they ignore case is seen to for the whole pattern, the others change no literal.
        (r"\(\?[ims]*(?:-[ims]*)?:", lambda _: "(?:"),
        (r"\(\?[ims]*(?:-[ims]*)?\)", lambda _: NOTHING),
        (_CLASS, _class),
        # A brace that opens no count is literal to both, but PCRE2 counts more and more: {,3} and { 1, 2 }.
        (r"\{(?:[0-9]+(?:,[0-9]*)?\}|(?![\s0-9,]))", _as_it_is),
        (rf"{_SHARED_ESCAPE}|\\[BAZ]|\\[1-9](?![0-9])", _as_it_is),
        (r"\\Q(.*?)(?:\\E|\Z)", lambda found: quote(found[1])),
        (r"\\[KGz]", lambda _: NOTHING),
        (rf"\\[hHvV]|\\N(?!\{{)|{_PROPERTY}", lambda _: ANY_CHARACTER),
        (rf"\\[RX]|\\k(?:<{_NAME}>|\{{{_NAME}\}})|\\g\{{(?:[0-9]+|{_NAME})\}}", lambda _: ANY_TEXT),
    )
)
_FOLDING: Final = re.compile(r"\(\?[ims]*i")


def perl_need(pattern: str, *, fold: bool = False) -> Need | None:
    """Return what a page needs for a pattern; None where it needs nothing, or who knows what."""
    try:
        return need_of(_rewritten(pattern), fold=fold or bool(_FOLDING.search(pattern)))
    except _Refused:
        return None


def _rewritten(pattern: str) -> str:
    """Return a pattern of Python's that matches at least wherever PCRE2 matches this one."""
    rewritten: list[str] = []
    at = depth = 0
    while at < len(pattern):
        found, rewrite = _token(pattern, at)
        rewritten.append(rewrite(found))
        depth += rewritten[-1].startswith("(")
        if depth > _DEPTH:
            raise _Refused
        at = found.end()
    return "".join(rewritten)


def _token(pattern: str, at: int) -> tuple[re.Match[str], _Rewrite]:
    """Return the token at a position and what becomes of it."""
    for expression, rewrite in _TOKENS:
        found = expression.match(pattern, at)
        if found is not None:
            return found, rewrite
    raise _Refused
