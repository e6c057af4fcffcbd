"""GNU grep's options: how a command line splits into them, and what each means for a list of files.

The splitting is getopt_long's: options anywhere (with POSIXLY_CORRECT, before the first operand), clusters,
values attached or in the next word, long names shortened to any beginning that is unambiguous. Options are
handed on one a word and in their order, which means the same to grep. Values that grep might refuse are not
understood, so that its own message comes from the command line as it was given.

Values only.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from .plan import Plain


class Use(enum.Enum):
    """What becomes of an option."""

    KEEP = enum.auto()  # the real tool gets it
    DROP = enum.auto()  # the list of files replaces it
    DIRECTORIES = enum.auto()  # kept where directories are not walked
    UNTOUCHED = (
        enum.auto()
    )  # other files than those that match shape the output, or none is searched


@dataclass(frozen=True, slots=True)
class Option:
    """One option under its long name, or its letter where it has none."""

    name: str
    use: Use
    value: re.Pattern[bytes] | None = None  # what it may be; None: a switch
    optional: bool = False  # a value has to be attached


@dataclass(frozen=True, slots=True)
class Given:
    """An option as it was given: the words to hand on, its value, and the position of the word with it."""

    option: Option
    words: tuple[bytes, ...]
    value: bytes = b""
    position: int = -1


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line: options and operands, each in order."""

    options: tuple[Given, ...]
    operands: tuple[bytes, ...]


_ANY: Final = re.compile(rb".*", re.DOTALL)
_NUMBER: Final = re.compile(rb"[0-9]{1,9}")
_WHEN: Final = re.compile(rb"always|yes|force|never|no|none|auto|tty|if-tty", re.IGNORECASE)

# "x/long" has the short form -x, "x/" only that; names joined by "=" are one option.
_SWITCHES: Final = {
    Use.KEEP: """
        a/text b/byte-offset E/extended-regexp F/fixed-strings=fixed-regexp G/basic-regexp H/with-filename
        h/no-filename I/ i/ignore-case y/ l/files-with-matches n/line-number no-ignore-case
        no-group-separator line-buffered o/only-matching P/perl-regexp q/quiet=silent
        s/no-messages T/initial-tab U/binary u/unix-byte-offsets w/word-regexp x/line-regexp
        Z/null z/null-data
    """,
    Use.DROP: "r/recursive R/dereference-recursive",
    Use.UNTOUCHED: "c/count help L/files-without-match V/version v/invert-match",
}
_VALUES: Final = (
    (Use.KEEP, "A/after-context B/before-context C/context", _NUMBER),
    (Use.KEEP, "m/max-count", re.compile(rb"[1-9][0-9]{0,8}")),
    (Use.KEEP, "binary-files", re.compile(rb"binary|text|without-match")),
    (Use.KEEP, "D/devices", re.compile(rb"read|skip")),
    (Use.KEEP, "e/regexp group-separator label", _ANY),
    # "-": standard input
    (Use.KEEP, "f/file", re.compile(rb"(?!-\Z).*", re.DOTALL)),
    (Use.DIRECTORIES, "d/directories", re.compile(rb"read|recurse|skip")),
    (Use.DROP, "exclude exclude-dir include", _ANY),
    (Use.DROP, "exclude-from", re.compile(rb"(?!-\Z).*", re.DOTALL)),
    (Use.UNTOUCHED, "X/", _ANY),
)
_COLOR: Final = Option("color", Use.KEEP, _WHEN, optional=True)
_DIGITS: Final = Option("context", Use.KEEP, _NUMBER)


def _rows() -> Iterator[tuple[str, Option]]:
    """Yield each option with its names as in the lists above."""
    yield "color=colour", _COLOR
    for use, names in _SWITCHES.items():
        for name in names.split():
            yield name, Option(_canonical(name), use)
    for use, names, value in _VALUES:
        for name in names.split():
            yield name, Option(_canonical(name), use, value)


def _canonical(names: str) -> str:
    letter, _, long = names.rpartition("/")
    return long.partition("=")[0] or letter


def _long_names() -> Iterator[tuple[bytes, Option]]:
    for names, option in _rows():
        for name in names.rpartition("/")[2].split("="):
            if name:
                yield name.encode(), option


_LONG: Final = dict(_long_names())
_SHORT: Final = {names[0].encode(): option for names, option in _rows() if names[1:2] == "/"}


class _Unknown(Exception):
    """Words that are not understood; its text says which, in a few words."""


def parse(words: tuple[bytes, ...], *, permute: bool) -> Parsed | Plain:
    """Split a command line, or say why it must run untouched. The first operand may be the pattern."""
    options: list[Given] = []
    operands: list[bytes] = []
    at = 0
    try:
        while at < len(words):
            word = words[at]
            if word == b"--":
                operands += words[at + 1 :]
                break
            if word.startswith(b"--"):
                given, at = _long(words, at)
                options.append(given)
            elif word.startswith(b"-") and word != b"-":
                cluster, at = _cluster(words, at)
                options += cluster
            elif permute:
                operands.append(word)
                at += 1
            else:
                operands += words[at:]
                break
    except _Unknown as unknown:
        return Plain(str(unknown))
    return Parsed(tuple(options), tuple(operands))


def _long(words: tuple[bytes, ...], at: int) -> tuple[Given, int]:
    """Return the long option at a position, and the position behind it and its value."""
    word = words[at]
    name, equals, attached = word[2:].partition(b"=")
    option = _known(_named(name), word)
    if option.value is None:
        if equals:
            raise _Unknown(f"a value for --{option.name}")
        return Given(option, (word,)), at + 1
    if equals:
        return _checked(Given(option, (word,), attached, at)), at + 1
    if option.optional:
        return Given(option, (word,)), at + 1
    return _separate(option, word, words, at + 1)


def _named(name: bytes) -> Option | None:
    """Return the long option that a name or its beginning means, if it is one alone."""
    if name in _LONG:
        return _LONG[name]
    meant = {option for full, option in _LONG.items() if full.startswith(name)}
    return meant.pop() if len(meant) == 1 else None


def _cluster(words: tuple[bytes, ...], at: int) -> tuple[list[Given], int]:
    """Return the short options of one word, as words of their own, and the position behind them."""
    word = words[at]
    found: list[Given] = []
    place = 1
    while place < len(word):
        digits = re.compile(rb"[0-9]+").match(word, place)
        if digits:  # -NUM, as many digits as stand together
            found.append(_checked(Given(_DIGITS, (b"-" + digits[0],), digits[0])))
            place = digits.end()
            continue
        letter = word[place : place + 1]
        place += 1
        option = _known(_SHORT.get(letter), b"-" + letter)
        if option.value is None:
            found.append(Given(option, (b"-" + letter,)))
            continue
        attached = word[place:]
        if attached:
            found.append(_checked(Given(option, (b"-" + letter + attached,), attached, at)))
            return found, at + 1
        given, behind = _separate(option, b"-" + letter, words, at + 1)
        return [*found, given], behind
    return found, at + 1


def _separate(option: Option, name: bytes, words: tuple[bytes, ...], at: int) -> tuple[Given, int]:
    """Return an option whose value is a word of its own, whatever that looks like."""
    if at == len(words):
        raise _Unknown(f"no value for --{option.name}")
    return _checked(Given(option, (name, words[at]), words[at], at)), at + 1


def _known(option: Option | None, name: bytes) -> Option:
    """Return an option that a plan can be made with."""
    if option is None:
        raise _Unknown(f"unknown option {name.decode(errors='backslashreplace')}")
    if option.use is Use.UNTOUCHED:
        raise _Unknown(f"--{option.name}" if len(option.name) > 1 else f"-{option.name}")
    return option


def _checked(given: Given) -> Given:
    """Return an option whose value is one that grep takes."""
    assert given.option.value is not None
    if not given.option.value.fullmatch(given.value):
        raise _Unknown(f"the value of --{given.option.name}")
    return given


def kept(options: Iterable[Given], *, recursive: bool) -> tuple[bytes, ...]:
    """Return the words of the options that the real tool gets."""
    uses = {Use.KEEP} if recursive else {Use.KEEP, Use.DIRECTORIES}
    return tuple(word for item in options if item.option.use in uses for word in item.words)
