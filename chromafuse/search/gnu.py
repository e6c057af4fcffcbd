"""GNU grep: which command lines can run on an explicit list of files, and what a file needs to match.

What was checked for the list to give the original's very output: a file shows up in it only through lines that
match, so a file that cannot match may be left out; walking a directory adds nothing but the names and the
prefix (the rule is grep's own: a single operand that is no directory gets none); globs apply while the
directory is walked, and are taken out, since they mean something else for named files. Anything that is not
understood runs untouched. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .gnu_globs import Globs, Rule, directory_rule, file_rule, globs_of_file, too_many
from .gnu_options import Given, Parsed, kept, parse
from .gnu_regex import rewrite
from .literals import MOST_CHARACTERS, literal_need, need_of
from .needs import Need
from .perl_regex import perl_need
from .plan import Plain, Plan, Request, Selection, Send

_PATTERNS: Final = 256  # more patterns are not looked into: each is a query of its own
_MATCHERS: Final = {"basic-regexp", "extended-regexp", "fixed-strings", "perl-regexp"}
_CALLED: Final = {"egrep": {"extended-regexp"}, "fgrep": {"fixed-strings"}}
_GLOBS: Final = {"include", "exclude", "exclude-from", "exclude-dir"}
_FILES: Final = {"file", "exclude-from"}
_PLAIN_LOCALES: Final = (b"C", b"POSIX")


def plan(request: Request) -> Plan | Plain | Send:
    """Return what to run instead of a command line of grep, egrep or fgrep."""
    parsed = parse(request.words, permute=b"POSIXLY_CORRECT" not in request.env)
    if isinstance(parsed, Plain):
        return parsed
    if not _knows_locale(request.env):
        return Plain("a locale that is not UTF-8")
    if request.env.get(b"GREP_OPTIONS"):
        return Plain("GREP_OPTIONS, which old releases heed")
    matchers = _CALLED.get(request.tool, set()) | (_MATCHERS & _names(parsed.options))
    if len(matchers) > 1:
        return Plain("several kinds of pattern")
    read = [item for item in parsed.options if item.option.name in _FILES]
    if any(item.position not in request.files for item in read):
        return Send(tuple((item.position, item.value) for item in read))
    return _planned(request, parsed, next(iter(matchers), "basic-regexp"))


def _planned(request: Request, parsed: Parsed, matcher: str) -> Plan | Plain:
    """Return the plan of a command line that all is known of."""
    options, operands = parsed.options, parsed.operands
    recursive = _walks(options)
    patterns = _patterns(options, request.files)
    first: tuple[bytes, ...] = ()
    if patterns is None:
        if not operands:
            return Plain("no pattern")
        pattern, operands = operands[0], operands[1:]
        if matcher != "fixed-strings" and pattern.startswith(rb"\-"):
            pattern = pattern[1:]  # as grep does, lest it warns
        first = (b"-e", pattern)
        patterns = pattern.split(b"\n")
    if b"-" in operands or not (operands or recursive):
        return Plain("standard input")
    needs = _needs(patterns, matcher, fold=_folds(options))
    if isinstance(needs, Plain):
        return needs
    globs = _globs(options, request)
    if isinstance(globs, Plain):
        return globs
    if not all(map(globs.admits_directory, operands)):
        return Plain("an operand that --exclude-dir may mean")
    return Plan(
        needs=needs,
        options=(*kept(options, recursive=recursive), *first),
        operands=operands,
        recursive=recursive,
        prefix=b"" if _names(options) & {"with-filename", "no-filename"} else b"-H",
        selection=_selection(globs),
    )


def _names(options: Iterable[Given]) -> set[str]:
    return {item.option.name for item in options}


def _walks(options: Iterable[Given]) -> bool:
    """Whether directories are walked: the last option that speaks of it decides."""
    walks = False
    for item in options:
        if item.option.name in {"recursive", "dereference-recursive"}:
            walks = True
        elif item.option.name == "directories":
            walks = item.value == b"recurse"
    return walks


def _folds(options: Iterable[Given]) -> bool:
    """Whether case is ignored: the last option that speaks of it decides."""
    folds = False
    for item in options:
        if item.option.name in {"ignore-case", "y", "no-ignore-case"}:
            folds = item.option.name != "no-ignore-case"
    return folds


def _patterns(options: Iterable[Given], files: Mapping[int, bytes]) -> list[bytes] | None:
    """Return the patterns that options give, or None where the first operand is the pattern."""
    patterns: list[bytes] | None = None
    for item in options:
        if item.option.name == "regexp":
            patterns = [*(patterns or ()), *item.value.split(b"\n")]
        elif item.option.name == "file":
            content = files[item.position]
            lines = content.removesuffix(b"\n").split(b"\n") if content else []
            patterns = [*(patterns or ()), *lines]
    return patterns


def _needs(patterns: list[bytes], matcher: str, *, fold: bool) -> tuple[Need, ...] | Plain:
    """Return what a file needs for one of the patterns to match in it."""
    if not patterns:
        return Plain("no pattern, which matches nothing")
    if len(patterns) > _PATTERNS:
        return Plain("too many patterns")
    if matcher == "perl-regexp" and len(patterns) > 1:
        return Plain("several patterns with -P")
    try:
        texts = [pattern.decode() for pattern in patterns]
    except UnicodeDecodeError:
        return Plain("a pattern that is not UTF-8")
    if any("\0" in text for text in texts):
        return Plain("a pattern with a NUL")
    if sum(map(len, texts)) > MOST_CHARACTERS:
        return Plain("a long pattern")
    found: dict[Need, None] = {}
    for text in texts:
        need = _NEED_IN[matcher](text, fold)
        if need is None:
            return Plain("no literal that a match needs")
        if any("\n" in literal for clause in need.clauses for literal in clause):
            return Plain("a pattern over several lines")
        found[need] = None
    return tuple(found)


def _regex_need(text: str, fold: bool, *, extended: bool) -> Need | None:
    """Return what a basic or extended pattern needs."""
    wider = rewrite(text, extended=extended)
    return None if wider is None else need_of(wider, fold=fold)


_NEED_IN: Final[Mapping[str, Callable[[str, bool], Need | None]]] = {
    "basic-regexp": lambda text, fold: _regex_need(text, fold, extended=False),
    "extended-regexp": lambda text, fold: _regex_need(text, fold, extended=True),
    "fixed-strings": lambda text, fold: literal_need(text, fold=fold),
    "perl-regexp": lambda text, fold: perl_need(text, fold=fold),
}


def _globs(options: Iterable[Given], request: Request) -> Globs | Plain:
    """Return which files the options let grep look at."""
    by_code = all(
        _is_plain_locale(_locale(request.env, category))
        for category in (b"LC_CTYPE", b"LC_COLLATE")
    )
    files: list[Rule | None] = []
    directories: list[Rule | None] = []
    for item in options:
        match item.option.name:
            case "include" | "exclude" as name:
                files.append(file_rule(item.value, include=name == "include", by_code=by_code))
            case "exclude-dir":
                directories.append(directory_rule(item.value, by_code=by_code))
            case "exclude-from":
                globs = globs_of_file(request.files[item.position])
                files += (
                    [None]
                    if globs is None
                    else (file_rule(glob, include=False, by_code=by_code) for glob in globs)
                )
            case _:
                pass
    if too_many(files + directories):
        return Plain("too many globs")
    known_files = [rule for rule in files if rule is not None]
    known_directories = [rule for rule in directories if rule is not None]
    if len(known_files) < len(files) or len(known_directories) < len(directories):
        return Plain("a glob that is not understood")
    return Globs(tuple(known_files), tuple(known_directories))


def _selection(globs: Globs) -> Selection | None:
    """Return the selection, where there is anything to select."""
    return globs if globs.files or globs.directories else None


def _locale(env: Mapping[bytes, bytes], category: bytes) -> bytes:
    """Return the name of the locale that the environment asks for."""
    return next((env[name] for name in (b"LC_ALL", category, b"LANG") if env.get(name)), b"C")


def _is_plain_locale(name: bytes) -> bool:
    """Whether a locale orders characters by their codes, installed or not: C takes its place where it is not."""
    return name in _PLAIN_LOCALES or name in {b"C.UTF-8", b"C.utf8"}


def _knows_locale(env: Mapping[bytes, bytes]) -> bool:
    """Whether characters are UTF-8, or bytes. A locale that is not installed is C: both must do."""
    name = _locale(env, b"LC_CTYPE")
    codeset = name.partition(b".")[2].partition(b"@")[0]
    return name in _PLAIN_LOCALES or codeset.lower() in {b"utf-8", b"utf8"}
