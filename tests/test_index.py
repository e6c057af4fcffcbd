"""The index file: no match is lost, nothing damaged is believed, nobody else may read it, and it stays small."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings

from chromafuse.hub import index as index_module
from chromafuse.hub.index import (
    LITERAL_TERMS,
    Index,
    IndexDamaged,
    Trait,
    Writer,
    match_expression,
    open_newest,
    sealed_files,
    traits_of,
)
from chromafuse.model.records import page_version
from chromafuse.search.needs import Need, Needs
from tests.support.needed import fulfilling, one, trials, with_trigrams

KEY = "collection"


def search(index: Index, needs: Needs) -> set[bytes] | None:
    """Return the versions that an index has for needs."""
    rows = index.search(needs)
    return None if rows is None else set(index.versions_of(rows))


def build(
    directory: Path, pages: Mapping[bytes, bytes], live: Mapping[bytes, bytes] | None = None
) -> Path:
    """Build and seal an index of pages; return its file."""
    writer = Writer(directory, KEY, list(pages if live is None else live))
    missing = writer.missing(pages)
    writer.add([(version, pages[version]) for version in missing])
    path = writer.seal()
    writer.drop()
    return path


def versions(*pages: bytes) -> dict[bytes, bytes]:
    """Return pages by their versions."""
    return {page_version(f"{number}.md", page): page for number, page in enumerate(pages)}


SITE = versions(
    b"about webhooks\n", b"about tokens\n", b"caf\xe9\n", b"\xef\xbb\xbfmarked\n", b"a\0b\n", b""
)
WEBHOOKS, TOKENS, *ODD = SITE
ODD = ODD[:3]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Give an index of SITE."""
    found = Index.open(build(tmp_path, SITE))
    yield found
    found.close()


# -- what it answers ---------------------------------------------------------------------------------------


@given(trials())
@settings(max_examples=200)
def test_no_page_that_fulfils_the_needs_is_left_out(
    trial: tuple[dict[bytes, bytes], tuple[Need, ...]],
) -> None:
    """For any pages and needs the answer holds what a plain look finds, and the pages with traits."""
    pages, needs = trial
    with tempfile.TemporaryDirectory() as home:
        index = Index.open(build(Path(home), pages))
        found = search(index, needs)
        always, nul = index.versions_of(index.always), index.versions_of(index.nul)
        index.close()
    special = {version for version, page in pages.items() if traits_of(page)}
    assert always == special
    assert nul == {version for version, page in pages.items() if b"\0" in page}
    if found is not None:
        assert found >= fulfilling(pages, needs)


@given(trials())
@settings(max_examples=200)
def test_the_answer_is_what_trigrams_can_say(
    trial: tuple[dict[bytes, bytes], tuple[Need, ...]],
) -> None:
    """The answer is exactly the pages with all trigrams, and those with traits; None where there is no trigram."""
    pages, needs = trial
    special = {version for version, page in pages.items() if traits_of(page)}
    plain = {version: page for version, page in pages.items() if version not in special}
    with tempfile.TemporaryDirectory() as home:
        index = Index.open(build(Path(home), pages))
        found = search(index, needs)
        index.close()
    expected = with_trigrams(plain, needs)
    assert found == (expected | special if needs and expected is not None else expected)


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (one("webhook"), {WEBHOOKS, *ODD}),
        (one("WEBHOOK", fold=True), {WEBHOOKS, *ODD}),
        (one("about", "token"), {TOKENS, *ODD}),
        (one("absent"), {*ODD}),
        (one("about", "to"), {WEBHOOKS, TOKENS, *ODD}),  # two letters are no trigram
        ((Need((frozenset({"webhook", "token"}),)),), {WEBHOOKS, TOKENS, *ODD}),
        (one("webhook") + one("token"), {WEBHOOKS, TOKENS, *ODD}),
        (one("marked", "webhook"), {*ODD}),
        ((), set()),
        (one("to"), None),
        (one("caf\u00e9", fold=True), None),  # a letter that every tool folds in its own way
        (one("webhook") + one("to"), None),
        ((Need((frozenset({"webhook", "to"}),)),), None),
        ((Need(()),), None),
        ((Need((frozenset(),)),), None),
        (one("a\0b"), None),
        (one("\udcff\udcfe\udcfd"), None),
        (None, None),
    ],
)
def test_what_needs_mean(
    index: Index, needs: tuple[Need, ...] | None, expected: set[bytes] | None
) -> None:
    """AND and OR mean what needs say; what cannot be told is None; pages with traits are always there."""
    assert search(index, needs) == expected


@pytest.mark.parametrize(
    ("page", "traits"),
    [
        (b"", Trait(0)),
        ("plain, \u4e2d\u6587, \U0001f600\r\n".encode(), Trait(0)),
        (b"a\0", Trait.NUL),
        (b"\xef\xbb\xbfa", Trait.MARK),
        ("utf-16".encode("utf-16"), Trait.NUL | Trait.MARK | Trait.ENCODING),
        ("utf-16".encode("utf-16-be"), Trait.NUL),
        (b"caf\xe9", Trait.ENCODING),
        (b"cut \xe2\x82", Trait.ENCODING),
        (b"\xed\xa0\x80", Trait.ENCODING),  # a surrogate
    ],
)
def test_traits_are_told_from_the_bytes(page: bytes, traits: Trait) -> None:
    """NUL, a byte order mark and what is no UTF-8 are seen; nothing else is."""
    assert traits_of(page) == traits


def test_a_long_literal_is_looked_up_by_some_of_its_trigrams() -> None:
    """The number of terms is bounded, for one literal and for all, and the terms are spread over the literal."""
    long = "".join(chr(0x4E00 + number) for number in range(1_000))
    expression = match_expression(one(long))
    assert expression is not None
    assert LITERAL_TERMS - 4 < expression.count(" AND ") + 1 <= LITERAL_TERMS
    assert max(map(long.find, expression)) > 900
    words = frozenset(f"word {number:05}" for number in range(1_000))
    assert match_expression((Need((words,)),)) is None


def test_a_word_list_is_one_query(tmp_path: Path) -> None:
    """Hundreds of patterns at once are answered."""
    pages = versions(*(b"the number %d of all\n" % number for number in range(1_000)))
    index = Index.open(build(tmp_path, pages))
    needs = tuple(one(f"number {number} of")[0] for number in range(0, 1_000, 4))
    found = search(index, needs)
    index.close()
    assert found is not None
    assert fulfilling(pages, needs) <= found < set(pages)


# -- files -------------------------------------------------------------------------------------------------


def modes(directory: Path) -> dict[str, int]:
    """Return the modes of what lies in a directory, by suffix."""
    return {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Under a umask of zero what is being written and what is sealed is 0600; nothing else is left."""
    before = os.umask(0)
    try:
        writer = Writer(tmp_path, KEY, list(SITE))
        writer.add(SITE.items())
        writer.seal()
        assert modes(tmp_path) == {".index": 0o600, ".work": 0o600}
        writer.drop()
    finally:
        os.umask(before)
    assert modes(tmp_path) == {".index": 0o600}


def test_only_what_is_new_is_added(tmp_path: Path) -> None:
    """A new tree's pages come to those that are there; the file before is gone, and who has it open goes on."""
    first = build(tmp_path, SITE)
    old = Index.open(first)
    new = versions(b"about gateways\n")
    writer = Writer(tmp_path, KEY, [*SITE, *new])
    assert writer.missing([*SITE, *new]) == list(new)
    writer.add(new.items())
    second = writer.seal()
    writer.drop()
    assert sealed_files(tmp_path, KEY) == [second]
    index = Index.open(second)
    assert search(index, one("about")) == {WEBHOOKS, TOKENS, *new, *ODD}
    assert search(old, one("about")) == {WEBHOOKS, TOKENS, *ODD}
    assert (index.missing([*SITE, *new]), old.missing([*SITE, *new])) == ([], list(new))
    old.close()
    index.close()


@pytest.mark.parametrize(("dead", "kept"), [(29, True), (30, False)])
def test_a_file_with_three_dead_rows_in_ten_is_begun_anew(
    tmp_path: Path, dead: int, kept: bool
) -> None:
    """Below that share rows of other trees stay, at it nothing of the old file is taken over."""
    pages = versions(*(b"page number %d\n" % number for number in range(100)))
    live = dict(list(pages.items())[dead:])
    index = Index.open(build(tmp_path, pages))
    assert index.worn(live) is not kept
    index.close()
    writer = Writer(tmp_path, KEY, live)
    assert writer.missing(pages) == ([] if kept else list(pages))
    writer.drop()


def test_what_was_not_sealed_is_not_there(tmp_path: Path) -> None:
    """A builder that dies leaves the last sealed file as it was; the next one removes what it left."""
    path = build(tmp_path, SITE)
    before = path.read_bytes()
    dead = Writer(tmp_path, KEY, list(SITE))
    dead.add(versions(b"of no use", b"at all", b"whatsoever").items())
    left = [name for name in os.listdir(tmp_path) if name.endswith(".work")]
    assert (len(left), path.read_bytes() == before) == (1, True)
    writer = Writer(tmp_path, KEY, list(SITE))
    assert left[0] not in os.listdir(tmp_path)
    assert writer.missing(SITE) == []
    writer.drop()
    dead.drop()
    assert os.listdir(tmp_path) == [path.name]


def test_the_newest_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the bound the index of the collection that was not used for longest goes."""
    monkeypatch.setattr(index_module, "KEPT", 2)
    for age, key in enumerate(("first", "second", "third")):
        writer = Writer(tmp_path, key, list(SITE))
        writer.add(SITE.items())
        os.utime(writer.seal(), (age, age) if key != "third" else None)
        writer.drop()
    assert sorted(path.name.split(".")[0] for path in tmp_path.iterdir()) == ["second", "third"]


def test_a_seal_is_due_after_so_much_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seal comes after SEAL_BYTES, each later one when half as much again was added."""
    monkeypatch.setattr(index_module, "SEAL_BYTES", 100)
    writer = Writer(tmp_path, KEY, [])
    sealed_at = []
    for number in range(100):
        writer.add(versions(b"%010d" % number).items())
        if writer.due:
            writer.seal()
            sealed_at.append(number + 1)
    assert (sealed_at, writer.worth_it) == ([10, 20, 30, 45, 68], True)
    writer.drop()


# -- damage ------------------------------------------------------------------------------------------------


def test_no_flipped_bit_is_believed(tmp_path: Path) -> None:
    """Any one bit that differs, wherever in the file, makes it no index."""
    path = build(tmp_path, SITE)
    whole = path.read_bytes()
    for at in range(0, len(whole), 997):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(IndexDamaged, match="does not have the digest"):
            Index.open(path)


@pytest.mark.parametrize("kept", [0, 1, 100, 4_096, -1])
def test_a_cut_file_is_not_believed(tmp_path: Path, kept: int) -> None:
    """A file that was cut is thrown away with a reason, and an older whole one would be used."""
    path = build(tmp_path, SITE)
    path.write_bytes(path.read_bytes()[:kept])
    index, wrong = open_newest(tmp_path, KEY)
    assert (index, wrong) == (None, [f"{path} does not have the digest that it is named by"])
    assert list(tmp_path.iterdir()) == []


def named_by_its_digest(path: Path) -> Path:
    """Give a file the name that its content asks for."""
    digest = index_module._digest(path)
    return path.rename(path.with_name(f"{KEY}.{digest}.index"))


@pytest.mark.parametrize(
    "setting", ["user_version = 99", "application_id = 1"], ids=["format", "program"]
)
def test_a_file_of_another_format_is_not_used(tmp_path: Path, setting: str) -> None:
    """A whole file that says it is something else is passed over."""
    path = build(tmp_path, SITE)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA {setting}")
    connection.close()
    path = named_by_its_digest(path)
    index, wrong = open_newest(tmp_path, KEY)
    assert (index, wrong) == (None, [f"{path} has another format"])


def test_a_file_that_is_no_database_is_not_used(tmp_path: Path) -> None:
    """Any other file under a right name is passed over, and so are a link and a pipe."""
    (tmp_path / "x").write_bytes(b"no database" * 1_000)
    path = named_by_its_digest(tmp_path / "x")
    with pytest.raises(IndexDamaged, match="file is not a database"):
        Index.open(path)
    link, pipe = (tmp_path / f"{KEY}.{letter * 64}.index" for letter in "ab")
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        Index.open(link)
    os.mkfifo(pipe)
    with pytest.raises(IndexDamaged, match="is not a regular file"):
        Index.open(pipe)


def test_a_file_that_breaks_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    """A search in a file that somebody overwrote ends as damage, not as an answer."""
    pages = versions(*(b"page %d of many %d\n" % (number, number**3) for number in range(3_000)))
    path = build(tmp_path, pages)
    index = Index.open(path)
    with open(path, "r+b") as stream:
        stream.write(bytes(path.stat().st_size))
    with pytest.raises(IndexDamaged, match="cannot be read"):
        search(index, one("many 27 "))
    index.close()


def test_a_closed_index_is_an_error(index: Index) -> None:
    """A search that comes too late is told so, and asks the next index."""
    index.close()
    with pytest.raises(IndexDamaged):
        search(index, one("webhook"))


def test_an_index_that_nobody_can_read_is_passed_over(tmp_path: Path) -> None:
    """A file that cannot be opened is named, and left alone."""
    path = tmp_path / f"{KEY}.{'a' * 64}.index"
    path.symlink_to("elsewhere")
    index, wrong = open_newest(tmp_path, KEY)
    assert (index, len(wrong), path.is_symlink()) == (None, 1, True)
