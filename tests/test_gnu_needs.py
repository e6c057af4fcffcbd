"""GNU grep's patterns: no file that the real grep reports is left out, in any locale."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.search.gnu import plan
from chromafuse.search.gnu_regex import rewrite
from chromafuse.search.plan import Plain, Plan, Request, Send
from tests.support.gnu_patterns import Case, case
from tests.support.searching import is_candidate

BATCH = 100  # cases that share their texts
SPECIAL = {  # always candidates, and here so that the rule is put to the test
    "nul": b"abc\0k\n",
    "bom": b"\xef\xbb\xbfabkKs\n",
    "utf16": "\ufeffabkK s".encode("utf-16-le"),
    "latin1": "abk\xe9\n".encode("latin-1"),
    "half": b"ab\xc3\n\xa9k\xc3\xa9\xa9\n",
    "empty": b"",
}
LONG = hypothesis.settings.default.max_examples > 100
# No locale of the second name exists: grep is then in C, and whoever plans cannot know.
LOCALES = ["C", "C.UTF-8", "en_US.UTF-8", "xx_XX.UTF-8", *(["tr_TR.UTF-8"] if LONG else [])]


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give the environment in which the locales exist, made in a directory of their own."""
    directory = tmp_path_factory.mktemp("locales")
    for name in LOCALES:
        language = name.partition(".")[0]
        if language in {"en_US", "tr_TR"}:
            made = subprocess.run(
                ["localedef", "-i", language, "-f", "UTF-8", directory / name], capture_output=True
            )
            assert not made.returncode, made.stderr
    return {"LOCPATH": str(directory)}


def write_texts(place: Path, cases: Sequence[Case], rng: random.Random) -> dict[bytes, bytes]:
    """Write a file for every text of the cases, in lines of odd company, and return the contents."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    contents = dict(SPECIAL)
    for number, text in enumerate(text for one in cases for text in one.texts):
        before, after = rng.choice([("", ""), ("b ", ""), ("", " a"), ("k", "k"), ("b\n", "")])
        end = rng.choice(["\n", "\n", "\r\n", ""])
        contents[str(number)] = f"{before}{text}{after}{end}".encode()
    for name, content in contents.items():
        place.joinpath(name).write_bytes(content)
    return {name.encode(): content for name, content in contents.items()}


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES)
def test_no_file_that_matches_is_left_out(
    locale: str, locales: dict[str, str], tmp_path: Path
) -> None:
    """Random patterns over texts made for them: what grep lists is a candidate, and most are filtered."""
    seed = random.randrange(2**32) if LONG else LOCALES.index(locale)
    rng = random.Random(seed)
    env = {**locales, "LC_ALL": locale}
    filterable = filtered = 0
    for _ in range(9 if not LONG else 120):
        cases = [case(rng) for _ in range(BATCH)]
        contents = write_texts(tmp_path / "texts", cases, rng)
        for one in cases:
            made = planned(one.words, LC_ALL=locale)
            found = listed([*one.words, *contents], tmp_path / "texts", **env)
            if found is None:
                continue
            names = set(found.split(b"\0")) - {b""}
            if isinstance(made, Plan):
                lost = [contents[n] for n in names if not is_candidate(made.needs, contents[n])]
                assert lost == [], (seed, one.words, made.needs)
            # What few files match is what a filter is for.
            if names and len(names) < len(contents) / 4:
                filterable += 1
                filtered += isinstance(made, Plan) and len(contents) / 2 > sum(
                    is_candidate(made.needs, content) for content in contents.values()
                )
    assert filtered > filterable / 2


def listed(words: Sequence[bytes], place: Path, **env: str) -> bytes | None:
    """Return what grep prints, or None where it does not end: some back-references take it for ever."""
    try:
        done = subprocess.run(
            [b"grep", *words],
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": os.environ["PATH"], **env},
            timeout=5,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout


def planned(words: Sequence[bytes], **env: str) -> Plan | Plain | Send:
    """Return the plan of a search below the current directory with these words before."""
    environment = {name.encode(): value.encode() for name, value in env.items()}
    return plan(Request("grep", (*words, b"file"), environment))


def literals(words: Sequence[str]) -> list[list[str]] | str:
    """Return the clauses of a command line's only need, or why there is none."""
    made = planned([word.encode(errors="surrogateescape") for word in words])
    if isinstance(made, Plain):
        return made.reason
    assert isinstance(made, Plan)
    assert made.needs is not None
    (need,) = made.needs
    return [sorted(clause) for clause in need.clauses]


NONE = "no literal that a match needs"


@pytest.mark.parametrize(
    ("pattern", "basic", "extended"),
    [
        ("f(x)", [["f(x)"]], [["fx"]]),
        ("a|bcd", [["a|bcd"]], [["a", "bcd"]]),
        ("\\(get\\|set\\)_", [["get_", "set_"]], [["(get|set)_"]]),
        ("colou\\?r", [["color", "colour"]], [["colou?r"]]),
        ("colou?r", [["colou?r"]], [["color", "colour"]]),
        ("o\\{2\\}k", [["ook"]], [["o{2}k"]]),
        ("func() {", [["func() {"]], [["func "]]),
        ("^#\\+ abc", [["# abc"]], [["#+ abc"]]),
        ("*.md", [["md"]], NONE),
        ("\\(*a\\)bcd", [["abcd"]], [["a)bcd"]]),
        ("\\<config\\>", [["config"]], [["config"]]),
        ("[Ii]nstall", [["Install", "install"]], [["Install", "install"]]),
        ("[[:alpha:]]foo[^]]bar[]x]", [["foo"], ["bar"]], [["foo"], ["bar"]]),
        ("[[=a=][.-.]x]foo", [["foo"]], [["foo"]]),
        ("[\\]foo", [["foo"]], [["foo"]]),
        ("[a-z]foo", [["foo"]], [["foo"]]),
        ("a$bcd", [["bcd"]], [["bcd"]]),
        ("\\(abc\\)\\1", [["abc"]], [["(abc)"]]),
        ("a\\.b\\*c\\\\d\\/", [["a.b*c\\d/"]], [["a.b*c\\d/"]]),
        ("\\dfoo", NONE, NONE),
        ("foo\\", NONE, NONE),
        ("[:alpha:]foo", NONE, NONE),
        ("foo[abc", NONE, NONE),
        ("foo[[.a", NONE, NONE),
        ("fooa**", NONE, NONE),
        ("\\bfoo\\b*", NONE, NONE),
        ("(foo", [["(foo"]], NONE),
        ("foo)", [["foo)"]], NONE),
        ("foo{,3}", [["foo{,3}"]], NONE),
        ("foox{3,2}", [["foox{3,2}"]], NONE),
        ("foox{40000}", [["foox{40000}"]], NONE),
        ("foox{2,}", [["foox{2,}"]], [["fooxx"]]),
    ],
)
def test_what_a_pattern_needs(
    pattern: str, basic: list[list[str]] | str, extended: list[list[str]] | str
) -> None:
    """Basic and extended expressions, and what in them is not understood."""
    assert literals(["-G", "-e", pattern]) == basic
    assert literals(["-E", "-e", pattern]) == extended


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-F", "a.b("], [["a.b("]]),
        (["-Fi", "Straße"], [["stra"]]),
        (["-i", "Kelvin"], [["kelvin"]]),
        (["-i", "--no-ignore-case", "Kelvin"], [["Kelvin"]]),
        (["-iF", "é"], NONE),
        (["-P", "(?<=import )\\w+"], [["import "]]),
        (["-P", "get(?!_)"], [["get"]]),
        (["-P", "foo(*SKIP)bar"], NONE),
        (["-P", "foo\\nbar"], "a pattern over several lines"),
        (["-P", "(?i)foo"], [["foo"]]),
        (["-P", "[é]"], NONE),  # in the C locale either of its bytes
        (["-P", "foo[é]+é*"], [["foo"]]),
        (["foo" * 4000], "a long pattern"),
        (["foo\udcff"], "a pattern that is not UTF-8"),
        (["\n".join(map(str, range(300)))], "too many patterns"),
    ],
)
def test_what_a_command_line_needs(words: list[str], found: list[list[str]] | str) -> None:
    """Fixed strings, case and Perl's expressions."""
    assert literals(words) == found


@given(st.text(max_size=40) | st.text("\\\\()[]{}|*+?^$.,:=-ab1\n", max_size=20), st.booleans())
def test_no_pattern_is_too_much(pattern: str, extended: bool) -> None:
    """The tokenizer ends with an answer, and what it writes is an expression that Python reads."""
    wider = rewrite(pattern, extended=extended)
    if wider is not None:
        re.compile(wider)


@given(st.binary(max_size=40), st.sampled_from([b"-G", b"-E", b"-F", b"-P", b"-iE"]))
def test_no_bytes_are_too_much(pattern: bytes, dialect: bytes) -> None:
    """Planning ends with an answer whatever the pattern is."""
    assert isinstance(planned([dialect, b"-e", pattern]), Plan | Plain)
