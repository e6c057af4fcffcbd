"""Ingest over a collection in memory: plan, guards, report, and that a refused run writes nothing."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given

from chromafuse.errors import UsageError, UserError
from chromafuse.ingest.plan import (
    AccessChange,
    RemovalLimit,
    make_plan,
    parse_max_delete,
    refusal_of,
)
from chromafuse.model.access import AUTHENTICATED, HIDDEN, PUBLIC, Access, Identity, Kind
from chromafuse.model.records import ROOT_ID, PathTree, TreeEntry, decode_tree, encode_tree
from chromafuse.store.protocol import Row
from tests.support.ingesting import (
    Shelf,
    as_nobody,
    make_checkout,
    parse,
    run_ingest,
    start_ingest,
    write_tree,
)
from tests.support.publishing import Call

GROUP = Access(groups=frozenset({"billing"}))


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Give a place without a collection, which every run of the test opens."""
    return Shelf().put_on(monkeypatch)


def refused(shelf: Shelf, source: Path, *arguments: str) -> str:
    """Run ingest, which has to refuse and to write nothing; return its one line."""
    rows = shelf.rows
    with pytest.raises(UserError) as caught:
        run_ingest(source, *arguments)
    assert caught.value.exit_code == 1
    assert shelf.rows == rows
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pages(count: int, start: int = 0) -> dict[str, bytes]:
    """Return a source of `count` pages."""
    return {f"p{n:03}.md": b"page %d\n" % n for n in range(start, start + count)}


# -- the plan ------------------------------------------------------------------------------------------

ENTRIES = st.dictionaries(
    st.sampled_from(["a.md", "a/b.md", "a-b.md", "c.md", "ü.md", "z/z/z.md"]),
    st.tuples(
        st.sampled_from([b"1" * 16, b"2" * 16]),
        st.sampled_from([PUBLIC, AUTHENTICATED, HIDDEN, GROUP]),
        st.integers(-5, 5),
    ),
)
IDENTITIES = [
    Identity(),
    Identity(Kind.AUTHENTICATED),
    Identity(Kind.AUTHENTICATED, frozenset({"billing"})),
]
Drawn = dict[str, tuple[bytes, Access, int]]


def entries(drawn: Drawn) -> list[TreeEntry]:
    """Return tree entries, in no order that means anything."""
    return [TreeEntry(path, access, v, 1, 3, at) for path, (v, access, at) in drawn.items()]


def tree(drawn: Drawn, generation: int = 1) -> PathTree:
    """Return the tree as a reader gets it."""
    return decode_tree(encode_tree(entries(drawn)), generation)


@given(st.none() | ENTRIES, ENTRIES)
def test_a_plan_is_the_source(old: Drawn | None, new: Drawn) -> None:
    """Whatever was published, the planned tree is the source; only times of equal pages are kept."""
    before = tree(old) if old is not None else None
    plan = make_plan(before, entries(new))
    read_back = decode_tree(encode_tree(plan.entries), 2)
    assert read_back.entries == plan.entries
    times = {entry.path: entry.mtime_ns for entry in tree(new).entries}
    for entry in tree(old or {}).entries:
        if entry.path in new and new[entry.path][0] == entry.version:
            times[entry.path] = entry.mtime_ns
    assert {e.path: (e.version, e.access, e.mtime_ns) for e in plan.entries} == {
        path: (version, access, times[path]) for path, (version, access, _) in new.items()
    }


@given(ENTRIES, ENTRIES)
def test_a_plan_names_every_difference(old: Drawn, new: Drawn) -> None:
    """Each page is added, changed, kept or removed, and its readers are compared as sets."""
    plan = make_plan(tree(old), entries(new))
    assert set(plan.added) == set(new) - set(old)
    assert set(plan.removed) == set(old) - set(new)
    assert set(plan.changed) == {p for p in set(old) & set(new) if old[p][0] != new[p][0]}
    assert plan.kept == len(set(old) & set(new)) - len(plan.changed)
    assert {change.path for change in plan.access} == {
        p for p in set(old) & set(new) if old[p][1] != new[p][1]
    }
    assert {change.path for change in plan.widened} == {
        p
        for p in set(old) & set(new)
        if any(new[p][1].admits(who) and not old[p][1].admits(who) for who in IDENTITIES)
    }


@given(ENTRIES, st.integers(-9, 9))
def test_the_second_plan_changes_nothing(drawn: Drawn, shift: int) -> None:
    """A source with the same bytes and other file times plans the very tree that is published."""
    clone = {path: (v, access, at + shift) for path, (v, access, at) in drawn.items()}
    plan = make_plan(tree(drawn), entries(clone))
    assert encode_tree(plan.entries) == encode_tree(entries(drawn))
    assert (plan.added, plan.changed, plan.removed, plan.access) == ((), (), (), ())


@pytest.mark.parametrize(
    ("removed", "published", "limit", "allowed"),
    [
        (0, 0, None, True),
        (10, 10, None, True),
        (11, 11, None, False),
        (11, 109, None, False),
        (11, 110, None, True),
        (100, 1000, None, True),
        (101, 1000, None, False),
        (0, 5, "0", True),
        (1, 5, "0", False),
        (50, 60, "50", True),
        (51, 60, "50", False),
        (30, 60, "50%", True),
        (31, 60, "50%", False),
        (60, 60, "100%", True),
        (1, 60, "0%", False),
    ],
)
def test_removal_guard(removed: int, published: int, limit: str | None, allowed: bool) -> None:
    """More than 10 pages that are more than 10 % need --max-delete, which then is the limit."""
    every = {f"{n}.md": (b"1" * 16, PUBLIC, 1) for n in range(published)}
    rest = dict(list(every.items())[removed:])
    plan = make_plan(tree(every), entries(rest))
    reason = refusal_of(plan, None if limit is None else parse_max_delete(limit))
    assert (reason == "") == allowed


def test_damaged_entries_count_as_published() -> None:
    """Entries that no reader can read are removed by the next run, and the guard counts them."""
    canonical = json.dumps({f"{n}.md": {} for n in range(20)}).encode()
    plan = make_plan(decode_tree(canonical, 1), entries({"a.md": (b"1" * 16, PUBLIC, 1)}))
    assert (plan.published, len(plan.removed)) == (20, 20)
    assert refusal_of(plan, None) != ""


@pytest.mark.parametrize(
    ("text", "limit"), [("0", (0, False)), ("25", (25, False)), ("100%", (100, True))]
)
def test_max_delete(text: str, limit: tuple[int, bool]) -> None:
    """--max-delete is a number or a percentage."""
    assert parse_max_delete(text) == RemovalLimit(*limit)


@pytest.mark.parametrize("text", ["", "-1", "x", "101%", "10 %", "1e3", "%", "٣"])
def test_max_delete_that_is_none(text: str) -> None:
    """What is neither is wrong usage."""
    with pytest.raises(UsageError) as caught:
        parse_max_delete(text)
    assert str(caught.value) == (
        f"--max-delete is a number of pages, or a percentage up to 100%, not {text!r}"
    )


# -- a run ---------------------------------------------------------------------------------------------


def test_pages_come_back(shelf: Shelf, tmp_path: Path) -> None:
    """What was ingested is what is published, byte for byte, and nothing more."""
    files = {
        "a.md": b"a\r\n",
        "a/ü b.md": b"\xef\xbb\xbfx",
        "bin": bytes(range(256)) * 100,
        "empty": b"",
        "nul": b"\0",
        "long": b"x" * 100_000,
    }
    result, _ = run_ingest(write_tree(tmp_path, files))
    assert shelf.pages() == files
    assert result.published is not None
    assert (result.published.generation, result.plan.added) == (
        1,
        ("a/ü b.md", "a.md", "bin", "empty", "long", "nul"),
    )


def test_the_second_run_writes_nothing(shelf: Shelf, tmp_path: Path) -> None:
    """The same source again, also as a fresh clone with other file times, calls no writing method."""
    run_ingest(write_tree(tmp_path / "one", pages(20)))
    rows = shelf.rows
    result, output = run_ingest(write_tree(tmp_path / "two", pages(20)))
    assert [call for call in shelf.calls if call.method in ("add", "upsert", "delete")] == []
    assert shelf.rows == rows
    assert result.published is not None
    assert result.published.generation == 1
    assert output.splitlines()[-1] == "nothing to do: generation 1 is this source already"


def test_a_change_writes_what_changed(shelf: Shelf, tmp_path: Path) -> None:
    """One page changed, one removed, one added: two chunks are written and the time of the rest stays."""
    run_ingest(write_tree(tmp_path / "one", pages(20)))
    two = write_tree(tmp_path / "two", pages(20) | {"p003.md": b"new\n", "q.md": b"q\n"})
    (two / "p007.md").unlink()
    result, output = run_ingest(two)
    assert result.published is not None
    assert (result.published.generation, result.published.written_chunks) == (2, 2)
    assert "1 added, 1 changed, 1 removed, 18 kept; access of 0 changed" in output.splitlines()
    assert (result.plan.added, result.plan.changed, result.plan.removed) == (
        ("q.md",),
        ("p003.md",),
        ("p007.md",),
    )


def test_access_alone_writes_no_chunk(shelf: Shelf, tmp_path: Path) -> None:
    """Other readers of the same bytes are another tree over the same chunks; what widens is told."""
    source = write_tree(tmp_path, pages(3))
    run_ingest(source)
    chunks = {id for id in shelf.rows if not id.startswith("__")}
    acl = tmp_path.parent / "acl.toml"
    acl.write_text(
        "[[rule]]\nglob = 'p000.md'\naccess = 'public'\n[[rule]]\nglob = 'p001.md'\naccess = 'hidden'\n"
    )
    result, output = run_ingest(source, "--acl", str(acl))
    assert result.published is not None
    assert (result.published.generation, result.published.written_chunks) == (2, 0)
    assert {id for id in shelf.rows if not id.startswith("__")} == chunks
    assert result.plan.access == (
        AccessChange("p000.md", AUTHENTICATED, PUBLIC),
        AccessChange("p001.md", AUTHENTICATED, HIDDEN),
    )
    assert output.splitlines()[-6:] == [
        "0 added, 0 changed, 0 removed, 3 kept; access of 2 changed",
        "access widened:",
        "  p000.md (authenticated -> public)",
        "access narrowed:",
        "  p001.md (authenticated -> hidden)",
        "published generation 2: 0 chunks written, 3 already there, 0 old records collected",
    ]


def test_half_a_source_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    """A source that lost its pages is refused with the numbers and the flag, and goes in with the flag."""
    run_ingest(write_tree(tmp_path / "all", pages(40)))
    half = write_tree(tmp_path / "half", pages(20))
    line = (
        "this would remove 20 of 40 published pages (50 %); is SRC complete? If so, allow it with "
        "--max-delete 20"
    )
    assert refused(shelf, half) == line
    assert refused(shelf, half, "--max-delete", "19") == line
    assert refused(shelf, half, "--dry-run") == line
    run_ingest(half, "--max-delete", "50%")
    assert shelf.pages() == pages(20)


@pytest.mark.parametrize("published", [False, True])
def test_a_dry_run_writes_nothing(shelf: Shelf, tmp_path: Path, published: bool) -> None:
    """A dry run prints the report of the real one but for its last line, and makes no store."""
    source = write_tree(tmp_path / "src", pages(3))
    if published:
        run_ingest(write_tree(tmp_path / "old", pages(2)))
    rows = shelf.rows
    result, dry = run_ingest(source, "--dry-run")
    assert result.published is None
    assert (shelf.rows, shelf.store is not None) == (rows, published)
    real = run_ingest(source)[1]
    assert dry.splitlines()[-1] == "dry run; nothing was written"
    assert dry.splitlines()[:-1] == real.splitlines()[:-1]


# -- the report ----------------------------------------------------------------------------------------

SITE = {
    "public.md": b"---\npublic: true\n---\n",
    "both.md": b"---\ngroups: [billing, admin]\n---\n",
    "bill.md": b"---\ngroups: [billing]\n---\n12345",
    "plain.md": b"12345",
    "broken.md": b"---\ngroups: billing\n---\n",
    "docs.json": b"{}",
    ".hidden.md": b"x",
    "drop.md": b"x",
}


def report(tmp_path: Path, *arguments: str) -> str:
    """Ingest a small site that has one of each kind, and return the report."""
    source = write_tree(tmp_path / "src", SITE)
    (source / "link.md").symlink_to("plain.md")
    acl = tmp_path / "acl.toml"
    acl.write_text("[[rule]]\nglob = '/nothing/'\naccess = 'hidden'\n")
    return run_ingest(source, "--acl", str(acl), "--exclude", "drop.md", *arguments)[1]


def test_report(shelf: Shelf, tmp_path: Path) -> None:
    """The report says who sees how much, what was left out and why, and what came of it."""
    assert report(tmp_path) == (
        "access                 pages  bytes\n"
        "public                     1     21\n"
        "authenticated              1      5\n"
        "groups admin, billing      1     33\n"
        "groups billing             1     31\n"
        "hidden                     2     26\n"
        "\n"
        "seen by        pages  bytes\n"
        "anonymous          1     21\n"
        "authenticated      2     26\n"
        "group admin        3     59\n"
        "group billing      4     90\n"
        "operator           6    116\n"
        "\n"
        "6 added, 0 changed, 0 removed, 0 kept; access of 0 changed\n"
        "lists of pages, for the operator alone as no rule names them:\n"
        "  docs.json\n"
        "skipped:\n"
        "  link.md (a symbolic link)\n"
        "left out: 1 dot-names, 1 by --include and --exclude\n"
        "warning: broken.md: groups is text, not a list: for the operator alone\n"
        "warning: rule 1 of the ACL file ('/nothing/') matches no file\n"
        "published generation 1: 6 chunks written, 0 already there, 0 old records collected\n"
    )


def test_report_as_json(shelf: Shelf, tmp_path: Path) -> None:
    """--json is one document with all of it."""
    assert json.loads(report(tmp_path, "--json")) == {
        "dry_run": False,
        "refused": None,
        "outcome": "published generation 1: 6 chunks written, 0 already there, 0 old records collected",
        "generation": 1,
        "written_chunks": 6,
        "reused_chunks": 0,
        "collected_records": 0,
        "access": [
            {"access": "public", "pages": 1, "bytes": 21},
            {"access": "authenticated", "pages": 1, "bytes": 5},
            {"access": "groups admin, billing", "pages": 1, "bytes": 33},
            {"access": "groups billing", "pages": 1, "bytes": 31},
            {"access": "hidden", "pages": 2, "bytes": 26},
        ],
        "seen_by": [
            {"identity": "anonymous", "pages": 1, "bytes": 21},
            {"identity": "authenticated", "pages": 2, "bytes": 26},
            {"identity": "group admin", "pages": 3, "bytes": 59},
            {"identity": "group billing", "pages": 4, "bytes": 90},
            {"identity": "operator", "pages": 6, "bytes": 116},
        ],
        "added": ["bill.md", "both.md", "broken.md", "docs.json", "plain.md", "public.md"],
        "changed": [],
        "removed": [],
        "kept": 0,
        "access_changed": [],
        "lists_withheld": ["docs.json"],
        "opened_by_front_matter": [],
        "skipped": [{"path": "link.md", "reason": "a symbolic link"}],
        "left_out": {"dot_names": 1, "by_globs": 1},
        "warnings": [
            "broken.md: groups is text, not a list: for the operator alone",
            "rule 1 of the ACL file ('/nothing/') matches no file",
        ],
    }


def test_a_refusal_reports_before_it_ends(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a refused run tells what it would have removed; long lists are cut."""
    run_ingest(write_tree(tmp_path / "all", pages(40)))
    half = write_tree(tmp_path / "half", pages(10))
    output = io.StringIO()

    async def main() -> None:
        await start_ingest(half, output=output)

    with pytest.raises(UserError):
        trio.run(main)
    lines = output.getvalue().splitlines()
    assert lines[-24:-20] == [
        "0 added, 0 changed, 30 removed, 10 kept; access of 0 changed",
        "removed:",
        "  p010.md",
        "  p011.md",
    ]
    assert lines[-2:] == ["  … and 10 more (--json names all)", "refused; nothing was written"]


# -- bad input -----------------------------------------------------------------------------------------


def test_nothing_to_publish(shelf: Shelf, tmp_path: Path) -> None:
    """A source that is absent, empty, or emptied by globs is refused, on a full collection too."""
    empty = tmp_path / "empty"
    empty.mkdir()
    dots = write_tree(tmp_path / "dots", {".a": b"", "b.txt": b""})
    for _ in ("without a collection", "with one"):
        assert refused(shelf, empty) == "SRC has no file in it; nothing was published"
        assert refused(shelf, dots, "--include", "*.md", "--max-delete", "100%") == (
            "SRC has no page to publish: all it has is left out (1 dot-names, 1 by --include and "
            "--exclude, 0 that cannot go in)"
        )
        assert refused(shelf, tmp_path / "no") == f"there is no directory {tmp_path}/no; check SRC"
        run_ingest(write_tree(tmp_path / "src", pages(2)))


def test_an_unreadable_file_stops_everything(shelf: Shelf, mount_root: Path) -> None:
    """One file that cannot be read, and no store is made."""
    source = write_tree(mount_root / "src", pages(3))
    (source / "p001.md").chmod(0)
    with as_nobody():
        line = refused(shelf, source)
    assert line == (
        "cannot read p001.md: Permission denied; make it readable, or leave it out with --exclude"
    )
    assert shelf.store is None


def test_source_and_store_are_one(shelf: Shelf, tmp_path: Path) -> None:
    """A directory is not ingested into itself; a store below the source is left out of it."""
    source = write_tree(tmp_path, pages(2))
    with pytest.raises(UserError) as caught:
        run_ingest(source, store=source)
    assert str(caught.value) == f"SRC and STORE are one directory, {source}; give STORE its own"
    write_tree(source, {"db/chroma.sqlite3": b""})
    run_ingest(source, store=source / "db")
    assert shelf.pages() == pages(2)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--max-delete", "x"],
            "--max-delete is a number of pages, or a percentage up to 100%, not 'x'",
        ),
        (["--include", "!a"], "--include '!a' begins with '!'; say what is meant, not what is not"),
    ],
)
def test_wrong_usage(shelf: Shelf, tmp_path: Path, arguments: list[str], line: str) -> None:
    """A wrong flag is said before anything is looked at."""
    with pytest.raises(UsageError) as caught:
        run_ingest(tmp_path / "no", *arguments)
    assert (str(caught.value), shelf.calls) == (line, [])


def test_a_wrong_acl_file_is_said_first(shelf: Shelf, tmp_path: Path) -> None:
    """The ACL file is read before the source and the store."""
    (tmp_path / "acl.toml").write_text("[[rule]]")
    with pytest.raises(UsageError) as caught:
        run_ingest(tmp_path / "no", "--acl", str(tmp_path / "acl.toml"))
    assert str(caught.value) == f"{tmp_path}/acl.toml: rule 1: has no glob"


def test_words_are_checked_by_the_parser() -> None:
    """--default-access, --mtime and --embed take their words and no others."""
    for flag in ("--default-access", "--mtime", "--embed"):
        with pytest.raises(argparse.ArgumentError, match="invalid choice: 'x'"):
            parse(flag, "x")


# -- the collection ------------------------------------------------------------------------------------


def test_collections_of_others_are_refused(shelf: Shelf, tmp_path: Path) -> None:
    """A collection with another's records, or another's embedding function, is not written to."""
    source = write_tree(tmp_path, pages(2))
    run_ingest(source)
    assert shelf.store is not None
    shelf.store.embedding_function = "sentence_transformer"
    assert "'sentence_transformer', so another program made it" in refused(shelf, source)
    shelf.store.embedding_function = "default"
    run_ingest(source)
    shelf.store.rows = {"a": Row("a", "x", {}, (1.0,))}
    assert "1 records that are not chromafuse's" in refused(shelf, source)


def test_another_embedding_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    """--embed cannot be switched on an existing collection; a dry run says so too."""
    source = write_tree(tmp_path, pages(2))
    run_ingest(source)
    line = (
        "the collection 'docs' was ingested with --embed none, not default; use --embed none, or another "
        "--collection"
    )
    assert refused(shelf, source, "--embed", "default", "--dry-run") == line


def test_a_damaged_tree_is_replaced_only_on_request(shelf: Shelf, tmp_path: Path) -> None:
    """Where the published tree cannot be read, no guard can hold, and --max-delete has to allow it."""
    source = write_tree(tmp_path, pages(2))
    run_ingest(source)
    assert shelf.store is not None
    assert shelf.store.rows is not None
    part = next(id for id in shelf.store.rows if id.startswith(f"{ROOT_ID}:"))
    del shelf.store.rows[part]
    line = refused(shelf, source)
    assert line == (
        "1 of the path tree's 1 parts are missing; nobody can tell what this run would remove. To replace the "
        "damaged tree by this source, give --max-delete 100%"
    )
    output = run_ingest(source, "--max-delete", "100%")[1]
    assert shelf.pages() == pages(2)
    assert (
        "warning: the published tree is damaged and its pages are not compared: 1 of the path tree's 1 parts "
        "are missing"
    ) in output.splitlines()


# -- while it runs -------------------------------------------------------------------------------------


def test_a_page_that_changes_before_it_is_written(shelf: Shelf, tmp_path: Path) -> None:
    """A page that is not what was planned when its chunks are written ends the run; nothing is visible."""
    source = write_tree(tmp_path, pages(3))

    async def change(call: Call) -> None:
        if call.method == "add":
            (source / "p002.md").write_bytes(b"changed\n")

    shelf.before = change
    with pytest.raises(UserError) as caught:
        run_ingest(source)
    assert str(caught.value) == "p002.md has changed since the run began; run again"
    assert ROOT_ID not in shelf.rows


def test_another_writer_between_plan_and_publication(shelf: Shelf, tmp_path: Path) -> None:
    """The plan is made again against what the other writer published, and its guard holds against that."""
    run_ingest(write_tree(tmp_path / "old", pages(2)))
    source = write_tree(tmp_path / "src", pages(3))
    other = write_tree(tmp_path / "other", pages(30))

    async def overtake(call: Call) -> None:
        if call.method == "info":  # the published root was read, the plan is not made yet
            shelf.before = None
            await start_ingest(other)

    shelf.before = overtake
    with pytest.raises(UserError, match=r"^this would remove 27 of 30 published pages \(90 %\)"):
        run_ingest(source)
    assert shelf.pages() == pages(30)


def test_writers_that_never_stop(shelf: Shelf, tmp_path: Path) -> None:
    """A run that is overtaken at every attempt gives up with one line."""
    source = write_tree(tmp_path / "src", pages(3))
    others = []

    async def overtake(call: Call) -> None:
        if call.method == "info":
            shelf.before = None
            others.append(write_tree(tmp_path / str(len(others)), pages(4 + len(others))))
            await start_ingest(others[-1])

    shelf.before = overtake
    with pytest.raises(UserError, match=r"^other writers keep publishing \(planned against"):
        run_ingest(source)
    assert shelf.pages() == pages(3 + len(others))


def test_git_times(shelf: Shelf, tmp_path: Path) -> None:
    """--mtime git gives pages the time of their last commit, and tells of those without one."""
    site = make_checkout(tmp_path)
    write_tree(site, {"new.md": b"x"})
    result, output = run_ingest(site, "--mtime", "git")
    assert {e.path: e.mtime_ns // 10**9 for e in result.plan.entries if e.path != "new.md"} == {
        "a.md": 1_100_000_000,
        "b c/ü\n.md": 1_000_000_000,
    }
    assert "warning: no commit has new.md: the file's own time is used" in output.splitlines()
