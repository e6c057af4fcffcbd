"""What a page says of its own access, in the YAML between `---` lines at its start.

Only `public` and `groups` are looked at. Whatever cannot be read for certain is a problem, and a page with
a problem is for the operator alone: a slip of the pen must close a page, never open it. Pure functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

# The C loader is ten times faster and reads the same; a PyYAML built without libyaml has none.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

LIMIT = 65_536  # bytes; front matter of real sites has a few hundred
_DEPTH = 32  # nested collections; the loaders recurse
_SUFFIXES = (
    *(".md", ".mdx", ".markdown", ".mdown", ".mkdn", ".mkd", ".mdwn", ".mdtext", ".mdtxt"),
    *(".mdoc", ".rmd", ".qmd", ".livemd"),
)
_KEYS = ("public", "groups")
_MERGE = "tag:yaml.org,2002:merge"
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_OPENING = re.compile(rb"---[ \t]*(?:\r\n|\n|\r)")
# What other tools take for front matter: `---toml`, `--- # comment`, and Hugo's `+++`.
_FOREIGN = re.compile(rb"(?:---[ \t]*[^\s-]|\+\+\+[ \t]*(?:\r|\n))")
# What a reader does not see at the top of a page: blanks, marks of no width, a comment.
_UNSEEN = re.compile(
    rb"(?:[\s\0]|\xef\xbb\xbf|\xc2\xa0|\xe2\x80\x8b)+|<!--.*?-->|\{/\*.*?\*/\}", re.DOTALL
)
_ACCESS_LINE = re.compile(rb"""[ \t]*["']?(?:public|groups)["']?[ \t]*:""", re.IGNORECASE)
_CLOSING = re.compile(rb"(?:^|(?<=[\r\n]))(?:---|\.\.\.)[ \t]*(?:\r|\n|\Z)")

# SafeLoader lets these through besides its own YAMLError: an impossible date is a ValueError, `!!int ""`
# an IndexError, `!!timestamp x` an AttributeError.
_UNREADABLE = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """`public` and `groups` as the page says them, None = not said; or the problem that hides the page."""

    public: bool | None = None
    groups: frozenset[str] | None = None
    problem: str = ""


NOTHING_SAID = FrontMatter()


def has_front_matter(path: str) -> bool:
    """Say whether a file of this name may have front matter at all."""
    return path.lower().endswith(_SUFFIXES)


def read_front_matter(data: bytes) -> FrontMatter:
    """Return what the page with these bytes says of its access."""
    if data.startswith(_UTF16):
        return FrontMatter(problem="UTF-16, in which no front matter is read")
    data = data[: LIMIT + len(_BOM)].removeprefix(_BOM)
    opening = _OPENING.match(data)
    if opening is None:
        if _FOREIGN.match(data):
            return FrontMatter(problem="front matter that is not plain YAML between '---' lines")
        return _late(data)
    closing = _CLOSING.search(data, opening.end())
    if closing is None:
        return FrontMatter(problem=f"front matter without a closing '---' in {LIMIT:,} bytes")
    try:
        return _read(data[opening.end() : closing.start()].decode())
    except _UNREADABLE as exc:
        return FrontMatter(problem=f"unreadable front matter: {_one_line(exc)}")


def _late(data: bytes) -> FrontMatter:
    """Hide a page whose words on its access come after something unseen; a mere rule there says nothing."""
    at = 0
    while unseen := _UNSEEN.match(data, at):
        at = unseen.end()
    opening = _OPENING.match(data, at)
    if at and opening is not None:
        for line in data[opening.end() :].splitlines():
            if _CLOSING.match(line):
                break
            if _ACCESS_LINE.match(line):
                return FrontMatter(problem="front matter that does not begin the file")
    return NOTHING_SAID


def _read(text: str) -> FrontMatter:
    _check_shape(text)
    loader = _Base(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return NOTHING_SAID
        if not isinstance(node, yaml.MappingNode):
            return FrontMatter(problem="front matter that is no list of keys")
        _check_keys(node)
        values = loader.construct_document(node)
    finally:
        loader.dispose()
    return _access_of(values)


def _check_shape(text: str) -> None:
    """Refuse what makes loading expensive: aliases (they multiply) and deep nesting (loaders recurse)."""
    depth = 0
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not read")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEPTH:
            raise ValueError(f"nested deeper than {_DEPTH}")


def _check_keys(node: yaml.MappingNode) -> None:
    """Refuse what a reader and YAML may understand differently: a key twice, in another case, or merged in."""
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    if any(key.tag == _MERGE for key, _ in node.value):
        raise ValueError("merge keys are not read")
    for key in _KEYS:
        spellings = [found for found in keys if found.strip().casefold() == key]
        if len(spellings) > 1:
            raise ValueError(f"{key!r} is there twice")
        if spellings and spellings != [key]:
            raise ValueError(f"{spellings[0]!r} is written {key!r}")


def _access_of(values: dict[Any, Any]) -> FrontMatter:
    public, groups = None, None
    if "public" in values:
        public = values["public"]
        if not isinstance(public, bool):
            return FrontMatter(problem=f"public is {_kind(public)}, not true or false")
    if "groups" in values:
        groups = values["groups"]
        if not isinstance(groups, list):
            return FrontMatter(problem=f"groups is {_kind(groups)}, not a list")
        if not all(isinstance(group, str) and group for group in groups):
            return FrontMatter(problem="groups holds something that is not a non-empty text")
        groups = frozenset(groups)
    return FrontMatter(public, groups)


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    return {str: "text", dict: "a mapping", list: "a list", bool: "true or false"}.get(
        type(value), f"a {type(value).__name__}"
    )


def _one_line(exc: Exception) -> str:
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem:
        line = f" (line {exc.problem_mark.line + 2})" if exc.problem_mark else ""
        return f"{exc.problem}{line}"
    if isinstance(exc, UnicodeDecodeError):
        return "not UTF-8"
    return str(exc).partition("\n")[0] or type(exc).__name__
