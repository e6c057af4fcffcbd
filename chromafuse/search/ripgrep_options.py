"""ripgrep's options: which of two runs each belongs to, and how a command line splits into them.

A search below directories becomes two runs of the real program. The listing (`rg --files …`) finds the files
and gets what decides about files: types, globs, ignore rules, depth, size. The search gets an explicit list
of files, which those options do not touch, and everything else. Only options that releases 13, 14 and 15 take
alike are known here; words are handed on as they were given, so that a release without one says so itself.

Values only.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .plan import Plain


class Run(enum.Flag):
    """The runs that get an option; no run: the whole command line is left alone."""

    NONE = 0
    SEARCH = enum.auto()
    LISTING = enum.auto()
    BOTH = SEARCH | LISTING


@dataclass(frozen=True, slots=True)
class Option:
    """One option under its long name."""

    name: str
    run: Run
    value: re.Pattern[bytes] | None = None  # what every release takes for its value; None: a switch
    dash: bool = False  # the next word is its value even where that begins with a dash
    many: bool = False  # each of its values counts


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


# "x/long" has the short form -x. A name that is not here is unknown, and so is a way to abbreviate one.
_SEARCH_SWITCHES = """
    block-buffered no-block-buffered line-buffered no-line-buffered b/byte-offset column no-column
    c/count count-matches crlf no-crlf l/files-with-matches F/fixed-strings no-fixed-strings
    heading no-heading i/ignore-case s/case-sensitive S/smart-case n/line-number N/no-line-number
    x/line-regexp w/word-regexp max-columns-preview no-max-columns-preview mmap no-mmap
    no-multiline multiline-dotall no-multiline-dotall no-messages messages no-ignore-messages
    ignore-messages unicode pcre2-unicode 0/null o/only-matching p/pretty P/pcre2 no-pcre2 q/quiet
    trim no-trim vimgrep H/with-filename I/no-filename no-context-separator no-stats no-json
    no-encoding no-search-zip no-pre no-text no-binary no-auto-hybrid-regex
"""
_LISTING_SWITCHES = """
    L/follow no-follow ./hidden no-hidden glob-case-insensitive no-glob-case-insensitive
    ignore-file-case-insensitive no-ignore-file-case-insensitive no-ignore ignore no-ignore-dot
    ignore-dot no-ignore-exclude ignore-exclude no-ignore-files ignore-files no-ignore-global
    ignore-global no-ignore-parent ignore-parent no-ignore-vcs ignore-vcs no-require-git
    require-git one-file-system no-one-file-system u/unrestricted
"""
# The order of files is made by both: the listing finds it, the search must not lose it to its threads.
_BOTH_SWITCHES = "no-config sort-files no-sort-files"
# Other files than those with a match shape the output, a match needs more than the file's own bytes or spans
# lines, or nothing is searched at all.
_UNTOUCHED_SWITCHES = """
    v/invert-match files-without-match include-zero passthru passthrough json stats debug trace
    a/text binary U/multiline null-data z/search-zip auto-hybrid-regex no-unicode
    no-pcre2-unicode files type-list pcre2-version h/help V/version
"""

_ANY = re.compile(rb".*", re.DOTALL)
_NUMBER = re.compile(rb"[0-9]{1,9}")
_SIZE = re.compile(rb"[0-9]{1,9}[KMG]?")
_SORT = re.compile(rb"none|path|modified|accessed|created")
_COLOR_SPEC = re.compile(rb"(path|line|column|match):(none|(fg|bg|style):[0-9A-Za-z,]+)")
_VALUES = {
    Run.SEARCH: (
        ("A/after-context B/before-context C/context M/max-columns m/max-count", _NUMBER),
        ("dfa-size-limit regex-size-limit", _SIZE),
        ("color", re.compile(rb"never|auto|always|ansi")),
        ("colors", _COLOR_SPEC),
        ("engine", re.compile(rb"default|pcre2")),
        ("context-separator field-context-separator field-match-separator r/replace", _ANY),
        ("path-separator", re.compile(rb"[!-~]")),
        ("e/regexp f/file", _ANY),
    ),
    # A value that is wrong here is a message of the listing, and the command line then runs untouched.
    Run.LISTING: (
        ("g/glob iglob ignore-file t/type T/type-not type-add type-clear", _ANY),
        ("max-depth", _NUMBER),
        ("max-filesize", _SIZE),
    ),
    Run.BOTH: (("sort sortr", _SORT), ("j/threads", _NUMBER)),
    Run.NONE: (("E/encoding pre pre-glob", _ANY),),
}
_DASH = {"regexp", "glob"}
_MANY = {
    "regexp", "file", "glob", "iglob", "ignore-file", "type", "type-not", "type-add", "type-clear",
    "colors",
}  # fmt: skip


def _rows() -> Iterator[tuple[str, Option]]:
    """Yield each option with its names as in the lists above."""
    for run, switches in (
        (Run.SEARCH, _SEARCH_SWITCHES),
        (Run.LISTING, _LISTING_SWITCHES),
        (Run.BOTH, _BOTH_SWITCHES),
        (Run.NONE, _UNTOUCHED_SWITCHES),
    ):
        for names in switches.split():
            yield names, Option(names.rpartition("/")[2], run)
    for run, rows in _VALUES.items():
        for row, value in rows:
            for names in row.split():
                name = names.rpartition("/")[2]
                yield names, Option(name, run, value, name in _DASH, name in _MANY)


LONG = {option.name.encode(): option for _, option in _rows()}
SHORT = {names[:1].encode(): option for names, option in _rows() if names[1:2] == "/"}


class _Unknown(Exception):
    """Words that are not understood; its text says which, in a few words."""


def parse(words: tuple[bytes, ...]) -> Parsed | Plain:
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
            else:
                operands.append(word)
                at += 1
        _refuse_doubles(options)
    except _Unknown as unknown:
        return Plain(str(unknown))
    return Parsed(tuple(options), tuple(operands))


def _refuse_doubles(options: list[Given]) -> None:
    """Refuse a second value where one counts: release 13 then misses the pattern, later ones take the last."""
    single = [g.option.name for g in options if g.option.value is not None and not g.option.many]
    for name in single:
        if single.count(name) > 1:
            raise _Unknown(f"--{name} twice")


def _long(words: tuple[bytes, ...], at: int) -> tuple[Given, int]:
    """Return the long option at a position, and the position behind it and its value."""
    name, equals, attached = words[at][2:].partition(b"=")
    option = _known(LONG.get(name), b"--" + name)
    if option.value is None:
        if equals:
            raise _Unknown(f"a value for --{option.name}")
        return Given(option, (words[at],)), at + 1
    if equals:
        return _checked(Given(option, (words[at],), attached, at)), at + 1
    return _separate(option, words[at], words, at + 1)


def _cluster(words: tuple[bytes, ...], at: int) -> tuple[list[Given], int]:
    """Return the short options of one word, as words of their own, and the position behind them."""
    word = words[at]
    found: list[Given] = []
    for place in range(1, len(word)):
        letter = word[place : place + 1]
        option = _known(SHORT.get(letter), b"-" + letter)
        if option.value is None:
            found.append(Given(option, (b"-" + letter,)))
            continue
        attached = word[place + 1 :]
        if attached.startswith(b"="):
            raise _Unknown(f"-{letter.decode()}=")  # the "=" is dropped from the value
        if attached:
            found.append(_checked(Given(option, (b"-" + letter + attached,), attached, at)))
            return found, at + 1
        given, behind = _separate(option, b"-" + letter, words, at + 1)
        return [*found, given], behind
    return found, at + 1


def _separate(option: Option, name: bytes, words: tuple[bytes, ...], at: int) -> tuple[Given, int]:
    """Return an option whose value is a word of its own."""
    if at == len(words):
        raise _Unknown(f"no value for --{option.name}")
    value = words[at]
    if value.startswith(b"-") and not option.dash:
        raise _Unknown(f"a dash in the value of --{option.name}")  # releases differ
    return _checked(Given(option, (name, value), value, at)), at + 1


def _known(option: Option | None, name: bytes) -> Option:
    """Return an option that a plan can be made with."""
    if option is None:
        raise _Unknown(f"unknown option {name.decode(errors='backslashreplace')}")
    if option.run is Run.NONE:
        raise _Unknown(f"--{option.name}")
    return option


def _checked(given: Given) -> Given:
    """Return an option whose value is one that every release takes."""
    assert given.option.value is not None
    if not given.option.value.fullmatch(given.value):
        raise _Unknown(f"the value of --{given.option.name}")
    return given
