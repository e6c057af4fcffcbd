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
from hypothesis import strategies as st

from chromafuse.search.needs import Need
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


def examples(each: int, part: int = 0) -> tuple[int, random.Random, int]:
    """Return how many random cases to try, `each` for every example of the profile, the source, and its seed."""
    long = hypothesis.settings.default.max_examples > 100
    seed = random.randrange(2**32) if long else part
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
@pytest.mark.parametrize("part", range(4))
def test_no_file_that_matches_is_left_out(tmp_path: Path, part: int) -> None:
    """Random patterns and flags over texts made for them: what rg lists is a candidate, and most are filtered."""
    tried, rng, seed = examples(5, part)
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


# -- the words

ANY_WORD = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(sorted({**LONG, **SHORT})).map(
        lambda name: b"-" * (1 + (len(name) > 1)) + name
    ),
    st.sampled_from(
        [b"--", b"-", b"-e", b"-f", b"-ie", b"-nA3", b"--color=always", b"-uu", b"(?i)a{2}"]
    ),
    st.text(alphabet="ab[](){}|*+?.\\^$-&~:<>=!i,0P", max_size=20).map(str.encode),
)


@hypothesis.given(words=st.lists(ANY_WORD, max_size=7).map(tuple), content=st.binary(max_size=30))
def test_any_words_are_planned_or_left_alone(words: tuple[bytes, ...], content: bytes) -> None:
    """Whatever the words, there is an answer, and a plan adds nothing of its own but what it must."""
    made = plan(Request("rg", words))
    if isinstance(made, Send):
        assert all(words[at].endswith(path) for at, path in made.words)
        made = plan(Request("rg", words, {}, {at: content for at, _ in made.words}))
    if isinstance(made, Plan):
        assert made.needs
        assert all(need.clauses and all(map(all, need.clauses)) for need in made.needs)
        assert set(made.operands) <= set(words)
        ours = {b"--files", b"--null", b"--no-mmap"}
        given = b"\0".join(words)
        for word in {*made.options, *(made.enumerate or ())} - ours:
            assert word.removeprefix(b"--regexp=").lstrip(b"-") in given


INSTALL = (Need((frozenset(["install"]),)),)


def test_a_command_line_becomes_a_listing_and_a_search() -> None:
    """Each option goes to the run that it belongs to, as it was given; the rest stays in order."""
    words = (
        "-nig*.md",
        "install",
        "-A",
        "2",
        "--type=md",
        "docs",
        "--sort",
        "path",
        "-u",
        "--",
        "-x",
    )
    assert planned(*words) == Plan(
        needs=(Need((frozenset(["install"]),), fold=True),),
        options=(
            *(b"-n", b"-i", b"-A", b"2", b"--sort", b"path", b"--no-mmap"),
            b"--regexp=install",
        ),
        operands=(b"docs", b"-x"),
        recursive=True,
        prefix=b"-H",
        enumerate=(b"--files", b"--null", b"-g*.md", b"--type=md", b"--sort", b"path", b"-u"),
        plain_on_nul=True,
    )


@pytest.mark.parametrize("option", ["-H", "-I", "--with-filename", "--no-filename"])
def test_names_are_shown_as_the_user_wants(option: str) -> None:
    """A word about file names leaves no room for ours."""
    made = planned(option, "install")
    assert isinstance(made, Plan)
    assert made.prefix == b""


def test_patterns_are_read_from_a_file_once_it_is_sent() -> None:
    """-f asks for the file's content, which is then part of the needs; the option itself stays."""
    words = (b"-nf", b"patterns", b"-e", b"install", b"docs")
    assert plan(Request("rg", words)) == Send(((1, b"patterns"),))
    made = plan(Request("rg", words, {}, {1: b"one\r\ntwo"}))
    assert isinstance(made, Plan)
    assert made.needs == tuple(Need((frozenset([w]),)) for w in ("install", "one", "two"))
    assert (made.options, made.operands) == (
        (b"-n", b"-f", b"patterns", b"-e", b"install", b"--no-mmap"),
        (b"docs",),
    )
    assert plan(Request("rg", words, {}, {1: b"one\n\n"})) == Plain("no literal that a match needs")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "no pattern"),
        ("-i", "no pattern"),
        ("install -", "standard input"),
        ("-f - docs", "a dash in the value of --file"),
        ("-f- docs", "patterns from standard input"),
        ("-v install", "--invert-match"),
        ("-nv install", "--invert-match"),
        ("--json install", "--json"),
        ("-uuu install", "-uuu"),
        ("-uu -u install", "-uuu"),
        ("-d1 install", "unknown option -d"),
        ("--ignore-cas install", "unknown option --ignore-cas"),
        ("-5 install", "unknown option -5"),
        ("-n=3 install", "unknown option -="),
        ("-A=3 install", "-A="),
        ("-A", "no value for --after-context"),
        ("-A x install", "the value of --after-context"),
        ("-A -1 install", "a dash in the value of --after-context"),
        ("-A1 -A1 install", "--after-context twice"),
        ("--line-number=1 install", "a value for --line-number"),
        ("--color=sometimes install", "the value of --color"),
        ("-m0 install", "--max-count 0"),
        ("-F --no-fixed-strings install", "-F taken back"),
        ("-P --engine default install", "several engines"),
        ("--engine auto install", "the value of --engine"),
        (".*", "no literal that a match needs"),
        ("-e install -e .", "no literal that a match needs"),
        ("a\\nb", "no literal that a match needs"),
        ("a(b", "no literal that a match needs"),
        ("a\nb", "a pattern over several lines"),
        ("-i caf\udce9", "a pattern that is not UTF-8"),
        ("x" * 10_001, "a long pattern"),
        ("-e a " * 257, "too many patterns"),
    ],
)
def test_what_is_not_understood_runs_untouched(words: str, reason: str) -> None:
    """Each doubt has its reason."""
    assert planned(*filter(None, words.split(" "))) == Plain(reason)


def test_a_configuration_file_can_hold_any_option() -> None:
    """With one nothing is planned, unless it is not read; an empty name is none."""
    name = "RIPGREP_CONFIG_PATH"
    assert planned("install", **{name: "/rc"}) == Plain("a configuration file")
    assert isinstance(planned("install", **{name: ""}), Plan)
    made = planned("--no-config", "install", **{name: "/rc"})
    assert isinstance(made, Plan)
    assert made.enumerate == (b"--files", b"--null", b"--no-config")


@pytest.mark.parametrize(
    ("words", "clauses", "fold"),
    [
        ("colou?r", [{"color", "colour"}], False),
        ("[Ii]nstall", [{"Install", "install"}], False),
        (r"foo\.bar\b", [{"foo.bar"}], False),
        (r"(?:foo|ba[rz])+\s+\w*quux", [{"quux"}, {"foo", "bar", "baz"}], False),
        ("-F a.b(", [{"a.b("}], False),
        ("-S install", [{"install"}], True),
        ("(?i)Install", [{"install"}], True),
        (r"-P (?<!a)foo(b)\1(?!x)", [{"foob"}], False),
        (r"-P foo\Kbar\h[[:alpha:]]", [{"foobar"}], False),
        (r"-P (?i:foo)(?<n>bar)\p{Lu}", [{"foobar"}], True),
        (r"-P \Qa.b(\Ecd", [{"a.b(cd"}], False),
        (r"\x61\x{62}\u0063", [{"abc"}], False),
        (r"(?P<name>key)=\d{1,3}", [{"key="}], False),
    ],
)
def test_the_literals_of_a_pattern(words: str, clauses: list[set[str]], fold: bool) -> None:
    """What is asked of a page is as much as the pattern gives."""
    made = planned(*words.split())
    assert isinstance(made, Plan)
    assert made.needs == (Need(tuple(map(frozenset, clauses)), fold),)


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


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nul", ("install",)),
        ("ignore", ("install",)),
        ("ignore", ("--no-ignore-messages", "install", ".")),
        ("loop", ("-L", "install")),
        ("empty", ("-g", "*.none", "install")),
        ("type", ("-t", "nosuchtype", "install")),
        ("file", ("-t", "nosuchtype", "install", "guide.md")),
    ],
)
def test_what_a_list_of_files_cannot_give_is_left_to_rg(
    tree: Path, what: str, words: tuple[str, ...]
) -> None:
    """A NUL where rg walks, or anything that the listing has to say: the command line runs untouched."""
    if what == "nul":
        tree.joinpath("zeta", "nul.md").write_bytes(b"install\0\n")
    elif what == "ignore":
        tree.joinpath(".ignore").write_bytes(b"{bad\n")
    elif what == "loop":
        tree.joinpath("alpha", "loop").symlink_to("..")
    made = planned(*words)
    assert isinstance(made, Plan)
    assert run_ripgrep_plan("rg", made, tree) is None
