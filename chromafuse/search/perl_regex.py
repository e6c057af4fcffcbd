"""Perl's regular expressions, as PCRE2 reads them, checked for the literals in them.

Python's dialect is nearly PCRE2's. What both read alike is listed here; a pattern that holds anything else is
not understood. The caller sees to it that PCRE2 works by characters: with a pattern beyond ASCII it must be in
UTF-8 mode. Pure.
"""

from __future__ import annotations

import re
import string
from typing import Final

from .literals import need_of
from .needs import Need

_DEPTH: Final = 50  # of groups; the parser of the standard library recurses

_GROUP: Final = re.compile(
    r"\((?!\?)|\(\?(?:[:=!>]|<[=!]|P<[A-Za-z_][A-Za-z0-9_]*>|P=[A-Za-z_][A-Za-z0-9_]*(?=\)))"
)
_PUNCTUATION: Final = re.escape(string.punctuation + " ")
# One escape that means the same to both. Not \v and \N, which mean other things, nor octal digits.
_ESCAPE: Final = re.compile(
    rf"\\(?:[{_PUNCTUATION}]|[dDsSwWbBAZnrtfa]|x[0-7][0-9A-Fa-f]|[1-9](?![0-9]))"
)
_CLASS_ESCAPE: Final = re.compile(rf"\\(?:[{_PUNCTUATION}]|[dDsSwWbnrtfa]|x[0-7][0-9A-Fa-f])")
_CLASS: Final = re.compile(rf"\[\^?\]?(?:{_CLASS_ESCAPE.pattern}|[^\[\]\\])*\]")
_SET_OPERATORS: Final = ("--", "&&", "||", "~~")
# A brace that opens no count is literal to both, but PCRE2 counts more and more: {,3} and { 1, 2 }.
_BRACE: Final = re.compile(r"\{(?:[0-9]+(?:,[0-9]*)?\}|(?![\s0-9,]))")


def perl_need(pattern: str, *, fold: bool = False) -> Need | None:
    """Return what a page needs for a pattern; None where it needs nothing, or who knows what."""
    return need_of(pattern, fold=fold) if _understood(pattern) else None


def _understood(pattern: str) -> bool:
    """Say whether Python and PCRE2 read the pattern alike, if Python takes it at all."""
    at = len("(?i)") if pattern.startswith("(?i)") else 0
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "[":
            found = _CLASS.match(pattern, at)
            if found and any(operator in found[0] for operator in _SET_OPERATORS):
                return False
        elif char in _TOKENS:
            found = _TOKENS[char].match(pattern, at)
            depth += char == "("
        else:
            at += 1
            continue
        if found is None or depth > _DEPTH:
            return False
        at = found.end()
    return True


_TOKENS: Final = {"(": _GROUP, "\\": _ESCAPE, "{": _BRACE}
