"""GNU grep's regular expressions, basic and extended, rewritten for the literals in them.

The result is an expression of Python's dialect that matches at least wherever the original does. A bracket
expression is any character (what it holds depends on the locale) unless it lists a few plain ones; `^` and `$`
may be anchors or characters, so they are both; a back-reference is any text. Whatever grep refuses, warns of, or
reads in a way that is not known for sure has no rewriting.

A locale that works by bytes is covered: of a character beyond ASCII such a grep may repeat the last byte
alone, but what it then matches is in no page of whole characters. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from .literals import ANY_CHARACTER, ANY_TEXT, MAYBE_CHARACTER, NOTHING, quote

_DEPTH: Final = 50  # of groups; the parser of the standard library recurses
_MOST_COPIES: Final = 32767  # RE_DUP_MAX
_MOST_LISTED: Final = 8

# [:alpha:], [=a=] and [.-.] have brackets of their own; a backslash is a character like any other.
_BRACKET: Final = r"\[\^?\]?(?:\[:[a-z]+:\]|\[=[^\]=]=\]|\[\.[^\].]\.\]|[^\[\]]|\[(?![:=.]))*\]"
_PLAIN_BRACKET: Final = re.compile(rf"\[[A-Za-z0-9 ._/]{{1,{_MOST_LISTED}}}\]")
_COUNT: Final = r"[0-9]{1,5}(?:,[0-9]{0,5})?"

# What both dialects have, by kind. The first that fits counts.
_COMMON: Final = rf"""
    (?P<character>  \. | \\[wWsS] | {_BRACKET} )
  | (?P<position>   \\[bB<>`'] )
  | (?P<anchor>     [$^] )
  | (?P<reference>  \\[1-9] )
"""
_BASIC: Final = re.compile(
    rf"""{_COMMON}
  | (?P<open> \\\( ) | (?P<close> \\\) ) | (?P<either> \\\| )
  | (?P<repeat>     \* | \\[+?] | \\\{{ {_COUNT} \\\}} )
  | (?P<escaped>    \\ []\[.*^$/"#%&,:;=@_~!\ \\-] )
  | (?P<plain>      [^\\[.*^$] )""",
    re.VERBOSE | re.DOTALL,
)
_EXTENDED: Final = re.compile(
    rf"""{_COMMON}
  | (?P<open> \( ) | (?P<close> \) ) | (?P<either> \| )
  | (?P<repeat>     [*+?] | \{{ {_COUNT} \}} )
  | (?P<brace>      \{{ (?![0-9,]) )
  | (?P<escaped>    \\ []\[.*^$/"#%&,:;=@_~!\ \\(){{}}|+?-] )
  | (?P<plain>      [^\\[.*^$(){{|+?] )""",
    re.VERBOSE | re.DOTALL,
)


class _Refused(Exception):
    """The expression holds something whose meaning is not known for sure."""


def rewrite(pattern: str, *, extended: bool) -> str | None:
    """Return the wider expression of one pattern, which holds no newline, or None where it is not understood."""
    try:
        return _Writer(extended).write(pattern)
    except _Refused:
        return None


@dataclass(slots=True)
class _Writer:
    """What was written so far, and what the next token may do."""

    extended: bool
    written: list[str] = field(default_factory=list)
    depth: int = 0
    begins: bool = True  # nothing stands before: the start, "(" or "|"
    repeatable: bool = False  # the last token matches text, and is not repeated yet

    def write(self, pattern: str) -> str:
        """Return a whole pattern rewritten."""
        tokens = _EXTENDED if self.extended else _BASIC
        at = 0
        while at < len(pattern):
            found = tokens.match(pattern, at)
            if found is None or found.lastgroup is None:
                raise _Refused
            self._token(found.lastgroup, found[0])
            at = found.end()
        if self.depth:
            raise _Refused
        return "".join(self.written)

    def _token(self, kind: str, text: str) -> None:
        """Write one token."""
        match kind:
            case "plain" | "escaped":
                self._text(quote(text[-1]))
            case "character":
                self._text(_any_of(text))
            case "reference":
                self._text(ANY_TEXT)
            case "anchor" | "brace":  # an extended "{" that begins no count is a character
                self._add(MAYBE_CHARACTER)
            case "position":
                self._add(NOTHING)
            case "open":
                self._open()
            case "close":
                self._close()
            case "either":
                self._add("|", begins=True)
            case _:
                self._repeat(text.replace("\\", ""))

    def _add(self, written: str, *, begins: bool = False, repeatable: bool = False) -> None:
        self.written.append(written)
        self.begins, self.repeatable = begins, repeatable

    def _text(self, written: str) -> None:
        """Write what matches text and can be repeated."""
        self._add(written, repeatable=True)

    def _open(self) -> None:
        """Write the start of a group."""
        self.depth += 1
        if self.depth > _DEPTH:
            raise _Refused
        self._add("(?:", begins=True)

    def _close(self) -> None:
        """Write the end of a group."""
        self.depth -= 1
        if self.depth < 0:
            raise _Refused
        self._text(")")

    def _repeat(self, times: str) -> None:
        """Write how often the last item may come."""
        if times == "*" and self.begins and not self.extended:
            self._text(ANY_TEXT)  # a character here
            return
        least, _, most = times.strip("{}").partition(",")
        if not self.repeatable or (most and int(most) < int(least)):
            raise _Refused
        if any(count.isdigit() and int(count) > _MOST_COPIES for count in (least, most)):
            raise _Refused
        self._add(times)


def _any_of(text: str) -> str:
    """Return what a bracket expression or a class of one letter matches, or more."""
    if _PLAIN_BRACKET.fullmatch(text):
        return f"(?:{'|'.join(map(quote, text[1:-1]))})"
    if text.startswith("[:") and text.endswith(":]"):
        raise _Refused  # grep takes it for a mistake
    return ANY_CHARACTER
