"""Verifying a collection: every page against its digest, and a report of what else lies there."""

from __future__ import annotations

import dataclasses
import hashlib

import orjson
import pytest

from chromafuse.errors import NotPublished, RecordDamaged, StoreUnavailable
from chromafuse.model.records import (
    ROOT_ID,
    decode_root,
    encode_root,
    page_version,
    split_tree,
)
from chromafuse.store.protocol import Row
from chromafuse.store.verify import Report, verify
from tests.support.memory_store import MemoryStore
from tests.support.publishing import Call, Source, Steered, plan, publish_source, run

VECTOR = (1.0,)
BIG = b"a line of text\n" * 1_000  # 4 chunks
SITE: Source = {"a.md": b"a\n", "big.md": BIG, "bin": b"\xff\0", "empty": b"", "z/é.md": b"z\n"}


def site(rows_per_call: int = 300) -> MemoryStore:
    """Return a store in which SITE is published."""
    store = MemoryStore(rows_per_call=rows_per_call)
    run(lambda: publish_source(store, SITE))
    return store


def chunk(path: str, index: int = 0) -> str:
    """Return the id of a chunk of SITE."""
    return f"{page_version(path, SITE[path]).hex()}:{index}"


def put(store: MemoryStore, id: str, document: str) -> None:
    """Replace the document of a stored record."""
    store.rows[id] = dataclasses.replace(store.rows[id], document=document)


def clean(store: MemoryStore) -> Report:
    """Return the report of a store in which SITE is whole."""
    root = decode_root(store.rows[ROOT_ID].document)
    size = sum(map(len, SITE.values()))
    return Report(root.generation, root.sha256, 5, 7, size, (), (), 0, 0)


@pytest.mark.parametrize("rows", [1, 3, 300])
def test_a_whole_collection_has_no_problems(rows: int) -> None:
    """Pages, chunks and bytes are counted, whatever fits into one call; nothing is written."""
    store = site(rows)
    steered = Steered(store)
    assert run(lambda: verify(steered)) == clean(store)
    assert steered.writes == []


def test_the_report_as_json() -> None:
    """The JSON form says first whether all is right, and names the lists' fields."""
    report = Report(3, "ab", 2, 3, 4, (("a", "gone"),), (("b", "b~page"),), 5, 6)
    assert orjson.loads(orjson.dumps(report.to_json())) == {
        "ok": False,
        "generation": 3,
        "sha256": "ab",
        "pages": 2,
        "chunks": 3,
        "bytes": 4,
        "problems": [{"path": "a", "why": "gone"}],
        "renamed": [{"path": "b", "shown": "b~page"}],
        "orphans": 5,
        "foreign": 6,
    }


def test_each_damage_is_named_by_its_page() -> None:
    """A wrong byte, a lost chunk, a lost page, a wrong encoding: the page, and what is wrong with it."""
    store = site()
    put(store, chunk("a.md"), "b\n")
    del store.rows[chunk("big.md", 2)]
    del store.rows[chunk("z/é.md")]
    put(store, chunk("bin"), "not base64!")
    expected = dataclasses.replace(
        clean(store),
        bytes=0,
        problems=(
            ("a.md", f"stored bytes do not have the digest {chunk('a.md')[:32]}"),
            ("big.md", "1 of 4 chunks missing"),
            ("bin", "a binary chunk is not base64: Only base64 data is allowed"),
            ("z/é.md", "none of its 1 chunks is stored"),
        ),
    )
    assert run(lambda: verify(store)) == expected


def test_entries_that_cannot_be_shown_are_problems() -> None:
    """What the tree itself gets wrong is in the same list, and counts as a page."""
    store = MemoryStore()
    good = plan({"good": b"g"})[0].entry
    record = {"isPublic": True, "v": good.version.hex(), "n": 1, "size": 1, "mtime": 5}
    tree = {"../up": record, "good": record, "worse": 7}
    publish_tree(store, tree)
    store.rows[good.chunk_ids()[0]] = Row(good.chunk_ids()[0], "g", {}, VECTOR)
    report = run(lambda: verify(store))
    assert (report.pages, report.bytes, report.problems) == (
        3,
        1,
        (("../up", "a '..' in the path"), ("worse", "its record is a JSON int, not an object")),
    )


def publish_tree(store: MemoryStore, tree: dict[str, object]) -> None:
    """Store a tree that no publisher would write."""
    canonical = orjson.dumps(tree)
    parts, digest = split_tree(canonical)
    assert digest == hashlib.sha256(canonical).hexdigest()
    run(lambda: publish_source(store, {}))
    root = dataclasses.replace(
        decode_root(store.rows[ROOT_ID].document),
        sha256=digest,
        parts=len(parts),
        size=len(canonical),
    )
    document, metadata = encode_root(root)
    store.rows[ROOT_ID] = Row(ROOT_ID, document, metadata, VECTOR)
    for id, part in zip(root.part_ids(), parts, strict=True):
        store.rows[id] = Row(id, part, {}, VECTOR)


def test_collisions_are_reported_and_are_no_problem() -> None:
    """A page and a directory of one name: the report says what an unrestricted mount shows."""
    store = MemoryStore()
    run(lambda: publish_source(store, {"a": b"1", "a/b": b"2"}))
    report = run(lambda: verify(store))
    assert (report.ok, report.renamed) == (True, (("a", "a~page"),))


def test_records_that_the_tree_does_not_need_are_counted() -> None:
    """Chunks and parts of replaced trees are orphans; records of no format of ours are foreign."""
    store = MemoryStore()
    run(lambda: publish_source(store, {"old": BIG}))
    run(lambda: publish_source(store, SITE))
    store.rows["note-1"] = Row("note-1", "text", {}, VECTOR)
    expected = dataclasses.replace(clean(store), orphans=4 + 1, foreign=1)
    assert run(lambda: verify(store)) == expected


@pytest.mark.parametrize("number", [2, 3])
def test_a_tree_replaced_meanwhile_is_read_again(number: int) -> None:
    """Parts and pages collected because a new tree was published are no damage: the new tree is verified."""
    store = MemoryStore()
    run(lambda: publish_source(store, {"old": b"old"}))

    async def replace(call: Call) -> None:
        if call.number == number:
            await publish_source(store, SITE, grace=0)

    assert run(lambda: verify(Steered(store, replace))) == clean(store)


def test_a_tree_that_is_always_replaced_is_reported_as_it_was() -> None:
    """After three trees the last one is reported; verifying ends."""
    store = MemoryStore()
    run(lambda: publish_source(store, {"0": b"0"}))

    async def replace(call: Call) -> None:
        if call.method == "get" and not call.ids[0].startswith("__"):
            await publish_source(store, {f"{call.number}": b"x"}, grace=0)

    report = run(lambda: verify(Steered(store, replace)))
    assert [why for _, why in report.problems] == ["none of its 1 chunks is stored"]


def test_what_cannot_be_verified_at_all_is_an_error() -> None:
    """No root, a lost part, an unreachable store: an exception, not a report."""
    with pytest.raises(NotPublished):
        run(lambda: verify(MemoryStore()))
    store = site()
    part = decode_root(store.rows[ROOT_ID].document).part_ids()[0]
    kept = store.rows.pop(part)
    with pytest.raises(RecordDamaged, match="1 of the path tree's 1 parts are missing"):
        run(lambda: verify(store))
    store.rows[part] = kept

    async def fail(call: Call) -> None:
        if call.number == 3:
            raise StoreUnavailable("gone")

    with pytest.raises(StoreUnavailable):
        run(lambda: verify(Steered(store, fail)))


def test_progress_counts_the_pages() -> None:
    """Progress goes from none to all of the pages."""
    seen: list[tuple[str, int, int]] = []
    store = site(4)
    run(lambda: verify(store, progress=lambda *step: seen.append(step)))
    assert seen == [("verify", n, 5) for n in (0, 1, 2, 5)]


def test_pages_without_chunks_are_counted_in_steps_too() -> None:
    """A thousand empty pages are no single step."""
    seen: list[int] = []
    store = MemoryStore(rows_per_call=2)
    run(lambda: publish_source(store, {f"{n}": b"" for n in range(5)}))
    run(lambda: verify(store, progress=lambda stage, done, total: seen.append(done)))
    assert seen == [0, 2, 4, 5]
