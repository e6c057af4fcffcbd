"""GNU grep's command lines: which are planned, and that a plan's run is the original's to the byte."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.search.gnu import plan
from chromafuse.search.plan import Plain, Plan, Request, Send
from tests.support.gnu_searching import run_plan
from tests.support.searching import run

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "grep_cases.tsv"
WORDS = ("install", "foo", "needle")
# Rows that the table leaves alone and that may be planned all the same.
BEYOND = {
    "-n install {OUT}/x.txt",  # whether an operand lies in the mount is for the caller to say
    "-rP 'foo\\Kbar' .",  # Perl's expressions are read by more than Python's parser
    "-rP '[[:alpha:]]+://' .",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A command line of the table, with its places still open."""

    tool: str
    env: tuple[tuple[str, str], ...]
    words: str
    verdict: str  # yes, no or fallback


def table() -> list[Row]:
    """Return the rows for GNU grep, or none where the table is not there."""
    if not CASES.exists():
        return []
    rows = []
    for line in CASES.read_text().splitlines():
        call, words, _, verdict = line.split("\t")
        *assignments, tool = shlex.split(call)
        if tool in {"grep", "egrep", "fgrep"}:
            env = tuple((name, value) for name, _, value in (a.partition("=") for a in assignments))
            rows.append(Row(tool, env, words, verdict))
    return rows


ROWS = table()

TREE = {
    "README.md": "# Installation\n\nHow to install foo. The needle is here.\n--version 1\n",
    "LICENSE": "no such word\n",
    "notes.mdx": "install\nconfig\nInstall and config, foo(x) colour ook a.b a--b\n",
    "Zebra.md": "Needle needle\n## Usage\nfoo\n" + "x" * 10_000 + " install\n",
    "a b.md": "install here\n",
    "-dash.md": "foo install\n",
    "co:lon.md": "needle install\n",
    ".hidden.md": "install foo needle\n",
    "guide/a.md": "pip install foo\nnpm install needle\n---\nuser@host 1.2\n",
    "guide/deep/b.md": "don't install 100% of where_document\ncafé straße éclair\n",
    "guide/deep/c.txt": "import needle\nclass Foo:\n  get_x set_x\n12. ab abbc\n",
    "guide/crlf.md": "install windows\r\nneedle windows\r\n",
    "guide/noeol.md": "foo install",
    "guide/empty.md": "",
    "zone/kelvin.md": "\u212aelvin \u0131nstall in\u017ftall KELVIN\nfoo.bar foo and bar\n",
    "zone/x.md": "install\n\nconfig\nneedle id ids\nfoo\n",
    "zone/logo.png": "needle install\n",
}
RAW = {
    "zone/nul.md": b"install\0foo\nneedle\n",
    "zone/bom.md": b"\xef\xbb\xbfinstall foo needle\n",
    "zone/latin1.md": b"install caf\xe9\nneedle\nfoo\n",
    "zone/utf16.md": "\ufeffinstall foo needle\n".encode("utf-16-le"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an ordinary directory with pages of all kinds, and beside it the files that rows name."""
    root = tmp_path_factory.mktemp("grep") / "docs"
    for name, content in {**{n: t.encode() for n, t in TREE.items()}, **RAW}.items():
        root.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        root.joinpath(name).write_bytes(content)
    out = root.parent / "out"
    out.mkdir()
    (out / "x.txt").write_text("install\n")
    (root.parent / "patterns").write_text("install\nconfig\n")
    (root.parent / "globs").write_text("*.png\n\n*.txt \n")
    return root


def words_of(row: Row, place: Path, word: str) -> list[str]:
    """Return the words of a row, its places filled in, redirections left out."""
    text = row.words.replace("install", word)
    for name, value in {
        "{ROOT}": str(place),
        "{DIR}": "guide",
        "{DIR2}": "zone",
        "{FILE}": "README.md",
        "{FILE2}": "Zebra.md",
        "{OUT}": "../out",
        "{PATS}": "../patterns",
        "{GLOBS}": "../globs",
    }.items():
        text = text.replace(name, value)
    words = shlex.split(text)
    for sign in ("<", ">>"):
        if sign in words:
            del words[words.index(sign) : words.index(sign) + 2]
    return words


def answered(tool: str, words: Iterable[str], place: Path, **env: str) -> Plan | Plain:
    """Return the plan of a command line, with the files it asks for."""
    environment = {name.encode(): value.encode() for name, value in env.items()}
    request = Request(tool, tuple(map(os.fsencode, words)), environment)
    made = plan(request)
    if isinstance(made, Send):
        contents = {at: place.joinpath(os.fsdecode(path)).read_bytes() for at, path in made.words}
        made = plan(Request(tool, request.words, environment, contents))
    assert not isinstance(made, Send)
    return made


def check(tool: str, words: list[str], place: Path, **env: str) -> Plan | Plain:
    """Plan a command line; where there is a plan, compare its runs with the original."""
    made = answered(tool, words, place, **{"LC_ALL": "C.UTF-8", **env})
    if isinstance(made, Plan):
        original = run(tool, map(os.fsencode, words), place, **env)
        assert run_plan(tool, made, place, every=True, **env) == original
        assert run_plan(tool, made, place, **env) == original
    return made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.tool} {row.words}")
def test_a_row_of_the_table(row: Row, place: Path) -> None:
    """A plan prints, complains and ends as the original does; where none is allowed there is none."""
    for word in WORDS:
        made = check(row.tool, words_of(row, place, word), place, **dict(row.env))
        if row.verdict != "yes" and row.words not in BEYOND:
            assert isinstance(made, Plain)


@pytest.mark.skipif(not ROWS, reason="the table of grep's command lines is not here")
def test_nearly_all_rows_that_may_be_planned_are(place: Path) -> None:
    """A translation that declines everything would pass the table; this one declines what is listed."""
    declined = {}
    allowed = [row for row in ROWS if row.verdict == "yes"]
    for row in allowed:
        words = words_of(row, place, "install")
        made = answered(row.tool, words, place, **{"LC_ALL": "C.UTF-8", **dict(row.env)})
        if isinstance(made, Plain):
            declined[row.words] = made.reason
    assert declined == {"-r --exclude-dir=. install .": "an operand that --exclude-dir may mean"}
    assert len(allowed) > 90


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-rn", "foo", "."], ["-n", "-e", "foo"]),
        (["-rnifoo", "."], None),  # -f oo
        (["-rniefoo", "."], ["-n", "-i", "-efoo"]),
        (["-nr", "-e", "-r", "."], ["-n", "-e", "-r"]),
        (["--rec", "--line-n", "--reg", "foo", "."], ["--line-n", "--reg", "foo"]),
        (["-r12", "-1n2", "foo", "."], ["-12", "-1", "-n", "-2", "-e", "foo"]),
        (["-r", "--", "-foo", "."], ["-e", "-foo"]),
        (["-r", r"\-foo", "."], ["-e", "-foo"]),
        (["-rF", r"\-foo", "."], ["-F", "-e", r"\-foo"]),
        (["foo", ".", "-r", "-A", "-1"], None),
        (["-r", "--include=*.md", "--exclude-dir", "x", "foo", "."], ["-e", "foo"]),
        (["-r", "-d", "skip", "foo", "README.md"], ["-d", "skip", "-e", "foo"]),
        (["-d", "skip", "-R", "foo", "README.md"], ["-e", "foo"]),
    ],
)
def test_options_of_a_plan(words: list[str], options: list[str] | None, place: Path) -> None:
    """Options come one a word, in their order, without those that the list of files replaces."""
    made = plan(Request("grep", tuple(map(os.fsencode, words))))
    found = [os.fsdecode(word) for word in made.options] if isinstance(made, Plan) else None
    assert found == options


@pytest.mark.parametrize(
    ("env", "words", "reason"),
    [
        ({"LC_ALL": "de_DE"}, ["-r", "foo"], "a locale that is not UTF-8"),
        ({"LANG": "ja_JP.SJIS"}, ["-r", "foo"], "a locale that is not UTF-8"),
        ({"LC_ALL": "C", "LANG": "ja_JP.SJIS"}, ["-r", "foo"], None),
        ({"LC_ALL": "", "LC_CTYPE": "sr_RS.UTF-8@latin"}, ["-r", "foo"], None),
        ({}, ["-r", "foo"], None),
        ({"GREP_OPTIONS": "-v"}, ["-r", "foo"], "GREP_OPTIONS, which old releases heed"),
        ({"POSIXLY_CORRECT": ""}, ["foo", ".", "-r"], None),
        ({}, ["foo"], "standard input"),
        ({}, ["-rc", "foo"], "--count"),
        ({}, ["-r", "-X", "egrep", "foo"], "-X"),
        ({}, ["-r", "--no", "foo"], "unknown option --no"),
        ({}, ["-r", "--recursive=x", "foo"], "a value for --recursive"),
        ({}, ["-rm0", "foo"], "the value of --max-count"),
        ({}, ["-rf", "-"], "the value of --file"),
        ({}, ["-r", "--exclude-from=-", "foo"], "the value of --exclude-from"),
        ({}, ["-r", "x*"], "no literal that a match needs"),
        ({}, ["-r", "-e", "foo", "-e", ""], "no literal that a match needs"),
        ({}, ["-r", "-e", "foo\n"], "no literal that a match needs"),
        ({}, ["-rP", "-e", "foo", "-e", "bar"], "several patterns with -P"),
        ({}, ["-rG", "-E", "foo"], "several kinds of pattern"),
        ({}, ["-r", "foo\udcff"], "a pattern that is not UTF-8"),
        ({}, ["-r", "--include=[[:alpha:]]", "foo"], "a glob that is not understood"),
        (
            {"LC_ALL": "en_US.UTF-8"},
            ["-r", "--include=[a-c]*", "foo"],
            "a glob that is not understood",
        ),
    ],
)
def test_what_runs_untouched(env: dict[str, str], words: list[str], reason: str | None) -> None:
    """Each reason not to plan is given in a few words; None: there is a plan."""
    environment = {name.encode(): value.encode() for name, value in env.items()}
    made = plan(Request("grep", tuple(map(os.fsencode, words)), environment))
    assert (made.reason if isinstance(made, Plain) else None) == reason


def test_files_of_patterns_and_globs_are_asked_for() -> None:
    """The contents of -f and --exclude-from are asked for by the position of the word with the name."""
    words = (b"-rfa", b"--file", b"b", b"--exclude-from=c", b".")
    assert plan(Request("grep", words)) == Send(((0, b"a"), (2, b"b"), (3, b"c")))
    contents = {0: b"foo\nbar", 2: b"", 3: b"*.png \n\n"}
    made = plan(Request("grep", words, files=contents))
    assert isinstance(made, Plan)
    assert made.options == (b"-fa", b"--file", b"b")
    assert made.needs is not None
    assert sorted(str(*clause) for need in made.needs for clause in need.clauses) == ["bar", "foo"]
    assert made.selection is not None
    assert [made.selection.admits(name) for name in (b"a.png", b"b/a.png", b"a.md")] == [
        False,
        False,
        True,
    ]


GLOBS = [
    "", "*.md", "*.txt", "README*", "*a*.m*", "guide", "guide/", "deep", "a.md", "[a-c].*", "*", "x.md", ".*",
    "*.", "zone/x.md", "*/x*", "/x.m*", "/x.md", "[ab]*", "guide/deep", "*e*e*", "?.md", "[!a]*", "a\\.md",
]  # fmt: skip
OPERANDS = [
    ".", "guide", "zone/", "guide//", "README.md", "zone/x.md", "./guide/a.md", "zone//x.md", "missing",
    "guide/../zone", "guide/deep/",
]  # fmt: skip


@pytest.mark.parametrize("glob", ["/x.m*", "/x.md", "x.md", "zone/*", "zone//*", "*", ""])
def test_globs_and_slashes(glob: str, place: Path) -> None:
    """A named file is matched behind each slash, by a glob with wildcards only behind the last of several."""
    made = check("grep", [f"--include={glob}", "install", "zone//x.md", "README.md"], place)
    assert isinstance(made, Plan)


@given(data=st.data())
def test_globs_select_as_grep_does(data: st.DataObject, place: Path) -> None:
    """With any include and exclude options, the files of a plan are those that grep looks at."""
    kinds = st.sampled_from(["--include=", "--exclude=", "--exclude-dir="])
    globs = data.draw(
        st.lists(st.tuples(kinds, st.sampled_from(GLOBS)).map("".join), min_size=1, max_size=3)
    )
    operands = data.draw(st.lists(st.sampled_from(OPERANDS), max_size=3))
    check("grep", ["-r", *globs, "install", *operands], place)
    check("grep", ["-l", *globs, "install", "README.md", *operands], place)


SWITCHES = [
    "-n", "-rn", "-rl", "-i", "-ri", "-nr", "-H", "-h", "-R", "-rw", "-x", "-o", "-b", "-T", "-Z", "-z",
    "-s", "-q", "-E", "-F", "-P", "-G", "-a", "-I", "-U", "-1", "-r2", "-12", "-C1", "-rA1", "-B", "1",
    "-m1", "-m", "2", "-dskip", "-d", "recurse", "-Dskip", "-ne", "-e", "foo", "-refoo", "-f",
    "../patterns", "-rf../patterns", "--rec", "--line", "--line-n", "--no-f", "--with", "--ign", "--no-ig",
    "--col", "--color=always", "--colour=never", "--in", "--incl=*.md", "--exclude-d=deep",
    "--exclude-f=../globs", "--regexp=needle", "--reg", "--", "-", "--null", "--null-d", "--no-group",
    "--group=x", "--max=1", "-y", "-u", "-L", "-c", "-v", "--bin=text", "--binary-files=text", "--label=x",
    "-rX", "--dev=skip", "--directories=read",
]  # fmt: skip


@given(data=st.data())
def test_any_command_line(data: st.DataObject, place: Path) -> None:
    """Whatever the words are, a plan's run is the original's."""
    switches = data.draw(st.lists(st.sampled_from(SWITCHES), max_size=4))
    operands = data.draw(st.lists(st.sampled_from(OPERANDS), max_size=3))
    words = data.draw(st.permutations([*switches, *operands, "install"]))
    env = data.draw(st.sampled_from([{}, {}, {"POSIXLY_CORRECT": "1"}, {"LC_ALL": "C"}]))
    check("grep", words, place, **env)
    check("grep", ["-r", *switches, "-e", "install", *operands], place, **env)


@given(
    st.lists(st.binary(max_size=8) | st.sampled_from(SWITCHES).map(str.encode), max_size=6),
    st.sampled_from(["grep", "egrep", "fgrep"]),
)
def test_no_words_are_too_much(words: list[bytes], tool: str) -> None:
    """Planning ends with an answer whatever the bytes are."""
    assert isinstance(plan(Request(tool, tuple(words))), Plan | Plain | Send)
