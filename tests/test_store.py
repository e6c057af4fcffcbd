"""The contract of a store, on every implementation: memory, embedded, a server, a server with Cloud's limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chromafuse.errors import CollectionMissing, StoreRejected
from chromafuse.store.location import open_store, parse_store
from chromafuse.store.protocol import Row, Store
from tests.support.backends import Backend, EmbeddedBackend, MemoryBackend, ServerBackend, run
from tests.support.chroma_server import ChromaServer
from tests.support.quota_proxy import QuotaProxy, running_proxy

_names = (f"contract-{number}" for number in itertools.count())
REAL = [pytest.param(name, marks=pytest.mark.chroma) for name in ("embedded", "server", "cloud")]


@pytest.fixture(scope="module")
def proxy(chroma_server: ChromaServer) -> Iterator[QuotaProxy]:
    """Give a quota proxy before the shared server."""
    with running_proxy(chroma_server.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def make(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Backend]:
    """Give a function that makes a backend by its name, over a collection of its own or a named one."""
    home = tmp_path_factory.mktemp("stores")
    (home / "token").write_text(QuotaProxy.token + "\n")

    def make(name: str, collection: str | None = None, directory: Path | None = None) -> Backend:
        collection = collection or next(_names)
        if name == "memory":
            return MemoryBackend()
        if name == "embedded":
            return EmbeddedBackend(directory or home / "embedded", collection)
        server = request.getfixturevalue("chroma_server")
        if name == "server":
            return ServerBackend(server, collection)
        return ServerBackend(server, collection, request.getfixturevalue("proxy"), home / "token")

    return make


@pytest.fixture(params=["memory", *REAL])
def backend(request: pytest.FixtureRequest, make: Callable[..., Backend]) -> Backend:
    """Give each implementation in turn, with an empty collection."""
    return make(request.param)


def row(id: str, document: str = "text", **metadata: str | int | float | bool) -> Row:
    """Return a row as writers make it."""
    return Row(id, document, metadata, (1.0,))


def stored(*rows: Row) -> dict[str, Row]:
    """Return what reading `rows` gives: the same without embeddings."""
    return {row.id: Row(row.id, row.document, row.metadata) for row in rows}


def test_a_new_collection_is_empty(backend: Backend) -> None:
    """A collection just made has no rows, no dimension and no embedding function."""

    async def body(store: Store) -> None:
        info = await store.info()
        assert (info.embedding_function, info.dimension) == (None, None)
        assert await store.list_ids() == []
        assert await store.get(["a"]) == {}
        assert await store.existing(["a"]) == set()

    run(backend, body)


def test_rows_come_back_as_written(backend: Backend) -> None:
    """Documents and metadata come back with their types, embeddings do not."""
    rows = [
        row("a", "first", page="x", chunk_index=0, share=0.5, last=False),
        row("b", "second", big=2**63 - 1, small=-(2**63), text="\u2028 \x00 é e\u0301"),
        row("c", ""),
    ]

    async def body(store: Store) -> None:
        await store.add(rows)
        assert await store.get(["a", "b", "c"]) == stored(*rows)
        assert sorted(await store.list_ids()) == ["a", "b", "c"]
        assert (await store.info()).dimension == 1

    run(backend, body)


def test_ids_may_be_asked_in_any_way(backend: Backend) -> None:
    """Order, repetition and absence of ids do not matter, and no ids give no rows."""
    rows = [row(f"{number:03}", str(number)) for number in range(20)]
    asked = ["absent", *(row.id for row in reversed(rows)), "003", "also absent", "003"]

    async def body(store: Store) -> None:
        await store.add(rows)
        assert await store.get(asked) == stored(*rows)
        assert await store.existing(asked) == {row.id for row in rows}
        assert await store.get([]) == {}
        assert await store.existing([]) == set()
        await store.add([])
        await store.delete([])

    run(backend, body)


def test_add_keeps_what_exists(backend: Backend) -> None:
    """Adding an id that exists changes nothing; within one call the first row of an id counts."""

    async def body(store: Store) -> None:
        await store.add([row("a", "old", n=1)])
        await store.add([row("a", "new", n=2), row("b", "first"), row("b", "second")])
        assert await store.get(["a", "b"]) == stored(row("a", "old", n=1), row("b", "first"))

    run(backend, body)


def test_upsert_replaces(backend: Backend) -> None:
    """An upsert replaces the document and the metadata it names; in one call the last row of an id counts."""

    async def body(store: Store) -> None:
        await store.add([row("a", "old", n=1, kept=True)])
        await store.upsert([row("a", "new", n=2), row("b", "first"), row("b", "second")])
        assert await store.get(["a", "b"]) == stored(
            row("a", "new", n=2, kept=True), row("b", "second")
        )

    run(backend, body)


def test_delete_ignores_what_is_absent(backend: Backend) -> None:
    """Deleting removes what exists and does not mind what does not."""

    async def body(store: Store) -> None:
        await store.add([row("a"), row("b")])
        await store.delete(["b", "absent", "b"])
        assert await store.list_ids() == ["a"]

    run(backend, body)


def test_long_calls_are_cut(backend: Backend) -> None:
    """More rows than a request carries are written, read and deleted in several requests."""
    rows = [row(f"{number:04}", str(number), n=number) for number in range(703)]
    ids = [row.id for row in rows]

    async def body(store: Store) -> None:
        await store.add(rows)
        assert sorted(await store.list_ids()) == ids
        assert await store.get(ids) == stored(*rows)
        assert await store.existing([*ids, "absent"]) == set(ids)
        await store.delete(ids[1:])
        assert await store.list_ids() == ids[:1]

    run(backend, body, rows_per_call=100)


NASTY = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "\r",
    "a\r\nb",
    "\ufeffbom",
    "\u2028\u2029\u0085",
    "e\u0301",
    "\U0010ffff",
    "tail  \n",
]


def test_text_survives_byte_for_byte(backend: Backend) -> None:
    """Whatever Unicode text goes in, as document or metadata value, comes out the same."""
    texts = st.lists(
        st.one_of(st.sampled_from(NASTY), st.text(st.characters(codec="utf-8"))), max_size=40
    )
    numbers = itertools.count()

    async def body(store: Store) -> None:
        async def check_one(texts: list[str]) -> None:
            rows = [row(f"t{next(numbers)}", text, text=text) for text in texts]
            await store.add(rows)
            assert await store.get([row.id for row in rows]) == stored(*rows)

        @settings(max_examples=15)
        @given(texts)
        def check(texts: list[str]) -> None:
            trio.from_thread.run(check_one, texts)

        await check_one(NASTY)
        await trio.to_thread.run_sync(check)

    run(backend, body)


REFUSED = {
    "no id": Row("", "x", {}, (1.0,)),
    "no embedding": Row("r", "x"),
    "surrogate": row("r", "\ud800"),
    "surrogate in an id": row("\udc80"),
    "surrogate in metadata": row("r", "x", key="\udfff"),
    "not a number": row("r", "x", n=math.nan),
    "infinite": row("r", "x", n=-math.inf),
    "65 bits": row("r", "x", n=2**63),
}


def test_rows_that_chroma_would_alter_are_refused(backend: Backend) -> None:
    """A row that would be lost or changed on its way is refused before anything of the call is written."""

    async def body(store: Store) -> None:
        for bad in REFUSED.values():
            for write in (store.add, store.upsert):
                with pytest.raises(StoreRejected):
                    await write([row("fine"), bad])
        assert await store.list_ids() == []

    run(backend, body)


def test_another_dimension_is_refused(backend: Backend) -> None:
    """Vectors of another length than the collection's are refused."""

    async def body(store: Store) -> None:
        await store.add([row("a")])
        with pytest.raises(StoreRejected):
            await store.add([Row("b", "x", {}, (1.0, 2.0))])
        assert await store.list_ids() == ["a"]

    run(backend, body)


def test_many_tasks_share_a_store(backend: Backend) -> None:
    """Fifty readers at once each get their own rows."""
    rows = [row(f"{number}", f"text {number}") for number in range(50)]

    async def body(store: Store) -> None:
        await store.add(rows)

        async def read(wanted: Row) -> None:
            assert await store.get([wanted.id]) == stored(wanted)

        async with trio.open_nursery() as nursery:
            for wanted in rows:
                nursery.start_soon(read, wanted)

    run(backend, body)


def test_cancelled_calls_do_no_harm(backend: Backend) -> None:
    """A caller that gives up at any moment leaves the store answering the others rightly."""
    rows = [row(f"{number}", f"text {number}" * 100) for number in range(200)]
    ids = [row.id for row in rows]

    async def body(store: Store) -> None:
        await store.add(rows)
        for step in range(12):
            with trio.move_on_after(0.001 * step):
                await store.get(ids)
            wanted = rows[step]
            assert await store.get([wanted.id]) == stored(wanted)

    run(backend, body)


def test_a_collection_made_anew_is_found(backend: Backend) -> None:
    """After the collection was removed and made again, the open store works on the new one."""

    async def body(store: Store) -> None:
        await store.add([row("a")])
        before = await store.info()
        await trio.to_thread.run_sync(backend.recreate)
        assert await store.get(["a"]) == {}
        await store.add([row("b")])
        assert await store.list_ids() == ["b"]
        after = await store.info()
        assert (after.name, after.id != before.id) == (before.name, True)

    run(backend, body)


def test_a_removed_collection_is_missing(backend: Backend) -> None:
    """After the collection was removed every call says so; none makes it again or answers "nothing"."""

    async def body(store: Store) -> None:
        await store.add([row("a")])
        await trio.to_thread.run_sync(backend.remove)
        calls: list[Callable[[], object]] = [
            store.info,
            store.list_ids,
            lambda: store.get(["a"]),
            lambda: store.existing(["a"]),
            lambda: store.add([row("a")]),
            lambda: store.upsert([row("a")]),
            lambda: store.delete(["a"]),
        ]
        for call in calls:
            with pytest.raises(CollectionMissing):
                await call()  # type: ignore[misc]

    run(backend, body)


@pytest.mark.parametrize("name", REAL)
def test_opening_makes_nothing(name: str, make: Callable[..., Backend]) -> None:
    """Opening without `create` reports a missing collection, twice: the first time did not make it."""
    run(make(name), _nothing)  # the store itself is there
    missing = make(name)
    for _ in range(2):
        with pytest.raises(CollectionMissing):
            run(missing, _nothing, create=False)


@pytest.mark.parametrize("name", REAL)
def test_creating_keeps_what_exists(name: str, make: Callable[..., Backend]) -> None:
    """Opening with `create` an existing collection changes nothing, and reading needs no `create`."""
    backend = make(name)

    async def fill(store: Store) -> None:
        await store.add([row("a")])

    async def look(store: Store) -> None:
        assert await store.get(["a"]) == stored(row("a"))

    run(backend, fill)
    run(backend, look)
    run(backend, look, create=False)


async def _nothing(store: Store) -> None:
    """Open and close."""


MANY = 33_000  # over the 32,766 variables of one SQL statement


@pytest.fixture(scope="module")
def filled(chroma_server: ChromaServer) -> tuple[Path, str]:
    """Give a directory and a collection of MANY rows in it, which the shared server serves as well."""
    directory = chroma_server.directory / "data"
    collection = next(_names)

    async def main() -> None:
        location = parse_store(str(directory), collection=collection)
        async with open_store(location, create=True, deadline=60, rows_per_call=5_000) as store:
            await store.add([row(f"{number:05}", "x", n=number) for number in range(MANY)])

    trio.run(main)
    return directory, collection


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_more_rows_than_sql_variables(
    name: str, make: Callable[..., Backend], filled: tuple[Path, str]
) -> None:
    """All of 33,000 rows are listed, found and read."""
    directory, collection = filled
    ids = [f"{number:05}" for number in range(MANY)]

    async def body(store: Store) -> None:
        assert sorted(await store.list_ids()) == ids
        assert await store.existing(ids) == set(ids)
        rows = await store.get(ids)
        assert rows == {id: Row(id, "x", {"n": number}) for number, id in enumerate(ids)}

    run(make(name, collection, directory), body, create=False)


# -- searching


SEARCHED = [
    row("plain", "one Needle in a line\nand another line\n", encoding="base64"),
    row("nul", "a\0 Needle behind a NUL\n", encoding="other"),
    row("mark", "\ufeffbegins with a mark\n"),
    row("open", "no line feed at the end, \u212a \u017f \u0131 \u0130", page="encoding"),
    row("odd", "\r\n\t % _ \\ * ( ] é e\u0301 \u2028 😀 \U0010ffff\n"),
]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("Needle", {"plain", "nul"}),
        ("needle", set()),
        ("[Nn]eedle|begins", {"plain", "nul", "mark"}),
        (r"[kK\u212a] [sS\u017f] [iI\u0131\u0130] [iI\u0131\u0130]", {"open"}),
        (r"\x00", {"nul"}),
        (r"\A\ufeff", {"mark"}),
        (r"[^\n]\z", {"open"}),
        (r"(?s:.)", {"plain", "nul", "mark", "open", "odd"}),
        (r"% _ \\ \* \( \] é e\u0301 \u2028 😀 \U0010ffff", {"odd"}),
    ],
)
def test_a_search_finds_every_document_that_matches(
    backend: Backend, pattern: str, expected: set[str]
) -> None:
    """A regular expression finds the rows it matches in and no other, whatever characters are in the way."""

    async def body(store: Store) -> None:
        await store.add(SEARCHED)
        assert set(await store.search(pattern)) == expected

    run(backend, body)


def test_rows_are_found_by_their_metadata(backend: Backend) -> None:
    """One key with one value finds the rows that have it; the same word elsewhere does not count."""

    async def body(store: Store) -> None:
        await store.add(SEARCHED)
        assert await store.tagged("encoding", "base64") == ["plain"]
        assert await store.tagged("encoding", "none") == []

    run(backend, body)


@pytest.mark.parametrize("name", REAL)
def test_a_pattern_that_is_none_is_refused(make: Callable[..., Backend], name: str) -> None:
    """What the engine cannot take for a regular expression is an error, never an empty answer."""

    async def body(store: Store) -> None:
        await store.add(SEARCHED)
        with pytest.raises(StoreRejected):
            await store.search("(")

    run(make(name), body)


def test_only_a_store_on_sqlite_is_said_to_search_everything(backend: Backend) -> None:
    """A directory and a server of one machine do; what has Cloud's limits is not trusted with it."""

    async def body(store: Store) -> None:
        assert await store.searches_all() is (getattr(backend, "name", "") != "cloud")

    run(backend, body)
    run(backend, body, rows_per_call=7)
