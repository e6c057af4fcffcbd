"""Which pages can match: by the index, by the store's search, or not known; and what of it an identity is told."""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio
from hypothesis import given, settings

from chromafuse.errors import RecordDamaged, StoreRejected, StoreUnavailable
from chromafuse.hub.health import Health
from chromafuse.hub.index import Index
from chromafuse.hub.indexing import Indexing
from chromafuse.hub.loading import StoreLoad
from chromafuse.hub.prefilter import Candidates, Mode, Prefilter, Unknown, Visible, _Kept
from chromafuse.hub.scope import Scope
from chromafuse.hub.storesearch import PATTERN_MAX, NoAnswer, StoreSearch, pattern_of
from chromafuse.model.access import Access, Identity, Kind
from chromafuse.model.records import CHUNK_MAX, PathTree, cut, decode_tree
from chromafuse.search.needs import Need, Needs
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.protocol import Store
from chromafuse.store.publish import find_root, publish
from chromafuse.store.reader import load_root, load_tree
from tests.support.backends import Backend, EmbeddedBackend, ServerBackend
from tests.support.chroma_server import ChromaServer
from tests.support.corpora import corpora
from tests.support.indexed import KEY, reaches
from tests.support.memory_store import Fault, FaultyStore, MemoryStore
from tests.support.needed import fulfilling, one, trials
from tests.support.publishing import Call, Steered, plan, publish_source, run

OPERATOR = Identity(Kind.UNRESTRICTED)
STAFF = Access(False, frozenset({"staff"}))
LONG = "".join(chr(0x61 + n % 26) + f"{n:05}" for n in range(6_000))  # one line, over two chunks

SITE: dict[str, bytes] = {
    "a.md": b"about webhooks\n",
    "b.md": b"about tokens\n",
    "binary.png": b"\x89PNG\r\n\x1a\n\0\xff",
    "cut.md": (LONG + "\nend\n").encode(),
    "empty.md": b"",
    "marked.md": b"\xef\xbb\xbfabout marks\n",
    "nul.md": b"about\0nothing\n",
    "open.md": b"a last line without its end",
}
ODD = {"binary.png", "cut.md", "marked.md", "nul.md"}


async def published(store: Store, source: Mapping[str, bytes] = SITE) -> PathTree:
    """Publish a site and return its tree."""
    await publish_source(store, source)
    return await tree_of(store)


async def tree_of(store: Store) -> PathTree:
    """Return the tree that a store has published."""
    root = await load_root(store)
    return decode_tree(await load_tree(store, root), root.generation)


def paths(tree: PathTree, answer: Candidates | Unknown) -> set[str]:
    """Return the paths of candidates."""
    assert isinstance(answer, Candidates), answer
    return {entry.path for entry in tree.entries if entry.version in answer.versions}


@asynccontextmanager
async def indexed(store: Store, tree: PathTree, home: Path) -> AsyncIterator[Indexing]:
    """Give an index of a tree, built."""
    found = Indexing(home, KEY, tree.entries, StoreLoad(store, Health()), delay=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        await reaches(found, "ready")
        yield found
        nursery.cancel_scope.cancel()


def with_search(body: Callable[[FaultyStore, PathTree, Prefilter], Awaitable[None]]) -> None:
    """Run `body` on SITE with the store's search as the only prefilter."""

    async def main() -> None:
        store = FaultyStore(MemoryStore())
        tree = await published(store)
        store.calls.clear()
        await body(store, tree, Prefilter(None, StoreSearch(store, tree)))

    run(main)


# -- patterns for the store --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "pattern"),
    [
        (one("webhook"), "webhook"),
        (one("a.b*c[d]|{2}^$\\"), r"a\.b\*c\[d\]\|\{2\}\^\$\\"),
        (one("# a-b&c~d"), r"\# a\-b\&c\~d"),
        (one("kiss-1", fold=True), "[Kk\u212a][Ii\u0130\u0131][Ss\u017f][Ss\u017f]\\-1"),
        (one("short", "the longest"), "the longest"),
        ((Need((frozenset({"ab", "abcdef"}), frozenset({"abc"}))),), "abc"),
        ((Need((frozenset({"one", "two", "six"}),)),), "one|six|two"),
        (one("one") + one("two", fold=True), "one|[Tt][Ww][Oo]"),
        ((*one("one"), Need(())), None),
        (one("x"), "x"),
        (one("\u4e2d"), "\u4e2d"),
        (one("two\nlines"), None),
        (one("a\0b"), None),
        (one("caf\u00e9", fold=True), None),
        (one("\udcff"), None),
        (one("long", "two\nlines of which one is long"), "long"),
        ((Need((frozenset(),)),), None),
        (one("x" * (PATTERN_MAX + 1)), None),
    ],
)
def test_patterns_for_the_store(needs: tuple[Need, ...], pattern: str | None) -> None:
    """The best clause of each pattern becomes alternatives; what could lie across a cut becomes nothing."""
    assert pattern_of(needs) == pattern


# -- answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["index", "chroma"])
@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (one("webhook"), {"a.md"}),
        (one("ABOUT", fold=True), {"a.md", "b.md"}),
        (one("its end"), {"open.md"}),
        (one("nowhere at all"), set()),
        (one(LONG[15_990:16_010]), set()),  # cut.md, across a cut
    ],
)
def test_both_ways_give_the_same_answers(
    tmp_path: Path, source: str, needs: Needs, expected: set[str]
) -> None:
    """Pages that fulfil the needs, and those that the way says nothing of; an empty page is never one."""

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store)
        async with indexed(store, tree, tmp_path) as indexing:
            search = StoreSearch(store, tree)
            prefilter = Prefilter(indexing, search, mode=cast("Mode", source))
            answer = await prefilter.candidates(needs)
        always = ODD if source == "chroma" else ODD - {"cut.md"}
        found_by_index = {"cut.md"} if needs == one(LONG[15_990:16_010]) else set()
        assert paths(tree, answer) == expected | always | found_by_index
        assert isinstance(answer, Candidates)
        assert answer.source == source

    trio.run(main)


@given(trials())
@settings(max_examples=150)
def test_the_store_loses_no_page_that_fulfils_the_needs(
    trial: tuple[dict[bytes, bytes], tuple[Need, ...]],
) -> None:
    """For any pages and needs the store's search has what a plain look finds."""
    pages, needs = trial
    source = {f"{number}.md": page for number, page in enumerate(pages.values())}

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store, source)
        answer = await Prefilter(None, StoreSearch(store, tree)).candidates(needs)
        assert isinstance(answer, Candidates) is (not needs or pattern_of(needs) is not None)
        if isinstance(answer, Candidates):
            by_version = {entry.version: source[entry.path] for entry in tree.entries}
            assert answer.versions >= fulfilling(by_version, needs)

    run(main)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("auto", "index"),
        ("index", "index"),
        ("chroma", "chroma"),
        ("none", "filtering is switched off"),
    ],
)
def test_the_mode_chooses(tmp_path: Path, mode: Mode, expected: str) -> None:
    """auto takes the index where there is one; index and chroma take nothing else; none takes neither."""

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store)
        async with indexed(store, tree, tmp_path) as indexing:
            prefilter = Prefilter(indexing, StoreSearch(store, tree), mode=mode)
            await prefilter.run()
            for needs in (one("webhook"), ()):
                answer = await prefilter.candidates(needs)
                said = answer.source if isinstance(answer, Candidates) else answer.reason
                assert said == (expected if needs or mode == "none" else "index")

    trio.run(main)


def test_without_an_index_yet_the_store_is_searched(tmp_path: Path) -> None:
    """While the index is being built: auto searches the store, index alone knows nothing."""

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store)
        indexing = Indexing(None, KEY, tree.entries, StoreLoad(store, Health()))
        indexing.state = "building"
        search = StoreSearch(store, tree)
        answer = await Prefilter(indexing, search).candidates(one("webhook"))
        assert paths(tree, answer) == {"a.md", *ODD}
        answer = await Prefilter(indexing, search, mode="index").candidates(one("webhook"))
        assert answer == Unknown("there is no index yet")

    run(main)


def test_what_cannot_be_looked_up_is_not_known(tmp_path: Path) -> None:
    """No needs, needs of two letters for the index, and of two lines for the store: every page can match."""

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store)
        async with indexed(store, tree, tmp_path) as indexing:
            index = Prefilter(indexing, None)
            assert await index.candidates(None) == Unknown("nothing is known of what it needs")
            short = Unknown("its literals are too short or too many for the index")
            assert await index.candidates(one("to")) == short
        search = Prefilter(None, StoreSearch(store, tree))
        silent = Unknown("its literals say nothing to the store's search")
        assert await search.candidates(one("two\nlines")) == silent
        assert paths(tree, await search.candidates(one("to"))) == {"b.md", *ODD}

    trio.run(main)


def test_pages_that_may_hold_a_nul_are_named(tmp_path: Path) -> None:
    """ripgrep treats them in its own way: the index knows them, the store's search takes base64 for one."""

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store)
        scope = Scope.of(tree, OPERATOR)
        expected = {"binary.png", "nul.md"}
        async with indexed(store, tree, tmp_path) as indexing:
            for prefilter in (Prefilter(indexing, None), Prefilter(None, StoreSearch(store, tree))):
                for _ in range(2):
                    answer = await prefilter.nul_for(scope)
                    assert isinstance(answer, Visible)
                    assert set(map(scope.view.snapshot.path, answer.inodes)) == expected

    trio.run(main)


@pytest.mark.expect_log("cannot be read")
def test_an_index_that_breaks_gives_way_to_the_store(tmp_path: Path) -> None:
    """A search that finds the file broken is answered by the store, and the index is made again."""

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store)
        async with indexed(store, tree, tmp_path) as indexing:
            prefilter = Prefilter(indexing, StoreSearch(store, tree))
            assert indexing.index is not None
            path = indexing.index.path
            path.write_bytes(bytes(path.stat().st_size))  # in place
            answer = await prefilter.candidates(one("webhook"))
            assert isinstance(answer, Candidates)
            assert answer.source == "chroma"
            await reaches(indexing, "ready")
            answer = await prefilter.candidates(one("token"))
            assert isinstance(answer, Candidates)
            assert answer.source == "index"

    trio.run(main)


# -- the store's search ------------------------------------------------------------------------------------


def test_one_question_is_one_search() -> None:
    """After one survey of three searches a question is one search and a look at the root; asked again, nothing."""

    async def body(store: FaultyStore, tree: PathTree, prefilter: Prefilter) -> None:
        await prefilter.run()
        survey = [name for name, _ in store.calls]
        assert survey == ["searches_all", "get", *["search"] * 3, "tagged", "get"]
        for literals in ({"webhook"}, {"token", "mark"}, {"webhook"}):
            await prefilter.candidates((Need((frozenset(literals),)),))
        assert [name for name, _ in store.calls[len(survey) :]] == ["search", "get"] * 2

    with_search(body)


def test_a_page_that_the_search_does_not_see_is_a_candidate() -> None:
    """A chunk that no search finds makes its page a candidate for everything."""

    class Blind(MemoryStore):
        async def search(self, pattern: str) -> list[str]:
            return [id for id in await super().search(pattern) if not id.startswith(hidden)]

    hidden = "none"

    async def main() -> None:
        nonlocal hidden
        store = Blind()
        tree = await published(store)
        hidden = next(entry.version.hex() for entry in tree.entries if entry.path == "b.md")
        answer = await Prefilter(None, StoreSearch(store, tree)).candidates(one("nowhere"))
        assert paths(tree, answer) == {"b.md", *ODD}

    run(main)


def test_a_store_that_may_leave_things_out_is_not_searched() -> None:
    """Chroma Cloud and servers that do not say what they are: not known, and no search is made."""

    class Distributed(MemoryStore):
        async def searches_all(self) -> bool:
            return False

    async def main() -> None:
        store = FaultyStore(Distributed())
        tree = await published(store)
        answer = await Prefilter(None, StoreSearch(store, tree)).candidates(one("webhook"))
        assert answer == Unknown("this store's search is not known to find everything")
        assert not [name for name, _ in store.calls if name in ("search", "tagged")]

    run(main)


@pytest.mark.parametrize("before", [True, False])
def test_another_published_tree_means_that_nothing_is_known(before: bool) -> None:
    """Once a newer tree is published, parts of ours may have been collected, also while the search runs."""

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store)
        newer = {**SITE, "c.md": b"new\n"}

        async def publish_now(call: Call) -> None:
            if call.method == "search" and not before:
                steered.before = None
                await publish_source(store, newer)

        steered = Steered(store, publish_now)
        prefilter = Prefilter(None, StoreSearch(steered, tree), deadline=600)
        if before:
            await publish_source(store, newer)
        expected = Unknown("another tree is published by now")
        assert await prefilter.candidates(one("webhook")) == expected
        assert await prefilter.candidates(one("webhook")) == expected

    run(main)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailable("http://10.0.0.7: refused"), "the store does not answer"),
        (StoreRejected("http://10.0.0.7: quota"), "the store refused the search"),
    ],
)
def test_a_search_that_fails_names_nothing(error: StoreUnavailable, reason: str) -> None:
    """A failure is a reason that anybody may read, and the next question is asked again."""

    async def body(store: FaultyStore, tree: PathTree, prefilter: Prefilter) -> None:
        await prefilter.run()
        store.script.append(Fault("fail", at=4, methods=frozenset({"search"}), error=error))
        assert await prefilter.candidates(one("webhook")) == Unknown(reason)
        assert paths(tree, await prefilter.candidates(one("webhook"))) == {"a.md", *ODD}

    with_search(body)


def test_a_survey_that_fails_is_made_again() -> None:
    """A store that is down at the start is nobody's error; the first question after that makes the survey."""

    async def body(store: FaultyStore, tree: PathTree, prefilter: Prefilter) -> None:
        store.script.append(Fault("fail", at=2, methods=frozenset({"search"})))
        await prefilter.run()
        assert paths(tree, await prefilter.candidates(one("webhook"))) == {"a.md", *ODD}

    with_search(body)


def test_a_damaged_root_means_that_nothing_is_known() -> None:
    """Where it cannot be read which tree is published, nobody says that a page cannot match."""

    async def body(store: FaultyStore, tree: PathTree, prefilter: Prefilter) -> None:
        search = StoreSearch(store, tree)
        await store.delete(["__path_tree__"])
        with pytest.raises(NoAnswer, match="what is published cannot be read") as caught:
            await search.search(one("webhook"))
        assert isinstance(caught.value.__cause__, RecordDamaged)

    with_search(body)


def test_a_search_that_takes_too_long_is_given_up_for_a_while() -> None:
    """At the deadline the answer is not known; for half a minute the store is left in peace, then asked again."""

    async def body(store: FaultyStore, tree: PathTree, prefilter: Prefilter) -> None:
        await prefilter.run()
        store.script.append(Fault("hang", at=4, methods=frozenset({"search"})))
        before = trio.current_time()
        late = Unknown("it took too long to find out")
        assert await prefilter.candidates(one("webhook")) == late
        assert trio.current_time() - before == pytest.approx(0.8)
        assert await prefilter.candidates(one("webhook")) == Unknown("the store's search is slow")
        await trio.sleep(31)
        assert paths(tree, await prefilter.candidates(one("webhook"))) == {"a.md", *ODD}

    with_search(body)


# -- what an identity is told ------------------------------------------------------------------------------


async def hidden_and_not(store: Store, hidden: Mapping[str, bytes]) -> PathTree:
    """Publish SITE for everybody, and pages for staff; return the tree."""
    pages = plan(SITE) + plan(hidden, grants=STAFF)
    await publish(store, ConstantEmbedder(), pages, expected=await find_root(store))
    return await tree_of(store)


@pytest.mark.parametrize("source", ["index", "chroma"])
def test_hidden_pages_change_no_answer(tmp_path: Path, source: Mode) -> None:
    """Two trees that differ in hidden pages alone give a reader the same inodes, for every question."""
    secrets = {
        "a/secret.md": b"about webhooks\n",
        "aa.md": b"nowhere at all\n",
        "secret.png": b"\0\xff",
        "z.md": b"\xef\xbb\xbf" + LONG.encode(),
    }
    questions = (one("webhook"), one("about"), one("nowhere at all"), one(LONG[15_990:16_010]), ())

    async def told(hidden: Mapping[str, bytes], home: Path) -> list[object]:
        store = MemoryStore()
        tree = await hidden_and_not(store, hidden)
        async with indexed(store, tree, home) as indexing:
            prefilter = Prefilter(indexing, StoreSearch(store, tree), mode=source)
            scope = Scope.of(tree, Identity())
            answers = [await prefilter.candidates_for(scope, needs) for needs in questions]
            return [*answers, await prefilter.nul_for(scope)]

    async def main() -> None:
        answers = [await told({}, tmp_path / "without"), await told(secrets, tmp_path / "with")]
        assert answers[0] == answers[1]
        assert all(isinstance(answer, Visible) for answer in answers[0])

    trio.run(main)


def test_each_identity_is_told_of_its_own_view(tmp_path: Path) -> None:
    """One question of two identities: inodes of each one's view, ascending, from cache as before."""

    async def main() -> None:
        store = MemoryStore()
        tree = await hidden_and_not(store, {"a/secret.md": b"about webhooks\n"})
        async with indexed(store, tree, tmp_path) as indexing:
            prefilter = Prefilter(indexing, None)
            staff = Identity(Kind.AUTHENTICATED, frozenset({"staff"}))
            for _ in range(2):
                for identity, extra in ((Identity(), set()), (staff, {"a/secret.md"})):
                    scope = Scope.of(tree, identity)
                    answer = await prefilter.candidates_for(scope, one("webhook"))
                    assert isinstance(answer, Visible)
                    shown = list(map(scope.view.snapshot.path, answer.inodes))
                    assert list(answer.inodes) == sorted(answer.inodes)
                    assert set(shown) == {"a.md", *(ODD - {"cut.md"}), *extra}

    trio.run(main)


def test_what_the_first_question_needs_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is asked once, as soon as it is there, which row is which inode; other trees' rows are none."""
    asked: list[Index] = []

    def counted(index: Index, versions: Iterable[bytes | None]) -> array[int]:
        asked.append(index)
        return rows_of(index, versions)

    rows_of = Index.rows_of
    monkeypatch.setattr(Index, "rows_of", counted)

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store, {"other.md": b"about webhooks\n", **SITE})
        async with indexed(store, tree, tmp_path / "home"):
            pass
        tree = await published(store)
        scope = Scope.of(tree, OPERATOR)
        found = Indexing(tmp_path / "home", KEY, tree.entries, StoreLoad(store, Health()), delay=0)
        prefilter = Prefilter(found, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.run)
            await prefilter.run(scope)
            assert len(asked) == 1
            for needs in (one("webhook"), one("about")):
                answer = await prefilter.candidates_for(scope, needs)
                assert isinstance(answer, Visible)
                assert "a.md" in map(scope.view.snapshot.path, answer.inodes)
                assert len(answer.inodes) == 4 + (needs == one("about"))
            assert len(asked) == 1
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_page_that_was_withdrawn_is_no_candidate(tmp_path: Path) -> None:
    """A view that goes on with an older tree is told of no page that the published one hides."""

    async def main() -> None:
        store = MemoryStore()
        tree = await published(store)
        newer = await hidden_and_not(store, {})
        await publish(
            store,
            ConstantEmbedder(),
            plan({path: page for path, page in SITE.items() if path != "a.md"})
            + plan({"a.md": SITE["a.md"]}, grants=STAFF),
            expected=await find_root(store),
        )
        newer = await tree_of(store)
        async with indexed(store, tree, tmp_path) as indexing:
            prefilter = Prefilter(indexing, None)
            for scope, expected in (
                (Scope.of(tree, Identity()), {"a.md"}),
                (Scope.of(tree, Identity(), newer), set()),
            ):
                answer = await prefilter.candidates_for(scope, one("webhook"))
                assert isinstance(answer, Visible)
                shown = set(map(scope.view.snapshot.path, answer.inodes))
                assert shown - ODD == expected

    trio.run(main)


def test_what_is_kept_is_bounded() -> None:
    """The answers that are kept hold a bounded number of pages in all, and the one used last stays."""
    kept: _Kept[str] = _Kept(100)
    for number in range(10):
        kept.put(number, "answer", 19)
        kept.get(0)
    assert [number for number in range(10) if kept.get(number)] == [0, 6, 7, 8, 9]


# -- real Chroma -------------------------------------------------------------------------------------------


def borders(page: bytes) -> list[str]:
    """Return literals around and across every cut of a page."""
    found = []
    documents = cut(page).documents
    for before, after in itertools.pairwise(documents):
        tail, head = before[-12:], after[:12]
        if before.endswith("\n"):
            found += [tail[:-1].rpartition("\n")[2], head.partition("\n")[0]]
        else:
            found += [(tail + head)[at:][:12].rpartition("\n")[2] for at in range(1, 12, 5)]
    return [literal for literal in found if len(literal) >= 6]  # such as hardly occur elsewhere


def sample() -> dict[str, bytes]:
    """Return real pages of every kind, and some with lines over several chunks."""
    chance = random.Random(1)
    files = [
        path for path in sorted(corpora().rglob("*")) if path.is_file() and not path.is_symlink()
    ]
    large = [path for path in files if path.stat().st_size > CHUNK_MAX]
    chosen = chance.sample(files, 200) + chance.sample(large, 100)
    pages = {f"{number:03}{path.suffix}": path.read_bytes() for number, path in enumerate(chosen)}
    pages["long.md"] = (LONG + "\n").encode() * 3
    pages["wide.md"] = ("\u4e2d\u6587\U0001f600" * 4_000).encode()
    pages["mixed.md"] = b"short\n" + LONG.encode()[:CHUNK_MAX] + b"\nshort\n" + LONG.encode()
    return pages


@pytest.mark.chroma
@pytest.mark.slow
@pytest.mark.parametrize("name", ["embedded", "server"])
def test_no_literal_around_a_cut_is_lost(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In real pages, on both backends: literals at and across every cut find their page; few pages are for all."""
    backend: Backend = EmbeddedBackend(tmp_path / "store", "docs")
    if name == "server":
        server: ChromaServer = request.getfixturevalue("chroma_server")
        backend = ServerBackend(server, f"borders-{name}")
    source = sample()

    async def main() -> None:
        async with backend.open(create=True) as store:
            tree = await published(store, source)
            prefilter = Prefilter(None, StoreSearch(store, tree), deadline=30)
            await prefilter.run()
            always = paths(tree, await prefilter.candidates(one("occurs nowhere, surely")))
            assert {"long.md", "wide.md", "mixed.md"} <= always
            assert len(always) < len(source) / 4
            told = {path: borders(page) for path, page in source.items() if path not in always}
            for literals in itertools.zip_longest(*told.values()):
                # One literal of each page that has so many, all in one question: it must find all these pages.
                asked = {path: found for path, found in zip(told, literals, strict=True) if found}
                needs = (Need((frozenset(asked.values()),)),)
                assert set(asked) <= paths(tree, await prefilter.candidates(needs))

    trio.run(main)


@pytest.mark.chroma
@pytest.mark.parametrize("name", ["embedded", "server"])
def test_real_chroma_answers_as_the_memory_store_does(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Folding letters, characters with a meaning and every odd page, on both backends."""
    backend: Backend = EmbeddedBackend(tmp_path / "store", "docs")
    if name == "server":
        backend = ServerBackend(request.getfixturevalue("chroma_server"), f"prefilter-{name}")
    source = {
        **SITE,
        "fold.md": "\u212aI\u017f\u017f and k\u0131ss and K\u0130SS\n".encode(),
        "meta.md": b"a.b*c[d]|{2}^$\\ # a-b&c~d 'q' \"q\" %_\r\n",
        "wide.md": "\u4e2d\u6587 \U0001f600 e\u0301\n".encode(),
    }
    questions = (
        one("kiss", fold=True),
        one("a.b*c[d]|{2}^$\\ # a-b&c~d 'q' \"q\" %_"),
        one("\u4e2d"),
        one("\U0001f600 e\u0301"),
        one("about") + one("its end"),
        one("kiss"),
    )

    async def answers(store: Store) -> list[set[str]]:
        tree = await published(store, source)
        prefilter = Prefilter(None, StoreSearch(store, tree), deadline=30)
        return [paths(tree, await prefilter.candidates(needs)) for needs in questions]

    async def main() -> None:
        async with backend.open(create=True) as store:
            found = await answers(store)
        assert found == await answers(MemoryStore())
        assert [len(one_of - ODD) for one_of in found] == [1, 1, 1, 1, 3, 0]

    trio.run(main)
