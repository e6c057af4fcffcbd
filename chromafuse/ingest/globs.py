"""Globs as in .gitignore, one at a time: for ACL rules, --include and --exclude.

One glob is one statement that a path is meant. What a .gitignore line may say besides that (`!` takes back,
`#` comments) is refused, so that no glob silently means nothing. Pure values: no concurrency rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_SEGMENT_ANY = ("", "**")


@dataclass(frozen=True, slots=True)
class Glob:
    """One glob; `matches` takes a path relative to the source, a directory's with a final slash."""

    text: str
    pattern: GitIgnoreSpecPattern

    def matches(self, path: str) -> bool:
        """Say whether `path`, or a directory that it lies in, is meant."""
        return self.pattern.match_file(path) is not None

    @property
    def segments(self) -> list[str]:
        """The parts between the slashes, without those that stand for any number of directories."""
        return [part for part in self.text.split("/") if part not in _SEGMENT_ANY]

    @property
    def last(self) -> str:
        """The part that the name of a file is held against; empty for `dir/**` and `dir/`."""
        last = self.text.rpartition("/")[2]
        return "" if last == "**" else last


def parse_glob(text: str) -> Glob:
    """Read a glob. Raises ValueError with the reason where it can match nothing or says something else."""
    if text.startswith("!"):
        raise ValueError("begins with '!'; say what is meant, not what is not")
    if text.startswith("#"):
        raise ValueError("begins with '#', a comment; write '\\#' for a name that begins so")
    try:
        pattern = GitIgnoreSpecPattern(text)
    except (ValueError, re.error) as exc:
        raise ValueError(f"is no glob: {exc}") from exc
    if not pattern.include:
        raise ValueError("matches nothing")
    return Glob(text, pattern)


def names_segment(glob: Glob, name: str) -> bool:
    """Say whether `glob` writes out the leading dot of the dot-file or dot-directory `name`."""
    dotted = (part for part in glob.segments if part.startswith((".", "\\.")))
    return any(_matches_alone(part, name) for part in dotted)


def _matches_alone(part: str, name: str) -> bool:
    try:
        return parse_glob(f"/{part}").matches(name)
    except ValueError:  # a part need not be a glob where the whole is one
        return False
