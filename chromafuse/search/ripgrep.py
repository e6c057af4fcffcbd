"""ripgrep: which command lines can run on an explicit list of files, and what a file needs to match.

What was checked for the list to give the original's very output: a walked file and a named one differ in how
they are searched only where they hold a NUL; names are shown as the listing prints them; messages about
directories and ignore files come from the listing, so one that says anything is not used (see `Plan.enumerate`).
Anything that is not understood runs untouched. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from .literals import literal_need, need_of
from .needs import Need
from .perl_regex import perl_need
from .plan import Plain, Plan, Request, Send
from .ripgrep_options import Given, Parsed, Run, parse
from .rust_regex import rewrite


class _NeedIn(Protocol):
    """How to read one pattern."""

    def __call__(self, text: str, /, *, fold: bool) -> Need | None: ...


_PATTERNS = 256  # more patterns are not looked into: each is a query of its own
_LENGTH = 10_000  # characters of one pattern

# Flags inside a pattern that ignore case. They count for all: release 13 joins the patterns with "|", so that
# they hold in the next ones, too.
_INLINE_FOLD = re.compile(r"\(\?[A-Za-z^]*i")


def plan(request: Request) -> Plan | Plain | Send:
    """Return what to run instead of an `rg` command line."""
    parsed = parse(request.words)
    if isinstance(parsed, Plain):
        return parsed
    given = {item.option.name for item in parsed.options}
    refusal = _refusal(request, parsed, given)
    if refusal is not None:
        return Plain(refusal)
    files = [item for item in parsed.options if item.option.name == "file"]
    if any(item.position not in request.files for item in files):
        return Send(tuple((item.position, item.value) for item in files))
    patterns = [item.value for item in parsed.options if item.option.name == "regexp"]
    operands = parsed.operands
    first: tuple[bytes, ...] = ()
    if not patterns and not files:
        if not operands:
            return Plain("no pattern")
        patterns, operands = [operands[0]], operands[1:]
        first = (b"--regexp=" + patterns[0],)
    if b"-" in operands:
        return Plain("standard input")
    for item in files:
        patterns += _lines(request.files[item.position])
    needs = _needs(patterns, parsed, given)
    if isinstance(needs, Plain):
        return needs
    return Plan(
        needs=needs,
        options=(*_words(parsed.options, Run.SEARCH), *_unmapped(given), *first),
        operands=operands,
        recursive=True,
        prefix=b"" if given & {"with-filename", "no-filename"} else b"-H",
        enumerate=(b"--files", b"--null", *_words(parsed.options, Run.LISTING)),
        plain_on_nul=True,
    )


def _refusal(request: Request, parsed: Parsed, given: set[str]) -> str | None:
    """Say what about the options as a whole makes a plan impossible, if anything does."""
    if request.env.get(b"RIPGREP_CONFIG_PATH") and "no-config" not in given:
        return "a configuration file"
    if sum(item.option.name == "unrestricted" for item in parsed.options) > 2:
        return "-uuu"
    if {"fixed-strings", "no-fixed-strings"} <= given:
        return "-F taken back"
    if len(given & {"engine", "pcre2", "no-pcre2", "no-auto-hybrid-regex"}) > 1:
        return "several engines"
    for item in parsed.options:
        if item.option.name == "max-count" and not int(item.value):
            return "--max-count 0"
        if item.option.name == "file" and item.value == b"-":
            return "patterns from standard input"
    return None


def _words(options: Iterable[Given], run: Run) -> list[bytes]:
    """Return the words of the options that one run gets."""
    return [word for item in options if run in item.option.run for word in item.words]


def _unmapped(given: set[str]) -> tuple[bytes, ...]:
    """Return the option that keeps few named files from being mapped, as walked ones are not.

    A page that cannot be read is a message where it is read, and SIGBUS where it is mapped.
    """
    return () if given & {"mmap", "no-mmap"} else (b"--no-mmap",)


def _lines(content: bytes) -> list[bytes]:
    """Return the patterns of a file. A carriage return at the end may be part of one or not: a need without it."""
    return [line.removesuffix(b"\r") for line in content.removesuffix(b"\n").split(b"\n")]


def _needs(patterns: list[bytes], parsed: Parsed, given: set[str]) -> tuple[Need, ...] | Plain:
    """Return what a file needs for one of the patterns to match in it."""
    if len(patterns) > _PATTERNS:
        return Plain("too many patterns")
    try:
        texts = [pattern.decode() for pattern in patterns]
    except UnicodeDecodeError:
        return Plain("a pattern that is not UTF-8")
    if any("\n" in text or "\0" in text for text in texts):
        return Plain("a pattern over several lines")
    if any(len(text) > _LENGTH for text in texts):
        return Plain("a long pattern")
    fold = bool(given & {"ignore-case", "smart-case"})
    need_in: _NeedIn = literal_need
    if "fixed-strings" not in given:
        need_in = perl_need if _perl(parsed) else _rust
        fold = fold or any(_INLINE_FOLD.search(text) for text in texts)
    found: dict[Need, None] = {}
    for text in texts:
        need = need_in(text, fold=fold)
        if need is None:
            return Plain("no literal that a match needs")
        found[need] = None
    return tuple(found)


def _perl(parsed: Parsed) -> bool:
    """Say whether PCRE2 does the matching; only one option speaks of it."""
    return any(
        item.option.name == "pcre2" or (item.option.name == "engine" and item.value == b"pcre2")
        for item in parsed.options
    )


def _rust(text: str, *, fold: bool) -> Need | None:
    """Return what a pattern of the default engine needs."""
    wider = rewrite(text)
    return None if wider is None else need_of(wider, fold=fold)
