"""ripgrep's command lines: no file that rg reports is left out, and a plan's run is the original's."""

from __future__ import annotations

import os
import random
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest

from chromafuse.search.plan import Plain, Plan, Request, Send
from chromafuse.search.ripgrep import plan
from chromafuse.search.ripgrep_options import LONG, SHORT, Option, Run
from tests.support.rust_patterns import Case, case
from tests.support.searching import is_candidate, run, run_ripgrep_plan

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "grep_cases.tsv"
BATCH = 100  # cases that share their texts
SPECIAL = {  # always candidates, and here so that the rule is put to the test
    "nul": b"abc\0k\n",
    "bom": b"\xef\xbb\xbfabkKs\n",
    "utf16": "\ufeffabkK s".encode("utf-16-le"),
    "latin1": "abk\xe9\n".encode("latin-1"),
    "empty": b"",
}


def planned(*words: str, **env: str) -> Plan | Plain | Send:
    """Return the plan for an rg command line."""
    environment = {name.encode(): value.encode() for name, value in env.items()}
    return plan(Request("rg", tuple(map(os.fsencode, words)), environment))


def examples(each: int) -> tuple[int, random.Random, int]:
    """Return how many random cases to try, `each` for every example of the profile, the source, and its seed."""
    long = hypothesis.settings.default.max_examples > 100
    seed = random.randrange(2**32) if long else 1
    return each * hypothesis.settings.default.max_examples, random.Random(seed), seed


# -- the needs


def write_texts(place: Path, cases: Sequence[Case], rng: random.Random) -> dict[bytes, bytes]:
    """Write a file for every text of the cases, in lines of odd company, and return the contents."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    contents = dict(SPECIAL)
    for number, text in enumerate(text for one in cases for text in one.texts):
        before, after = rng.choice([("", ""), ("b ", ""), ("", " a"), ("k", "k")])
        end = rng.choice(["\n", "\n", "\r\n", ""])
        contents[str(number)] = f"{before}{text}{after}{end}".encode()
    for name, content in contents.items():
        place.joinpath(name).write_bytes(content)
    return {f"./{name}".encode(): content for name, content in contents.items()}


@pytest.mark.slow
def test_no_file_that_matches_is_left_out(tmp_path: Path) -> None:
    """Random patterns and flags over texts made for them: what rg lists is a candidate, and most are filtered."""
    tried, rng, seed = examples(20)
    filterable = filtered = 0
    for _ in range(0, tried, BATCH):
        cases = [case(rng) for _ in range(BATCH)]
        contents = write_texts(tmp_path / "texts", cases, rng)
        for one in cases:
            made = plan(Request("rg", one.words))
            found = run("rg", one.words, tmp_path / "texts")
            names = set(found.stdout.split(b"\0")) - {b""}
            if isinstance(made, Plan):
                lost = [contents[n] for n in names if not is_candidate(made.needs, contents[n])]
                assert lost == [], (seed, one.words, made.needs)
            # What few files match is what a filter is for.
            if found.status < 2 and len(names) < len(contents) / 4:
                filterable += 1
                filtered += isinstance(made, Plan)
    reached = f"{tried} cases, {filterable} filterable, {filtered} filtered"
    assert filtered >= filterable / 2 >= tried / 8, reached


# -- whole command lines

WORDS = ("install", "foo", "needle")
TREE = {
    "guide.md": b"# Guide\n\nHow to install it.\nconfig: a.b(\nfoo_id and more\n",
    "notes.md": b"needle\nInstall\nfoo\n--\n-foo\nhttps://example.org\nend\n\ninstall twice install\nnd and\n",
    "alpha/crlf.md": b"install\r\nthe end\r\n# install\r\nfoo needle\r\n",
    "alpha/deep/er/page.md": b"  install with foo\nkelvin \xe2\x84\xaa\nK\n\n\nneedle\n\xc3\xa9t\xc3\xa9_id\n",
    "alpha/image.png": b"\x89PNG\xff install foo needle\n",
    "alpha/no newline.md": b"foo install needle",
    "alpha/other.txt": b"nothing to see\n",
    "beta/bom.md": b"\xef\xbb\xbf# install\nfoo needle\n",
    "beta/empty.md": b"",
    "beta/latin.md": b"caf\xe9 install foo needle\n",
    "beta/long.md": b"x" * 10_000 + b" install foo needle " + b"y" * 100 + b"\n",
    "beta/utf16.md": "\ufeff\u65e5\u672c".encode("utf-16-le"),
    ".hidden.md": b"install foo needle config\n",
    "odd/a:b.md": b"install foo needle\n",
    "odd/-dash.md": b"install foo needle\n",
    "odd/ignored.md": b"install foo needle\n",
    "odd/.ignore": b"ignored.md\n",
    "zeta/big.md": b"install and a lot of text\n" * 200 + b"foo needle\n",
    "zeta/page.md": b"see alpha\nconfig install foo\nneedle\n" * 3,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a site without NUL in it, and beside it what the cases refer to; return the site's root."""
    root = tmp_path / "site"
    for number, (name, content) in enumerate(TREE.items()):
        page = root / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_bytes(content)
        os.utime(page, (10**9 + number * 7 % 1000, 10**9 + number * 7919 % 1000))
    (root / "link.md").symlink_to("notes.md")
    (root / "zeta" / "link").symlink_to("../alpha/deep")
    out = tmp_path / "out"
    out.mkdir()
    out.joinpath("x.txt").write_bytes(b"install foo needle\n")
    out.joinpath("log").write_bytes(b"")
    tmp_path.joinpath("patterns").write_bytes(b"install\nconfig\n")
    tmp_path.joinpath("globs").write_bytes(b"*.png\n")
    return root


def rows() -> list[tuple[str, str, str]]:
    """Return arguments, purpose and verdict of every case for rg; none where the cases are absent."""
    if not CASES.is_file():
        return []
    lines = [line.split("\t") for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [(args, about, verdict) for tool, args, about, verdict in lines if tool == "rg"]


def words_of(args: str, root: Path, word: str) -> tuple[str, ...]:
    """Return the words of a case's arguments, as a shell splits them."""
    names = {
        "{ROOT}": root, "{DIR}": "alpha", "{DIR2}": "zeta", "{FILE}": "guide.md", "{FILE2}": "notes.md",
        "{OUT}": root.parent / "out", "{PATS}": root.parent / "patterns", "{GLOBS}": root.parent / "globs",
    }  # fmt: skip
    for name, path in names.items():
        args = args.replace(name, str(path))
    return tuple(shlex.split(args.replace("install", word)))


def compare(words: tuple[str, ...], root: Path, *, ordered: bool) -> bool:
    """Compare the run of a plan with that of the original command line; say whether there was one."""
    made = planned(*words)
    if not isinstance(made, Plan):
        if not isinstance(made, Send):
            return False
        contents = {at: root.joinpath(os.fsdecode(path)).read_bytes() for at, path in made.words}
        again = plan(Request("rg", tuple(map(os.fsencode, words)), {}, contents))
        if not isinstance(again, Plan):
            return False
        made = again
    after = run_ripgrep_plan("rg", made, root)
    if after is None:
        return False
    before = run("rg", map(os.fsencode, words), root)
    if not ordered:
        before, after = before.sorted(), after.sorted()
    assert after == before, (words, made)
    return True


@pytest.mark.skipif(not rows(), reason=f"no cases: {CASES} is absent")
def test_the_listed_cases_come_out_as_from_rg_itself(tree: Path) -> None:
    """Every case that may be filtered is planned and gives rg's output, and no other one is planned."""
    astray = []
    for args, about, verdict in rows():
        if "<" in args.split() or "{OUT}/x.txt" in args:
            continue  # what stdin is, and what lies outside the mount, is for the caller to see
        walks = not args.endswith("{FILE}")  # a named file alone is left to rg
        for word in WORDS:
            words = words_of(args, tree, word)
            ordered = words[:1] in {("--sort",), ("-j1",)}
            if compare(words, tree, ordered=ordered) != (verdict == "yes" and walks):
                astray.append((words, about))
    assert astray == []


def random_option(rng: random.Random) -> list[str]:
    """Return the words of an option that may be planned, in one of its forms."""
    names = {**LONG, **SHORT}
    name, option = rng.choice(
        [(name, option) for name, option in sorted(names.items()) if option.run is not Run.NONE]
    )
    dashed = ("-" if len(name) == 1 else "--") + name.decode()
    if option.value is None:
        return [dashed]
    value = rng.choice(values_of(option))
    form = rng.random()
    if form < 0.4 and value:
        return [dashed + ("=" if len(name) > 1 else "") + value]
    return [dashed, value]


def values_of(option: Option) -> list[str]:
    """Return values for an option, most of them good ones."""
    special = {
        "glob": ["*.md", "!*.md", "alpha/**", "*.{md,png}", "/zeta/*.md"], "iglob": ["*.MD"],
        "type": ["md", "txt", "all", "nosuchtype"], "type-not": ["md"], "type-add": ["web:*.md", "bad"],
        "type-clear": ["md"], "ignore-file": ["../globs", "../absent"], "file": ["../patterns"],
        "regexp": ["foo", "-foo", "[Ii]nstall", "nothing like it"], "max-filesize": ["1K", "100", "2M"],
        "colors": ["match:fg:blue", "path:none", "line:style:bold"], "replace": ["Y", "", "$0$0"],
        "path-separator": ["/", "+"], "color": ["always", "never", "ansi"], "engine": ["default", "pcre2"],
        "sort": ["path", "none", "modified"], "sortr": ["path", "modified"], "threads": ["1", "2", "0"],
        "max-columns": ["20", "0"], "dfa-size-limit": ["1M"], "regex-size-limit": ["1M"],
    }  # fmt: skip
    return special.get(option.name, ["1", "2", "0"])


def test_random_options_give_the_output_of_rg_itself(tree: Path) -> None:
    """Some options, patterns and operands at random: the plan's run is the original's, and most are planned."""
    tried, rng, seed = examples(3)
    done = 0
    for _ in range(tried):
        options = [word for _ in range(rng.randint(0, 4)) for word in random_option(rng)]
        given = [
            rng.choice(["install", "foo", "needle", "config", "[Ii]nstall|end", "absent word"])
        ]
        operands = rng.choice(
            [[], [], ["."], ["alpha"], ["zeta/", "alpha//"], ["guide.md"], ["guide.md", "notes.md"],
             ["absent", "beta"], [str(tree)], ["zeta", "guide.md"], ["../out", "."], ["link.md", "zeta/link"]]
        )  # fmt: skip
        sort = rng.choice([["--sort", "path"], ["-j1"], []])
        words = (*options, *sort, *given, *operands)
        if rng.random() < 0.2:
            words = (*given, *operands, *options, *sort)
        try:
            done += compare(words, tree, ordered=bool(sort))
        except AssertionError as differs:
            differs.add_note(f"seed {seed}")
            raise
    assert done >= tried / 2, f"{done} of {tried} planned"
