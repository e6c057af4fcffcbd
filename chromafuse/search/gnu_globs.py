"""Which files grep looks at: --include, --exclude, --exclude-from and --exclude-dir, by its own rules.

grep matches a file that it finds by its name, and one that is named on the command line as a whole or by any
tail behind a slash. The last glob that matches decides; where none does, the file is out if the first glob is
an --include. `*` matches dots and slashes. Of fnmatch's language only what means the same in every locale is
read; for the rest there is no selection. Values only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_MOST_GLOBS: Final = 64  # each is tried on each name

_WILD: Final = re.compile(rb"[?*[\\]")
_TOKEN: Final = re.compile(
    rb"(?P<star>\*+)"
    rb"|(?P<bracket>\[(?:[A-Za-z0-9]-[A-Za-z0-9]|[A-Za-z0-9._ ])+\])"
    rb"|(?P<plain>[^?*[\\])",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One glob: what it does to the names it matches."""

    include: bool
    glob: bytes
    expression: re.Pattern[bytes]

    def matches(self, name: bytes) -> bool:
        """Whether it matches a name as a whole."""
        return self.expression.fullmatch(name) is not None

    def matches_tail(self, path: bytes) -> bool:
        """Whether it matches a path or what follows a slash in it."""
        return self.matches(path) or any(map(self.matches, self._tails(path)))

    def _tails(self, path: bytes) -> Iterator[bytes]:
        """Yield what follows each slash; a glob with wildcards is not tried where another slash follows."""
        wild = _WILD.search(self.glob) is not None
        for at in range(len(path)):
            if path[at : at + 1] == b"/" and not (wild and path[at + 1 : at + 2] == b"/"):
                yield path[at + 1 :]


@dataclass(frozen=True, slots=True)
class Globs:
    """A selection: the rules for files and those for directories, in the order given."""

    files: tuple[Rule, ...] = ()
    directories: tuple[Rule, ...] = ()

    def admits(self, path: bytes) -> bool:
        """Whether a file is looked at, by its path relative to the directory that is walked."""
        *above, name = path.split(b"/")
        if any(rule.matches(part) for part in above for rule in self.directories):
            return False
        return _admits(self.files, (rule.matches(name) for rule in self.files))

    def admits_operand(self, operand: bytes) -> bool:
        """Whether a file that is named on the command line is looked at."""
        return _admits(self.files, (rule.matches_tail(operand) for rule in self.files))

    def admits_directory(self, operand: bytes) -> bool:
        """Whether a directory that is named on the command line is walked."""
        return not any(rule.matches_tail(operand) for rule in self.directories)


def _admits(rules: tuple[Rule, ...], matches: Iterable[bool]) -> bool:
    """Say what the last rule that matches says, or the opposite of the first."""
    verdict = not rules[0].include if rules else True
    for rule, matched in zip(rules, matches, strict=True):
        if matched:
            verdict = rule.include
    return verdict


def file_rule(glob: bytes, *, include: bool, by_code: bool) -> Rule | None:
    """Return the rule of a glob, or None where it is not understood.

    `by_code`: the locale orders characters by their codes, so that a range is what it looks like.
    """
    expression = _translate(glob, by_code)
    return None if expression is None else Rule(include, glob, expression)


def directory_rule(glob: bytes, *, by_code: bool) -> Rule | None:
    """Return the rule of an --exclude-dir, or None where it is not understood."""
    stripped = glob.rstrip(b"/")
    if glob and not stripped:
        return None
    return file_rule(stripped, include=False, by_code=by_code)


def globs_of_file(content: bytes) -> list[bytes] | None:
    """Return the globs of an --exclude-from file, or None where it is not understood."""
    if b"\0" in content:
        return None
    lines = (line.rstrip(b" \t\n\v\f\r") for line in content.split(b"\n"))
    return [line for line in lines if line]


def too_many(rules: Iterable[object]) -> bool:
    """Whether there are more globs than are worth trying on every name."""
    return len(list(rules)) > _MOST_GLOBS


def _translate(glob: bytes, by_code: bool) -> re.Pattern[bytes] | None:
    """Return the expression of a glob, or None where it holds more than literals, `*` and plain brackets."""
    segments = [b""]  # between stars
    at = 0
    while at < len(glob):
        found = _TOKEN.match(glob, at)
        if found is None:
            return None
        at = found.end()
        match found.lastgroup:
            case "star":
                segments.append(b"")
            case "bracket" if _is_plain(found[0], by_code):
                segments[-1] += found[0]
            case "plain":
                segments[-1] += re.escape(found[0])
            case _:
                return None
    first, *rest = segments
    if not rest:
        return re.compile(first, re.DOTALL)
    *middle, last = rest
    # The first place where a segment fits is as good as any other, so none is tried twice.
    inner = b"".join(b"(?>.*?" + segment + b")" for segment in middle)
    return re.compile(first + inner + b".*" + last, re.DOTALL)


def _is_plain(bracket: bytes, by_code: bool) -> bool:
    """Whether every range in a bracket expression is the same everywhere: two digits, or letters of one case."""
    for begin, end in re.findall(rb"(.)-(.)", bracket):
        kinds = (bytes.isdigit, bytes.islower, bytes.isupper)
        same = any(kind(begin) and kind(end) for kind in kinds)
        if not by_code or not same or begin > end:
            return False
    return True
