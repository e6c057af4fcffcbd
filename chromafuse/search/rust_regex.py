"""Rust's regular expressions, as ripgrep reads them, rewritten for the literals in them.

The result is an expression of Python's dialect that matches at least wherever the original does, written with
escaped characters, `.`, groups, `|`, `*` and `+` alone. What a class or an escape stands for is not worked
out: it is any character. Anything that is not known for sure has no rewriting.

ripgrep compiles with multi-line anchors and searches line by line, so no match holds a line feed. Pure.
"""

from __future__ import annotations

import re
import string

# Of groups; beyond it the expression is not understood, and no parser here recurses deeper.
_DEPTH = 50
_FLAGS = re.compile(r"\(\?[imsUu]*(?:-[isU]+)?([:)])")
_NAMED = re.compile(r"\(\?P?<[A-Za-z_][A-Za-z0-9_.\[\]]*>")
_COUNTED = re.compile(r"[*+?]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\}")
_CODE_POINT = re.compile(
    r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,8})\})"
    r"|u(?:([0-9A-Fa-f]{4})|\{([0-9A-Fa-f]{1,8})\})"
    r"|U(?:([0-9A-Fa-f]{8})|\{([0-9A-Fa-f]{1,8})\})"
)
_PROPERTY = re.compile(r"[pP](?:[A-Za-z]|\{[^{}\[\]\\]+\})")
_BOUNDARY = re.compile(r"b\{(?:start|end|start-half|end-half)\}")
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "r": "\r", "v": "\v"}
# Release 13 refuses to escape most of these; it then says so itself, whatever the files are.
_ESCAPABLE = frozenset(string.punctuation + " ") - {"<", ">"}
_SMALL = 4  # characters in a class that is written out, such as [Ff]

_EMPTY = "(?:)"  # matches nothing and can be repeated, as an anchor can
_ANY = "."


class _Refused(Exception):
    """The expression holds something whose meaning is not known for sure."""


def rewrite(pattern: str) -> str | None:
    """Return the wider expression of one pattern, or None where it is not understood.

    Flags that ignore case are left out: the caller has to look for them in all patterns together.
    """
    try:
        return _Reader(pattern).read()
    except _Refused:
        return None


class _Reader:
    """Reads one pattern from left to right; the open groups are on a stack."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        # The items of each open group. An empty item cannot be repeated: a start, a "|", a flag.
        self._groups: list[list[str]] = [[]]

    def read(self) -> str:
        """Return the whole pattern rewritten."""
        while self._at < len(self._pattern):
            self._item(self._pattern[self._at])
        if len(self._groups) != 1:
            raise _Refused
        return "".join(self._groups[0])

    def _item(self, char: str) -> None:
        """Read one item that begins with a character."""
        match char:
            case "(":
                self._open()
            case ")":
                self._close()
            case "|":
                self._groups[-1] += ["|", ""]
                self._at += 1
            case "*" | "+" | "?" | "{":
                self._repeat()
            case "[":
                self._add(self._class())
            case "\\":
                self._at += 1
                self._add(self._escape())
            case "." | "^" | "$":
                self._at += 1
                self._add(_ANY if char == "." else _EMPTY)
            case _:
                self._at += 1
                self._add(_literal(char))

    def _add(self, atom: str) -> None:
        self._groups[-1].append(atom)

    def _take(self, expression: re.Pattern[str]) -> re.Match[str]:
        """Read what the expression matches here."""
        found = expression.match(self._pattern, self._at)
        if found is None:
            raise _Refused
        self._at = found.end()
        return found

    def _open(self) -> None:
        """Read the beginning of a group, or flags that hold to the end of the group around them."""
        if not self._pattern.startswith("(?", self._at):
            self._at += 1
        elif _NAMED.match(self._pattern, self._at):
            self._take(_NAMED)
        elif self._take(_FLAGS)[1] == ")":
            self._add("")
            return
        if len(self._groups) > _DEPTH:
            raise _Refused
        self._groups.append([""])

    def _close(self) -> None:
        """Read the end of a group."""
        if len(self._groups) == 1:
            raise _Refused
        self._at += 1
        inside = "".join(self._groups.pop())
        self._add(f"(?:{inside})")

    def _repeat(self) -> None:
        """Read how often the item before may come."""
        items = self._groups[-1]
        if not items or not items[-1]:
            raise _Refused
        times = self._take(_COUNTED)[0]
        if self._pattern.startswith("?", self._at):  # as few as possible
            self._at += 1
        items[-1] = f"(?:{items[-1]}){times}"

    def _escape(self) -> str:
        """Read what follows a backslash, outside a class."""
        char = self._pattern[self._at : self._at + 1]
        if char in {"x", "u", "U"}:
            digits = next(filter(None, self._take(_CODE_POINT).groups()))
            return _literal(_character(int(digits, 16)))
        if char in {"p", "P"}:
            self._take(_PROPERTY)
            return _ANY
        self._at += 1
        if char == "b" and self._pattern.startswith("{", self._at):
            self._at -= 1
            self._take(_BOUNDARY)
            return _EMPTY
        if char in {"b", "B", "<", ">"}:  # before release 14 the last two are refused
            return _EMPTY
        if char in {"d", "D", "s", "S", "w", "W"}:
            return _ANY
        if char in _CONTROLS:
            return _literal(_CONTROLS[char])
        if char in _ESCAPABLE:
            return _literal(char)
        raise _Refused

    def _class(self) -> str:
        """Read a class in brackets, with the classes in it, to its end."""
        start = self._at
        depth = 0
        while True:
            char = self._pattern[self._at : self._at + 1]
            if not char or char in "\n\0" or depth > _DEPTH:
                raise _Refused
            if char == "[":
                depth += 1
                self._class_start()
            else:
                self._at += 2 if char == "\\" else 1
                depth -= char == "]"
            if not depth:
                return _small_class(self._pattern[start + 1 : self._at - 1])

    def _class_start(self) -> None:
        """Read an opening bracket and what is literal only right behind it: dashes, or one bracket."""
        self._at += 1
        if self._pattern.startswith("^", self._at):
            self._at += 1
        if self._pattern.startswith("]", self._at):
            self._at += 1
        else:
            while self._pattern.startswith("-", self._at):
                self._at += 1


def _small_class(inside: str) -> str:
    """Return a class of a few plain characters written out, and any other as any character."""
    characters = inside.removeprefix("\\") if len(inside) == 2 else inside
    if characters != inside and characters not in _ESCAPABLE:
        return _ANY
    plain = characters == inside and all(c.isalnum() or c in " ._/" for c in inside)
    if characters and (plain or len(characters) == 1) and len(characters) <= _SMALL:
        return f"(?:{'|'.join(map(_literal, characters))})"
    return _ANY


def _character(code: int) -> str:
    """Return a code point as a character."""
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise _Refused
    return chr(code)


def _literal(char: str) -> str:
    """Return an expression for one character. A line feed or NUL is refused by ripgrep, in its own words."""
    if char in "\n\0":
        raise _Refused
    return re.escape(char)
