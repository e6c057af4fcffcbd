"""Who may see a page of the source: its front matter, the ACL file, the default. Fails closed.

The first that says something decides, and two of its turns are there so that nothing opens by accident:

1. Front matter that cannot be read for certain: the operator alone, with a warning.
2. A file that lists other pages (`is_list_file`): the operator alone, unless the last rule of the ACL file
   that matches it *names* it: the glob's last part is the file's name, or ends in its suffix (`docs.json`,
   `/api/*.yaml`). `**`, `*`, `/api/`, `docs.*` do not name. Neither a folder's rule nor the default opens it.
3. Front matter with groups: these groups, whatever `public` says (groups beat public).
4. Front matter with `public: true`: everyone.
5. The last matching rule of the ACL file, else the default. Front matter with `public: false` takes
   "everyone" back to "every authenticated reader" here, and never widens what is narrower already;
   `groups: []` says nothing.

Pure values and functions, but for `load_policy`, which reads the ACL file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..errors import UsageError, UserError
from ..model.access import AUTHENTICATED, HIDDEN, PUBLIC, Access, widens
from .frontmatter import NOTHING_SAID, FrontMatter, has_front_matter, read_front_matter
from .globs import Glob, parse_glob

WORDS: Mapping[str, Access] = {
    "public": PUBLIC,
    "authenticated": AUTHENTICATED,
    "hidden": HIDDEN,
}
ACL_MAX = 1 << 20  # bytes; more is not an ACL file but the wrong file

# Navigation, site maps, API descriptions, search indexes: text that names pages which its reader may not see.
_LIST_SUFFIXES = (
    ".json", ".json5", ".jsonc", ".jsonl", ".ndjson", ".map", ".webmanifest",
    ".yaml", ".yml", ".toml", ".xml", ".rss", ".atom",
)  # fmt: skip
_LIST_NAMES = (
    "redirects", "redirects.*", "_redirects*", "sitemap*", "robots.txt", "llms*.txt", "openapi*", "swagger*",
    "sidebars.*", "search-index*", "searchindex*", "*.config.js", "*.config.cjs", "*.config.mjs", "*.config.ts",
    "_meta.*", "nav.js", "nav.ts", "navigation.*",
)  # fmt: skip
# Markdown by suffix, and yet the navigation of mdBook, GitBook, docsify and DocFX.
_LIST_PAGES = ("summary.md", "_sidebar.md", "_navbar.md", "toc.md")
_PACKED = (".gz", ".br", ".zst")


@dataclass(frozen=True, slots=True)
class Rule:
    """One `[[rule]]` of the ACL file. `number` counts from 1."""

    number: int
    glob: Glob
    access: Access

    def names(self, path: str) -> bool:
        """Say whether the rule means this very file, not only the folder or the set that it is in."""
        name = path.rpartition("/")[2]
        last = self.glob.last
        if name.lower() in _LIST_PAGES:  # `*.md` means pages, not their table of contents
            return last == name
        stem, _, suffix = name.rpartition(".")
        return last == name or (bool(stem) and last.endswith(f".{suffix}"))


@dataclass(frozen=True, slots=True)
class Decision:
    """Who may see one page, and what there is to tell of it.

    `matched` are the rules that match, by number. `by_rule` is what the ACL file and the default alone would
    have given.
    """

    access: Access
    by_rule: Access
    matched: tuple[int, ...] = ()
    problem: str = ""  # why the page is hidden although nobody asked for it
    withheld: bool = False  # a file that lists pages, and no rule names it

    @property
    def opened_by_page(self) -> bool:
        """Whether the page's front matter admits someone whom a rule of the ACL file does not."""
        return bool(self.matched) and widens(self.by_rule, self.access)


@dataclass(frozen=True, slots=True)
class Policy:
    """The ACL file and the default access."""

    rules: tuple[Rule, ...] = ()
    default: Access = AUTHENTICATED

    def decide(self, path: str, data: bytes) -> Decision:
        """Decide who may see the page `path` with the bytes `data`."""
        matching = [rule for rule in self.rules if rule.glob.matches(path)]
        matched = tuple(rule.number for rule in matching)
        rule = matching[-1] if matching else None
        if is_list_file(path):
            named = rule is not None and rule.names(path)
            access = rule.access if rule is not None and named else HIDDEN
            return Decision(access, access, matched, withheld=not named)
        by_rule = rule.access if rule else self.default
        said = _said(path, data)
        if said.problem:
            return Decision(HIDDEN, by_rule, matched, said.problem)
        return Decision(combine(said, by_rule), by_rule, matched)


def _said(path: str, data: bytes) -> FrontMatter:
    """Return what a file says of its own access. One that is no Markdown cannot say it, only be closed."""
    said = read_front_matter(data)
    if has_front_matter(path):
        return said
    if said.groups or said.public is not None:
        return FrontMatter(problem="front matter with its access, in a file that is no Markdown")
    return NOTHING_SAID


def combine(said: FrontMatter, below: Access) -> Access:
    """Return the access of a page that says `said`, where the rules or the default say `below`."""
    if said.groups:
        return Access(groups=said.groups)
    if said.public:
        return PUBLIC
    if said.public is False and below == PUBLIC:
        return AUTHENTICATED
    return below


def is_list_file(path: str) -> bool:
    """Say whether a file of this name lists other pages, as far as a name can tell; other Markdown is none."""
    name = path.rpartition("/")[2].lower()
    if name in _LIST_PAGES:
        return True
    if has_front_matter(name):
        return False
    for suffix in _PACKED:
        name = name.removesuffix(suffix)
    return name.endswith(_LIST_SUFFIXES) or any(
        fnmatchcase(name, pattern) for pattern in _LIST_NAMES
    )


# -- the ACL file --------------------------------------------------------------------------------------


def load_policy(acl_file: str | None, default: str) -> Policy:
    """Read the ACL file. Raises UserError where it cannot be read, UsageError where it is wrong."""
    if default not in WORDS:
        raise UsageError(f"--default-access is one of {', '.join(WORDS)}, not {default!r}")
    if acl_file is None:
        return Policy((), WORDS[default])
    try:
        with open(acl_file, "rb") as file:
            raw = file.read(ACL_MAX + 1)
    except OSError as exc:
        raise UserError(f"cannot read the ACL file {acl_file}: {exc.strerror}") from exc
    except ValueError as exc:  # a NUL in the path
        raise UserError(f"cannot read the ACL file {acl_file!r}: {exc}") from exc
    return Policy(parse_acl(raw, acl_file), WORDS[default])


def parse_acl(raw: bytes, name: str) -> tuple[Rule, ...]:
    """Read the rules of an ACL file. Raises UsageError that names the file and the rule."""
    if len(raw) > ACL_MAX:
        raise UsageError(f"{name}: more than {ACL_MAX:,} bytes; that is no ACL file")
    try:
        content = tomllib.loads(raw.decode())
    except UnicodeDecodeError:
        raise UsageError(f"{name}: not UTF-8") from None
    except tomllib.TOMLDecodeError as exc:
        raise UsageError(f"{name}: not TOML: {exc}") from exc
    except RecursionError:
        raise UsageError(f"{name}: not TOML: nested too deeply") from None
    if unknown := sorted(set(content) - {"rule"}):
        raise UsageError(f"{name}: unknown key {unknown[0]!r}; an ACL file is a list of [[rule]]")
    rules = content.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise UsageError(f"{name}: rules are written [[rule]], with two brackets")
    return tuple(_parse_rule(number, rule, name) for number, rule in enumerate(rules, 1))


def _parse_rule(number: int, raw: dict[str, Any], name: str) -> Rule:
    where = f"{name}: rule {number}"
    if unknown := sorted(set(raw) - {"glob", "access", "groups"}):
        raise UsageError(
            f"{where}: unknown key {unknown[0]!r}; a rule has glob, and access or groups"
        )
    glob = raw.get("glob")
    if not isinstance(glob, str):
        raise UsageError(f"{where}: {'glob is no text' if 'glob' in raw else 'has no glob'}")
    if ("access" in raw) == ("groups" in raw):
        raise UsageError(
            f"{where} ({glob!r}): give either access or groups, not both and not neither"
        )
    try:
        parsed = parse_glob(glob)
    except ValueError as exc:
        raise UsageError(f"{where}: glob {glob!r} {exc}") from exc
    where = f"{where} ({glob!r})"
    access = _groups(raw["groups"], where) if "groups" in raw else _word(raw["access"], where)
    return Rule(number, parsed, access)


def _word(value: Any, where: str) -> Access:
    if not isinstance(value, str) or value not in WORDS:
        raise UsageError(f"{where}: access is one of {', '.join(WORDS)}, not {value!r}")
    return WORDS[value]


def _groups(value: Any, where: str) -> Access:
    if not isinstance(value, list) or not all(isinstance(group, str) and group for group in value):
        raise UsageError(f"{where}: groups is a list of group names")
    if not value:
        raise UsageError(
            f'{where}: groups is empty; for nobody but the operator write access = "hidden"'
        )
    return Access(groups=frozenset(value))


def unmatched(rules: Sequence[Rule], matched: frozenset[int]) -> list[str]:
    """Return a line for every rule that matched no file: a typing error there leaves pages open."""
    return [
        f"rule {rule.number} of the ACL file ({rule.glob.text!r}) matches no file"
        for rule in rules
        if rule.number not in matched
    ]
