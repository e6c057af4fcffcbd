"""The bench's pure parts: rounds, ratios, tables, targets, the picture, the command line, the naive class."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench import __main__ as command
from bench import corpus, markdown, measure, picture, results, targets, usage, workplace
from bench.hosts import plainform
from bench.hosts.naive import ChromaFiles
from bench.measure import Failed, Interleaving, Run
from bench.results import Row, Table
from bench.usage import Usage

NO_DROPS: Callable[[], int] = lambda: 0  # noqa: E731 - a constant, not a function


def told(log: list[str], name: str, seconds: float = 1.0) -> Callable[[], Run]:
    """Return a contender that notes its turn."""

    def turn() -> Run:
        log.append(name)
        return Run(seconds)

    return turn


# -- rounds


def test_contenders_take_turns_and_turn_the_order_around() -> None:
    """Each contender runs once a round, after those that warm up; every other round is backwards."""
    log: list[str] = []
    contenders = {name: told(log, name) for name in "abc"}
    runs = Interleaving(contenders, warm_up="b", drops=NO_DROPS).play(3)
    assert "".join(log) == "b" + "abc" + "cba" + "abc"
    assert runs == {name: [Run(1.0)] * 3 for name in "abc"}


def test_a_slow_contender_sits_out_and_a_failing_one_is_named() -> None:
    """Who used up the patience, or failed, has fewer runs; the others are not disturbed."""

    def fail() -> Run:
        raise Failed("no such tool")

    log: list[str] = []
    rounds = Interleaving(
        {"slow": told(log, "s", 7.0), "quick": told(log, "q"), "broken": fail},
        patience=10,
        drops=NO_DROPS,
    )
    runs = rounds.play(4)
    assert {name: len(found) for name, found in runs.items()} == {
        "slow": 2, "quick": 4, "broken": 0,
    }  # fmt: skip
    assert rounds.failures == {"broken": "no such tool"}


def test_a_disturbed_round_is_played_again() -> None:
    """A round in which the caches were dropped is warmed up again and repeated; long runs count anyway."""
    log: list[str] = []
    drops = iter([0, 1, 1, 1, 1, 1])  # before and after each round; the first is disturbed
    rounds = Interleaving(
        {"a": told(log, "a"), "long": told(log, "L", 9.0)},
        warm_up="a",
        patience=20,
        drops=lambda: next(drops),
    )
    runs = rounds.play(2)
    assert "".join(log) == "a" + "aL" + "a" + "aL" + "La"
    assert {name: len(found) for name, found in runs.items()} == {"a": 2, "long": 3}
    assert rounds.repeated == 1


def test_a_machine_that_is_always_disturbed_does_not_hang_the_bench() -> None:
    """After four times as many repetitions as rounds, rounds count as they are."""
    numbers = iter(range(1000))
    rounds = Interleaving({"a": lambda: Run(1.0)}, drops=lambda: next(numbers))
    assert len(rounds.play(2)["a"]) == 2
    assert rounds.repeated == 8


@given(st.lists(st.tuples(st.floats(0.001, 100), st.floats(0.001, 100)), min_size=1))
def test_ratios_are_of_runs_of_one_round(pairs: list[tuple[float, float]]) -> None:
    """A machine that is slow in some rounds changes no ratio: both sides of a pair were slow."""
    ours = [Run(2 * base) for base, _ in pairs]
    base = [Run(base) for base, _ in pairs]
    assert measure.median_ratio(ours, base) == 2
    slowed = [Run(one.seconds * factor) for one, (_, factor) in zip(ours, pairs, strict=True)]
    slowed_base = [Run(one.seconds * factor) for one, (_, factor) in zip(base, pairs, strict=True)]
    assert measure.median_ratio(slowed, slowed_base) == pytest.approx(2)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 2", "exit 2, 0 bytes, b''"),
        ("echo x; echo oh >&2", "exit 0, 2 bytes, b'oh\\n'"),
        ("exit 0", "exit 0, 0 bytes, b''"),
        ("kill -9 $$", "exit -9, 0 bytes, b''"),
    ],
)
def test_a_tool_that_fails_is_no_measurement(script: str, says: str) -> None:
    """An exit code over 1, a word on stderr or no output at all ends the run."""
    with pytest.raises(RuntimeError) as caught:
        measure.run(["sh", "-c", script])
    assert str(caught.value) == f"['sh', '-c', {script!r}]: {says}"


def test_lines_are_counted_and_no_stdin_is_read() -> None:
    """A run knows how many lines came, one or many processes at once."""
    assert measure.run(["sh", "-c", "cat; echo a; echo b"]).lines == 2
    assert measure.run_together(["sh", "-c", "echo a; echo b"], "/", 4).lines == 8


# -- what it cost


def test_cost_is_a_difference_and_the_median_of_differences() -> None:
    """Readings subtract field by field; of several, each field's median is kept."""
    cost = Usage(5, 4, 3, 2, 1.5, 1, 0.5, 2) - Usage(1, 1, 1, 1, 0.5, 0.5, 0.5, 1)
    assert cost == Usage(4, 3, 2, 1, 1, 0.5, 0, 1)
    assert usage.median([Usage(requests=1), Usage(requests=9), Usage(requests=2)]) == Usage(2)
    assert usage.median([]) == Usage()


def test_a_reading_takes_the_store_from_the_hub_or_the_server() -> None:
    """CPU of the store is that of the hub's children, or of the server where one is named."""
    with subprocess.Popen(["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; cat"],
                          stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as busy:  # fmt: skip
        try:
            assert busy.pid in usage.descendants(os.getpid())
            status = {
                "hub_pid": os.getpid(), "view_pid": 2**22 + 1, "requests": 7, "fetches": 3,
                "cache_bytes": 10, "counters": {"read": 4, "lookup": 5, "bugs": 1},
            }  # fmt: skip
            found = usage.read(status, store_pid=busy.pid)
            assert (found.requests, found.asked, found.fetches, found.fetched) == (9, 7, 3, 10)
            assert found.cpu_view == 0
            assert found.cpu_hub > 0
        finally:
            busy.kill()


def test_the_share_of_others_is_a_share() -> None:
    """How busy the machine is lies between nothing and everything."""
    assert 0 <= usage.busy_share(0.05) <= 1


# -- tables


TABLE = Table(
    "warm",
    "again",
    "generated pages (seed 1)",
    20,
    3 << 20,
    2,
    ["plain copy", "plain script"],
    [
        Row("grep -r", "plain copy", 10.0, [10.0, 10.0], {"plain copy": 1.0}, 5),
        Row(
            "grep -r",
            "chromafuse",
            11.0,
            [11.0, 11.0],
            {"plain copy": 1.1, "plain script": 0.01},
            4,
            Usage(1234, 20, 3, 2 << 20, 0.5, 0.25, 0.125),
            "printed 4 lines, not 5",
            [1200, 1268],
        ),
    ],
    [("rg", "no rg here")],
    {"grep -r": 2},
    0.34,
)


def test_rows_have_ratios_to_what_ran_and_say_what_differs() -> None:
    """A row is the median of its runs, its ratios, its median cost, and a note where the output differs."""
    runs = {
        "base": [Run(1.0, 5), Run(3.0, 5), Run(2.0, 5)],
        "other": [Run(2.0, 4, Usage(1)), Run(3.0, 4, Usage(5)), Run(4.0, 4, Usage(3))],
        "absent": [],
    }
    assert results.rows_of("find", runs, ["base", "absent"]) == [
        Row("find", "base", 2000.0, [1000.0, 3000.0, 2000.0], {"base": 1.0}, 5),
        Row(
            "find",
            "other",
            3000.0,
            [2000.0, 3000.0, 4000.0],
            {"base": 2.0},
            4,
            Usage(3),
            "printed 4 lines, not 5",
            [1, 5, 3],
        ),
    ]


def test_a_table_survives_its_json() -> None:
    """What is written to a file is read back the same."""
    assert results.from_json(json.loads(json.dumps(results.to_json(TABLE)))) == TABLE


def test_a_later_run_replaces_its_own_tables_only() -> None:
    """A file keeps one table for each question and corpus, and everything else it holds."""
    key = {"question": "warm", "corpus": "x", "files": 1}
    old = {"machine": 1, "memory": [1], "tables": [{**key, "n": 1}, {**key, "files": 2, "n": 2}]}
    new = {"machine": 2, "tables": [{**key, "n": 3}]}
    assert results.merge(old, new) == {
        "machine": 2,
        "memory": [1],
        "tables": [{**key, "files": 2, "n": 2}, {**key, "n": 3}],
    }


def test_the_main_table_is_that_of_real_pages() -> None:
    """Of several corpora the real one counts, else the smallest."""

    def table(what: str, files: int) -> Table:
        return Table("warm", "", what, files, 0, 1, [])

    real, small, large = (
        table("2 sites", 9),
        table("generated pages", 1),
        table("generated pages", 99),
    )
    assert results.main_tables([small, real, large]) == {"warm": real}
    assert results.main_tables([large, small]) == {"warm": small}


def printed(grid: Any) -> list[str]:
    """Return a grid as text, without its rules."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(grid)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return [" ".join(line.replace("│", "|").replace("┃", "|").split()) for line in lines
            if not line.startswith(("┏", "┡", "└"))]  # fmt: skip


def test_the_printed_table() -> None:
    """The whole table as a person sees it."""
    assert printed(results.grid(TABLE)) == [
        "again; 20 files, 3 MB, generated pages (seed 1); medians of 2; others used 34% of the CPU",
        "| work | on | ms | / plain copy | / plain script | requests | to hub | fetches | MB fetched "
        "| CPU ms view / hub / store / index |",
        "| grep -r | plain copy | 10.0 | 1.00 | | | | | | |",
        "| grep -r | chromafuse (printed 4 lines, not 5) | 11.0 | 1.10 | 1/100 "
        "| 1,234 (1,200..1,268) | 20 | 3 | 2.0 | 500 / 250 / 125 / 0 |",
        "| grep -r | 2 rounds disturbed and repeated | | | | | | | | |",
        "| rg | left out: no rg here | | | | | | | | |",
    ]


def test_targets_are_met_missed_or_not_measured() -> None:
    """A ratio over its limit or one request too many misses a target; without a figure nothing is claimed."""

    def row(work: str, ratio: float, requests: float) -> Row:
        return Row(work, "chromafuse", 1.0, [1.0], {"plain copy": ratio}, 1, Usage(requests))

    rows = [row("grep -r", 1.1, 0), row("find", 1.1, 1), row("ls -lR", 1.2, 0)]
    table = Table("warm", "", "x", 1, 1, 1, ["plain copy"], rows)
    memory = [{"pages": 4_000, "after_walk": {"view": {"private": 12.5}, "hub": {"private": 1}}}]
    found = {one.target: (one.found, one.met) for one in targets.verdicts([table], memory)}
    assert len(found) == len(targets.TARGETS) + 3
    assert {name: one for name, one in found.items() if one[1] is not None} == {
        "warm: grep -r, against plain copy": ("1.10, 0 requests", True),
        "warm: find, against plain copy": ("1.10, 1 requests", False),
        "warm: ls -lR, against plain copy": ("1.20, 0 requests", False),
        "memory: private, view, 4,000 pages": ("12.5 MB", False),
    }
    assert {one for one in found.values() if one[1] is None} == {("not measured", None)}


def test_tables_go_into_texts_where_they_belong() -> None:
    """A marked place gets its table, what stands around it stays, and doing it again changes nothing."""
    document = {"machine": {"cores": "2"}, "memory": [], "tables": [results.to_json(TABLE)]}
    text = "Before.\n<!-- bench: warm -->\nold\n<!-- end -->\nAfter. <!-- other -->\n"
    text += "<!-- bench: machine -->\n<!-- end -->\n<!-- bench: warm 20 -->\n<!-- end -->\n"
    table = (
        "20 files, 3 MB, generated pages (seed 1), medians of 2; others used 34% of the CPU when it began."
        "\n\n| | on | ms | / plain copy | / plain script | requests | to hub | fetches | MB |"
        " CPU ms: view / hub / store / index |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| `grep -r` | plain copy | 10.0 | 1.00 | | | | | | |\n"
        "| | chromafuse; printed 4 lines, not 5 | 11.0 | 1.10 | 1/100 | 1,234 (1,200..1,268) | 20 | 3 | 2.0 |"
        " 500 / 250 / 125 / 0 |\n"
        "\nLeft out: rg: no rg here.\n"
    )
    filled = markdown.fill(text, document)
    assert filled.replace("|  |", "| |").replace("|  |", "| |") == (
        f"Before.\n<!-- bench: warm -->\n{table}<!-- end -->\nAfter. <!-- other -->\n"
        f"<!-- bench: machine -->\ncores 2\n<!-- end -->\n<!-- bench: warm 20 -->\n{table}<!-- end -->\n"
    )
    assert markdown.fill(filled, document) == filled


def test_the_summary_sets_the_mount_beside_the_copy() -> None:
    """The README's table has our mount, the copy, their ratio and the requests, in people's units."""

    def table(question: str, ms: float) -> dict[str, Any]:
        rows = [
            Row("rg", "plain copy", 50.0, [50.0], {"plain copy": 1.0}, 1),
            Row("rg", "chromafuse", ms, [ms], {"plain copy": ms / 50}, 1, Usage(1200)),
        ]
        return results.to_json(Table(question, "", "2 sites", 9, 9, 1, ["plain copy"], rows))

    document = {"tables": [table("warm", 55.0), table("first", 150.0), table("cold", 1500.0)]}
    filled = markdown.fill("<!-- bench: summary -->\n<!-- end -->", document)
    assert filled.splitlines()[1:-1] == [
        "|  | mount | plain copy | ratio | requests to the view |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| `rg`, again | 55 ms | 50 ms | 1.10 | 1,200 |",
        "| `rg`, first; pages in the hub | 150 ms | 50 ms | 3.00 | 1,200 |",
        "| `rg`, first; nothing cached anywhere | 1.5 s | 50 ms | 30.00 | 1,200 |",
    ]


def test_a_place_without_a_table_is_an_error() -> None:
    """A text that asks for a question that was not measured is not filled with nothing."""
    with pytest.raises(KeyError, match="cold"):
        markdown.fill("<!-- bench: cold -->\n<!-- end -->\n", {"tables": []})


# -- the picture


def figures() -> dict[str, Any]:
    """Return a small file of results."""
    rows = {"plain copy": 72.0, "chromafuse": 75.5, "just-bash, in memory": 51_000.0, "odd": 1.0}
    warm = Table(
        "warm", "", "2 sites", 4248, 41_000_000, 1, ["plain copy"],
        [Row("rg", name, ms, [ms], {}, 1) for name, ms in rows.items()],
    )  # fmt: skip
    return {"tables": [results.to_json(warm)]}


def test_the_picture_shows_what_was_measured() -> None:
    """The picture has a heading, an axis and a bar for each known contender; bars grow with the logarithm."""
    svg = ET.fromstring(picture.draw(figures()))
    name = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in svg.iter(f"{name}text")] == [
        *("logarithmic scale", "10 ms", "100 ms", "1 s", "10 s", "100 s"),
        "rg over 4,248 pages, 41 MB",
        *("plain copy on disk", "72 ms"),
        *("chromafuse, again", "76 ms"),
        *("just-bash, pages in its memory", "51 s"),
    ]
    bars = [(bar.get("class"), float(bar.get("width", 0))) for bar in svg.iter(f"{name}rect")]
    assert [kind for kind, _ in bars] == ["copy bar", "ours bar", "other bar"]
    decade = (picture.WIDTH - 420) / 4
    assert [round(width / decade, 2) for _, width in bars] == [0.86, 0.88, 3.71]


def test_the_picture_follows_light_and_dark() -> None:
    """Every colour has its counterpart for dark mode, and nothing is painted behind."""
    text = picture.draw(figures())
    light, dark = text.split("</style>")[0].split("@media (prefers-color-scheme: dark)")
    assert light.count("#") == dark.count("#") == 6
    assert "background" not in text


def test_a_picture_of_nothing_is_refused() -> None:
    """A file without a known figure gives an error and no empty picture."""
    with pytest.raises(ValueError, match="holds nothing"):
        picture.draw({"tables": []})


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0.5, "0.5 ms"), (9.4, "9.4 ms"), (72.4, "72 ms"), (999, "999 ms"), (1000, "1 s"),
     (1449, "1.4 s"), (9_949, "9.9 s"), (51_000, "51 s")],
)  # fmt: skip
def test_times_are_said_as_people_say_them(ms: float, said: str) -> None:
    """Milliseconds below a second, seconds above, never more than three figures."""
    assert picture.time(ms) == said


# -- the command line


def parsed(*argv: str) -> tuple[list[str], int | None, int]:
    """Return what the command line asks for."""
    args = command._parser().parse_args(argv)
    return args.questions, args.pages, args.rounds


def test_the_command_line() -> None:
    """Questions, `all`, sizes by name; without words the one that needs no peers."""
    assert parsed() == (["warm"], None, 5)
    assert parsed("cold", "first", "--pages", "60k") == (["cold", "first"], 60_000, 5)
    assert parsed("warm", "--pages", "real", "--rounds", "9") == (["warm"], corpus.REAL, 9)
    assert parsed("all")[0] == [*command.QUESTIONS, "memory"]
    assert parsed("show", "a.json")[0] == ["show", "a.json"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["hot"], "no question 'hot'; --list names them"),
        (["docs", "a", "b"], "docs takes one name"),
        (["show"], "show takes one name"),
        (["--pages", "0"], "argument --pages: '0' is no number of pages"),
        (["--pages", "many"], "argument --pages: 'many' is no number of pages"),
        (["--rounds", "0"], "argument --rounds: '0' is no number of rounds"),
    ],
)
def test_a_wrong_command_line(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be asked is said in one line, and is exit 2."""
    with pytest.raises(SystemExit) as caught:
        command.main(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"python -m bench: error: {says}"


def test_the_list_names_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` says what can be asked, a line each."""
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*command.QUESTIONS, "memory", "all"]
    assert all(line.endswith(("?", ".")) for line in lines)


# -- pages and peers


def test_generated_pages_are_the_same_every_time(tmp_path: Path) -> None:
    """The generator is seeded, makes as many pages as asked for, and one in five has the word."""

    def make(name: str) -> dict[str, bytes]:
        root = tmp_path / name
        made = corpus.make(root, 40)
        pages = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.mdx")}
        assert (made.files, made.size) == (40, sum(map(len, pages.values())))
        return pages

    pages = make("a")
    assert pages == make("b")
    assert sum(corpus.WORD.encode() in page for page in pages.values()) == 8


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20_000))
def test_the_peers_get_the_same_bytes(text: str) -> None:
    """Chunks in the peers' layout, joined by line feeds, are the page."""
    assert "\n".join(plainform.chunks(text)) == text


class Rows:
    """Stands in for a Chroma collection: `get` by metadata, by text, or all."""

    def __init__(self, pages: dict[str, list[str]]) -> None:
        chunks = [(page, k, text) for page, parts in pages.items() for k, text in enumerate(parts)]
        self._rows: list[tuple[dict[str, Any] | None, str]] = [
            *(({"page": page, "chunk_index": k}, text) for page, k, text in reversed(chunks)),
            (None, "a record that is no page"),
        ]

    def count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def get(self, **how: Any) -> dict[str, list[Any]]:
        """Return rows in columns."""
        rows = [row for row in self._rows if self._fits(row, how)]
        start = how.get("offset", 0)
        rows = rows[start : start + how.get("limit", len(rows))]
        return {"metadatas": [row for row, _ in rows], "documents": [text for _, text in rows]}

    def _fits(self, row: tuple[dict[str, Any] | None, str], how: dict[str, Any]) -> bool:
        metadata, text = row
        if "where" in how:
            return metadata is not None and metadata["page"] == how["where"]["page"]
        return str(how.get("where_document", {}).get("$contains", "")) in text


def test_the_naive_class_finds_what_grep_finds() -> None:
    """The class that stands for a tutorial's is right: pages in order, chunks in order, every line."""
    files = ChromaFiles(Rows({"b.md": ["one\nword ", "here\n"], "a.md": ["no\nword\n"]}))
    assert files.list() == ["a.md", "b.md"]
    assert files.cat("b.md") == "one\nword here\n"
    assert list(files.grep("word")) == ["a.md:word", "b.md:word here"]
    assert sorted(files.contains("word")) == ["a.md:word", "b.md:word "]


# -- nothing is left behind


@pytest.fixture(name="signals")
def restored_signals() -> Iterator[None]:
    """Give the signals back that a workplace takes."""
    kept = {number: signal.getsignal(number) for number in workplace._STOPS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_a_workplace_is_gone_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory and its processes end with the block, however that ends; a killed run's are swept."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"{workplace.PREFIX}killed"
    left.mkdir()
    (left / ".lock").touch()
    started: list[subprocess.Popen[bytes]] = []

    def fail_at_work() -> None:
        with workplace.workplace() as root:
            assert [root] == list(tmp_path.iterdir())
            with workplace.child([sys.executable, "-c", "input()"]) as process:
                assert process.poll() is None
                started.append(process)
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_work()
    assert [process.poll() is None for process in started] == [False]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("signals")
def test_a_workplace_in_use_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run's directory is left alone as long as that run lives."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with workplace.workplace() as root:
        workplace.sweep()
        assert root.is_dir()
