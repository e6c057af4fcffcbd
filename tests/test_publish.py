"""Publishing over a store in memory: what becomes visible, when, and what is left when a writer stops."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable

import hypothesis
import hypothesis.strategies as st
import pytest
import trio

from chromafuse.errors import LockBusy, LockLost, StoreUnavailable, UserError
from chromafuse.model import access
from chromafuse.model.records import ROOT_ID, Root, decode_root, decode_tree, encode_root
from chromafuse.store import garbage
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.lock import hold_lock, lock_id
from chromafuse.store.protocol import Row
from chromafuse.store.publish import PlannedPage, Published, TreeChanged, find_root, publish
from chromafuse.store.reader import load_root, load_tree
from chromafuse.store.verify import verify
from tests.support.memory_store import MemoryStore
from tests.support.publishing import (
    Call,
    Dying,
    Killed,
    Source,
    Steered,
    needed_ids,
    plan,
    publish_source,
    published_source,
    run,
)

VECTOR = (1.0,)
LONG = b"".join(b"%d and some text that fills the line\n" % i for i in range(300))  # 3 chunks
OLD: Source = {"a.md": b"old\n", "dir/b.md": LONG, "same.md": b"same\n", "empty.md": b""}
NEW: Source = {
    "a.md": b"new\n",
    "dir/b.md": LONG + b"more\n",
    "same.md": b"same\n",
    "bin": b"\xff\0" * 9,
}


def store_with(source: Source | None) -> MemoryStore:
    """Return a store in which `source` is published."""
    store = MemoryStore()
    if source is not None:
        run(lambda: publish_source(store, source))
    return store


def run_root(store: MemoryStore) -> Root:
    """Decode the root of a store in memory without a call."""
    return decode_root(store.rows[ROOT_ID].document)


def incident(
    store: MemoryStore, error: type[BaseException], main: Callable[[], Awaitable[object]]
) -> str:
    """Run `main`, which has to raise `error` and write nothing; return the message."""
    before = dict(store.rows)
    with pytest.raises(error) as caught:
        run(main)
    assert store.rows == before
    return str(caught.value)


# -- what is published


@pytest.mark.parametrize("old", [None, {}, OLD, NEW], ids=["nothing", "empty", "old", "new"])
@pytest.mark.parametrize("new", [{}, OLD, NEW], ids=["empty", "old", "new"])
def test_what_is_published_is_read_back(old: Source | None, new: Source) -> None:
    """After publishing, the pages of the new source and no others are there, byte for byte."""
    store = store_with(old)
    run(lambda: publish_source(store, new))
    assert run(lambda: published_source(store)) == new


def test_only_what_is_new_is_written() -> None:
    """Chunks that are there are used again; the answer counts both kinds."""
    store = store_with(OLD)
    steered = Steered(store)
    done = run(lambda: publish_source(steered, NEW))
    assert done == Published(generation=2, written_chunks=5, reused_chunks=1, collected=0)
    added = [id for call in steered.writes if call.method == "add" for id in call.ids]
    assert set(added) == {lock_id(2)} | needed_ids(run(lambda: load_root(store)), NEW) - set(
        run(lambda: load_root(store)).part_ids()
    ) - needed_ids(run(lambda: load_root(store)), OLD) - {ROOT_ID}


def test_a_second_run_writes_nothing() -> None:
    """Publishing what is published makes no call that writes, and says so."""
    steered = Steered(store_with(OLD))
    done = run(lambda: publish_source(steered, OLD))
    assert (done, steered.writes) == (Published(1, 0, 5, 0), [])


def test_entries_are_stored_as_they_are_given() -> None:
    """Access and time of a page are the caller's decision, also where its bytes are as before."""
    store = store_with(OLD)
    pages = plan(OLD, grants=access.Access(False, frozenset({"g"})), mtime_ns=7)

    async def main() -> list[tuple[access.Access, int]]:
        await publish(store, ConstantEmbedder(), pages, expected=await load_root(store))
        tree = decode_tree(await load_tree(store, await load_root(store)), 2)
        return [(entry.access, entry.mtime_ns) for entry in tree.entries]

    assert run(main) == [(access.Access(False, frozenset({"g"})), 7)] * len(OLD)


def test_many_chunks_and_parts() -> None:
    """Over 300 chunks and a tree in several parts are written in calls of rows_per_call rows."""
    source = {f"{i:04}/{'x' * 99}{i * 7919 % 9973}.md": b"%d\n" % i for i in range(900)}
    store = MemoryStore(rows_per_call=100)
    steered = Steered(store)
    done = run(lambda: publish_source(steered, source))
    root = run(lambda: load_root(store))
    assert done == Published(1, 900, 0, 0)
    assert root.parts > 1
    assert [len(c.items) for c in steered.writes if c.method == "add"][1:] == [100] * 9
    assert run(lambda: published_source(store)) == source
    assert set(store.rows) == needed_ids(root, source)


def test_a_slow_store_sees_signs_of_life_between_batches() -> None:
    """A store that takes a second for 100 rows, one call at a time, does not cost the writer its lock."""

    async def main() -> None:
        queue = trio.Lock()

        async def slow(call: Call) -> None:
            async with queue:  # as an embedded store, which does one call after the other
                await trio.sleep(len(call.items) / 100 if call.method == "add" else 0.01)

        store = Steered(MemoryStore(rows_per_call=5_000), slow)
        source = {f"page-{number}": b"x" for number in range(3_000)}
        published = await publish_source(store, source)
        assert published.written_chunks == len(source)

    run(main)


def test_every_record_is_within_the_limits_of_the_cloud() -> None:
    """No id, document, metadata key or value is larger than Chroma Cloud takes."""
    store = MemoryStore()
    sources: list[Source] = [
        {f"d/{'é' * 100}{i}": b"\xff" * 50 if i % 3 else b"x" * 50_000 for i in range(600)},
        {"long": "漢字".encode() * 20_000},
    ]
    for source in sources:
        run(lambda source=source: publish_source(store, source))
    assert len([id for id in store.rows if id.startswith("__condemned__:")]) == 2
    for row in store.rows.values():
        sizes = [len(str(value).encode()) for value in row.metadata.values()]
        assert len(row.id.encode()) <= 128
        assert len(row.document.encode()) <= 16_000
        assert max(len(key.encode()) for key in row.metadata) <= 36
        assert max(sizes) <= 4_096
        assert len(row.metadata) <= 32


# -- what is refused


def test_a_root_that_is_not_ours_is_left_alone() -> None:
    """A path tree of another program is refused by name before anything is written."""
    store = MemoryStore()
    store.rows[ROOT_ID] = Row(ROOT_ID, '{"auth/oauth": {"isPublic": true}}', {}, VECTOR)
    assert incident(store, UserError, lambda: publish_source(store, NEW)) == (
        "the record __path_tree__ has no format number: another program wrote it; "
        "give another --collection"
    )


def test_a_damaged_root_is_left_alone() -> None:
    """A root of ours that cannot be read is not replaced: what it published is not known."""
    store = store_with(OLD)
    document = store.rows[ROOT_ID].document.replace('"generation":1', '"generation":"x"')
    store.rows[ROOT_ID] = Row(ROOT_ID, document, {}, VECTOR)
    assert incident(store, UserError, lambda: publish_source(store, NEW)) == (
        "the record __path_tree__ has no int 'generation': the root record is damaged; "
        "give another --collection, or delete this one"
    )


def test_a_collection_of_others_is_left_alone() -> None:
    """A collection without a root of ours that holds other records is refused."""
    store = MemoryStore()
    store.rows["note-1"] = Row("note-1", "text", {}, VECTOR)
    assert incident(store, UserError, lambda: publish_source(store, NEW)) == (
        "the collection holds 1 records that are not chromafuse's ('note-1', …); "
        "give another --collection"
    )


def test_another_embedding_is_refused() -> None:
    """A collection keeps the embedding that it was begun with."""
    store = store_with(OLD)
    embedder = ConstantEmbedder()
    embedder.dimension = 4

    async def main() -> None:
        await publish(store, embedder, plan(NEW), expected=await load_root(store))

    assert incident(store, UserError, main) == (
        "the collection 'docs' holds vectors of 1 numbers, the embedding 'none' makes 4; "
        "choose another --collection"
    )


def test_a_tree_that_was_not_planned_against_is_not_replaced() -> None:
    """The caller's guards hold against the root it names; any other is TreeChanged, before the lock."""
    store = store_with(OLD)
    steered = Steered(store)
    main = lambda: publish(steered, ConstantEmbedder(), plan(NEW), expected=None)  # noqa: E731
    assert incident(store, TreeChanged, main) == (
        "planned against nothing, but generation 1 is published"
    )
    assert steered.writes == []


def test_a_page_that_changes_after_planning_stops_the_run() -> None:
    """Bytes that do not have the planned version are an error of the moment; nothing becomes visible."""
    store = store_with(OLD)
    changed = [PlannedPage(page.entry, lambda: b"else") for page in plan(NEW)]
    with pytest.raises(UserError, match=r"^a.md has changed since the run began; run again$"):
        run(lambda: publish(store, ConstantEmbedder(), changed, expected=run_root(store)))
    assert run(lambda: published_source(store)) == OLD
    assert not [id for id in store.rows if id.startswith("__lock__")]


def test_a_page_that_vanishes_after_planning_stops_the_run() -> None:
    """A file that cannot be read when its turn comes is named."""
    store = store_with(OLD)

    def load() -> bytes:
        raise FileNotFoundError(2, "No such file or directory")

    gone = [PlannedPage(page.entry, load) for page in plan(NEW)]
    message = r"^a.md can no longer be read: No such file or directory; run again$"
    with pytest.raises(UserError, match=message):
        run(lambda: publish(store, ConstantEmbedder(), gone, expected=run_root(store)))
    assert run(lambda: published_source(store)) == OLD


# -- killed at any point


def calls_of(old: Source | None, new: Source, **options: float) -> int:
    """Return how many calls publishing `new` over `old` takes."""
    steered = Steered(store_with(old))
    run(lambda: publish_source(steered, new, **options))
    return len(steered.calls)


def check_killed(old: Source | None, new: Source, at: int, *, half: bool, grace: float) -> None:
    """Kill a writer in its call number `at`; check what readers see, and that later runs mend everything."""
    store = store_with(old)
    dying = Dying(store, at, half=half)
    with pytest.raises((Killed, BaseExceptionGroup)):
        run(lambda: publish_source(dying, new, grace=grace))
    if ROOT_ID in store.rows:
        assert run(lambda: published_source(store)) in (old, new)
    else:
        assert old is None
    run(lambda: publish_source(store, new, grace=grace))
    assert run(lambda: published_source(store)) == new
    last = {"last.md": b"last\n"}
    run(lambda: publish_source(store, last, grace=0))
    assert run(lambda: published_source(store)) == last
    assert set(store.rows) == needed_ids(run_root(store), last)


@pytest.mark.parametrize("half", [False, True], ids=["before", "within"])
@pytest.mark.parametrize("grace", [600, 0])
@pytest.mark.parametrize("old", [None, OLD], ids=["first", "second"])
def test_killed_at_any_point(old: Source | None, grace: float, half: bool) -> None:
    """Killed in any call, a writer leaves a whole tree, old or new; the next run completes it."""
    for at in range(1, calls_of(old, NEW, grace=grace) + 1):
        check_killed(old, NEW, at, half=half, grace=grace)


SOURCES = st.dictionaries(
    st.sampled_from(["a", "b", "c/d", "c/é", "e"]),
    st.sampled_from([b"", b"1\n", b"2\n", b"\xff", LONG, LONG * 2]),
)


@hypothesis.given(
    old=st.none() | SOURCES, new=SOURCES, point=st.floats(0, 1), half=st.booleans(), data=st.data()
)
def test_killed_anywhere_with_any_sources(
    old: Source | None, new: Source, point: float, half: bool, data: st.DataObject
) -> None:
    """The same for random pairs of sources, killed at a random call."""
    grace = data.draw(st.sampled_from([0, 600]))
    calls = calls_of(old, new, grace=grace)
    check_killed(old, new, 1 + int(point * (calls - 1)), half=half, grace=grace)


def test_a_cancelled_writer_gives_the_lock_back() -> None:
    """Cancelled in any call after it has the lock, a writer removes it, and the old tree stays or the new."""
    steered = Steered(store_with(OLD))
    run(lambda: publish_source(steered, NEW))
    lock_call = steered.writes[0].number
    for at in range(lock_call, calls_of(OLD, NEW)):
        store = store_with(OLD)

        async def main(store: MemoryStore = store, at: int = at) -> None:
            async def cancel(call: Call) -> None:
                if call.number == at:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

            with trio.CancelScope() as scope:
                await publish_source(Steered(store, cancel), NEW)
            assert scope.cancelled_caught

        run(main)
        assert not [id for id in store.rows if id.startswith("__lock__")], at
        assert run(lambda store=store: published_source(store)) in (OLD, NEW)


# -- garbage


def test_replaced_pages_stay_for_the_grace_time() -> None:
    """What a tree no longer names is deleted by the first run that finds it condemned for the grace time."""
    store = store_with(OLD)
    moment = 1_000.9
    old_ids = set(store.rows) - {ROOT_ID}

    def step(number: int) -> Published:
        pages = {**NEW, "step": b"%d" % number}
        return run(
            lambda: publish(
                store, ConstantEmbedder(), plan(pages), expected=run_root(store), now=lambda: moment
            )
        )

    shared = needed_ids(run_root(store), NEW) & old_ids - set(run_root(store).part_ids())
    assert step(1).collected == 0
    moment = 1_600.8
    assert step(2).collected == 0
    assert old_ids <= set(store.rows)
    moment = 1_601.0  # times are kept in whole seconds, never earlier ones
    assert step(3).collected == len(old_ids - shared)
    assert old_ids & set(store.rows) == shared


def test_a_condemned_page_that_comes_back_has_its_full_grace_again() -> None:
    """A page that was dead, lives again and dies again is kept for the grace time from the second death."""
    store = store_with(OLD)
    chunk = plan(OLD)[0].entry.chunk_ids()[0]
    moment = 0.0

    def step(source: Source) -> None:
        run(
            lambda: publish(
                store,
                ConstantEmbedder(),
                plan(source),
                expected=run_root(store),
                now=lambda: moment,
            )
        )

    for moment, source in [(1_000, NEW), (1_500, OLD), (1_590, NEW), (2_189, {"x": b"x"})]:
        step(source)
        assert chunk in store.rows, moment
    moment = 2_190.0
    step({"y": b"y"})
    assert chunk not in store.rows


def test_a_revived_page_is_uncondemned_before_it_is_visible() -> None:
    """At the flip, nothing of the new tree is on the list of the condemned."""
    store = store_with(OLD)
    run(lambda: publish_source(store, NEW))
    names = {page.entry.version.hex() for page in plan(OLD) if page.entry.chunks}
    seen: list[set[str]] = []

    async def look(call: Call) -> None:
        if call.flips:
            condemned = await garbage.load_condemned(store, list(store.rows))
            seen.append(names & condemned.times.keys())

    condemned = run(lambda: garbage.load_condemned(store, list(store.rows)))
    assert names & condemned.times.keys() != set()
    run(lambda: publish_source(Steered(store, look), OLD))
    assert seen == [set()]


def test_what_is_not_ours_is_never_collected() -> None:
    """Ids of no format of ours survive every collection, whatever they look like."""
    store = store_with(OLD)
    version = "0" * 32
    strangers = [
        "note", version, f"{version}:", f"{version}:x", f"{version.replace('0', 'A')}:0", f"{version}0:1",
        "__lock__:x", "__condemned__:", f"{ROOT_ID}:{version}:0", f"x{version}:0", f"{version}:0\n",
    ]  # fmt: skip
    for id in strangers:
        store.rows[id] = Row(id, "text", {}, VECTOR)
    store.rows[f"{version}:7"] = Row(f"{version}:7", "ours, dead", {}, VECTOR)
    done = run(lambda: publish_source(store, NEW, grace=0))
    assert set(store.rows) == {*strangers, *needed_ids(run_root(store), NEW)}
    assert done.collected == 1 + 5 - 1 + 1  # the planted one, OLD's own chunks, its part


@pytest.mark.expect_log("published, but old records were left for the next run: gone")
def test_a_collection_that_fails_is_left_to_the_next_run() -> None:
    """Once the tree is visible, the run has succeeded; what was not collected is, by the next run."""
    store = store_with(OLD)

    async def fail(call: Call) -> None:
        if call.method == "delete" and not call.ids[0].startswith("__lock__"):
            raise StoreUnavailable("gone")

    done = run(lambda: publish_source(Steered(store, fail), NEW, grace=0))
    assert (done.generation, done.collected) == (2, 0)
    run(lambda: publish_source(store, {"x": b"x"}, grace=0))
    assert set(store.rows) == needed_ids(run_root(store), {"x": b"x"})


@pytest.mark.expect_log("the record __condemned__:0 is damaged")
def test_a_damaged_list_of_the_condemned_only_delays() -> None:
    """Names whose time cannot be read are condemned anew."""
    store = store_with(OLD)
    run(lambda: publish_source(store, NEW))
    store.rows["__condemned__:0"] = Row("__condemned__:0", "[1]", {}, VECTOR)
    done = run(lambda: publish_source(store, {"x": b"x"}))
    assert done.collected == 0
    assert len(run(lambda: garbage.load_condemned(store, list(store.rows))).times) == 8


def test_a_name_condemned_twice_keeps_the_later_time() -> None:
    """Where a killed writer left a name in two records, the grace counts from the later time."""
    store = MemoryStore()
    for k, time in enumerate([7, 9, 8]):
        id = f"__condemned__:{k}"
        store.rows[id] = Row(id, f'{{"{"a" * 32}":{time}}}', {}, VECTOR)
    found = run(lambda: garbage.load_condemned(store, list(store.rows)))
    assert found.times == {"a" * 32: 9.0}


def test_records_of_the_condemned_that_stay_as_they_are_are_not_written() -> None:
    """More condemned names go behind the older ones; only the record that changes is written."""
    steered = Steered(MemoryStore())
    times = {f"{n:032x}": 1_000 + n for n in range(500)}

    async def main() -> None:
        nothing = garbage.Condemned({}, {})
        stored = await garbage.store_condemned(steered, nothing, times, VECTOR)
        more = {**times, "f" * 32: 9_999}
        await garbage.store_condemned(steered, stored, more, VECTOR)

    run(main)
    assert [call.ids for call in steered.writes] == [
        ["__condemned__:0", "__condemned__:1"],
        ["__condemned__:1"],
    ]


@hypothesis.given(
    st.dictionaries(
        st.text("0123456789abcdef", min_size=32, max_size=32) | st.just("f" * 64),
        st.integers(0, 1 << 40),
        max_size=30,
    ),
    st.integers(120, 1_000),
)
def test_the_condemned_are_stored_and_loaded(times: dict[str, int], limit: int) -> None:
    """Whatever is condemned is read back, from records within the limit, contiguously numbered."""
    store = MemoryStore()

    async def main() -> garbage.Condemned:
        nothing = garbage.Condemned({}, {})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(garbage, "RECORD_MAX", limit)
            await garbage.store_condemned(store, nothing, times, VECTOR)
        return await garbage.load_condemned(store, list(store.rows))

    found = run(main)
    assert found.times == times
    assert set(store.rows) == {f"__condemned__:{k}" for k in range(len(store.rows))}
    assert all(len(row.document) <= limit for row in store.rows.values())


# -- what is missing is written again


def test_a_run_mends_a_published_tree_that_lost_chunks() -> None:
    """A tree is not taken for published as long as a chunk or a part of it is missing or damaged."""
    for lost in sorted(store_with(OLD).rows.keys() - {ROOT_ID}):
        store = store_with(OLD)
        del store.rows[lost]
        done = run(lambda store=store: publish_source(store, OLD))
        assert done.generation == 2
        assert run(lambda store=store: published_source(store)) == OLD
    store.rows[lost] = Row(lost, "AAAA", {}, VECTOR)


def test_chunks_and_parts_lost_at_the_flip_are_written_again() -> None:
    """The look after the flip mends what another writer collected while this one stood still."""
    for lost in sorted(store_with(NEW).rows.keys() - {ROOT_ID}):
        store = store_with(OLD)

        async def lose(call: Call, store: MemoryStore = store, lost: str = lost) -> None:
            if call.flips:
                del store.rows[lost]

        run(lambda store=store, lose=lose: publish_source(Steered(store, lose), NEW))
        assert run(lambda store=store: published_source(store)) == NEW


def test_a_store_that_keeps_nothing_is_named() -> None:
    """Chunks that vanish as often as they are written end the run, and the old tree stays."""
    store = store_with(OLD)

    async def vanish(call: Call) -> None:
        if call.method == "existing":
            for page in plan(NEW):
                for id in set(page.entry.chunk_ids()) - needed_ids(run_root(store), OLD):
                    store.rows.pop(id, None)

    with pytest.raises(Exception, match="the store does not keep 5 of the chunks written to it"):
        run(lambda: publish_source(Steered(store, vanish), NEW))
    assert run(lambda: published_source(store)) == OLD


# -- the lock


def test_the_loser_waits_and_says_for_whom() -> None:
    """While another writer lives, a second one waits its time, writes nothing, and names the other."""
    store = store_with(OLD)

    async def main() -> tuple[float, str]:
        async with hold_lock(store, VECTOR, lease=15, wait=1) as lock:
            begin = trio.current_time()
            steered = Steered(store)
            with pytest.raises(LockBusy) as caught:
                await publish_source(steered, NEW, wait=300)
            assert steered.writes == []
            assert f"({lock.owner})" in str(caught.value)
            return trio.current_time() - begin, str(caught.value).partition(") ")[2]

    waited, message = run(main)
    assert 300 <= waited < 303
    assert message == "has been publishing for 300 s; wait until it is done, and run again"


def test_a_dead_writer_is_waited_for_one_lease() -> None:
    """A lock whose beat stands still for a lease is passed over, and collected with the next tree."""
    store = store_with(OLD)
    store.rows[lock_id(2)] = Row(lock_id(2), '{"owner":"dead:1:x","beat":7}', {}, VECTOR)

    async def main() -> tuple[float, int]:
        begin = trio.current_time()
        done = await publish_source(store, NEW)
        return trio.current_time() - begin, done.generation

    waited, generation = run(main)
    assert 15 <= waited < 17
    assert generation == 3
    assert not [id for id in store.rows if id.startswith("__lock__")]


def test_any_number_of_dead_writers_is_waited_for_together() -> None:
    """Forty locks of dead writers cost one lease, and the generation goes past them."""
    store = store_with(OLD)
    for n in range(2, 42):
        store.rows[lock_id(n)] = Row(lock_id(n), "not JSON", {}, VECTOR)

    async def main() -> tuple[bool, int]:
        begin = trio.current_time()
        done = await publish_source(store, NEW)
        return trio.current_time() - begin < 17, done.generation

    assert run(main) == (True, 42)
    run(lambda: publish_source(store, OLD))
    assert not [id for id in store.rows if id.startswith("__lock__")]


def test_of_many_writers_at_once_one_publishes() -> None:
    """Ten writers that planned against one tree: one publishes, the others learn that the tree has changed."""
    store = store_with(OLD)
    outcomes: list[object] = []

    async def one(number: int) -> None:
        try:
            source = {"a": b"%d" % number}
            outcomes.append(
                await publish(store, ConstantEmbedder(), plan(source), expected=run_root_at_start)
            )
        except TreeChanged as exc:
            outcomes.append(str(exc))

    run_root_at_start = run_root(store)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(one, number)

    run(main)
    published = [outcome for outcome in outcomes if isinstance(outcome, Published)]
    assert (len(outcomes), len(published)) == (10, 1)
    assert outcomes.count("planned against generation 1, but generation 2 is published") == 9


def test_a_beat_that_fails_does_not_lose_the_lock() -> None:
    """One failed sign of life is made good by the next; a lease without any is LockLost."""
    store = MemoryStore()
    failing = range(1, 3)
    beats = itertools.count()

    async def fail(call: Call) -> None:
        if call.method == "upsert" and next(beats) in failing:
            raise StoreUnavailable("gone")

    async def hold(seconds: float) -> None:
        async with hold_lock(Steered(store, fail), VECTOR, lease=15, wait=1) as lock:
            await trio.sleep(seconds)
            lock.check()
            await lock.confirm()

    run(lambda: hold(60))
    failing, beats = range(1, 9), itertools.count()
    with pytest.raises(LockLost, match="took no sign of life from this writer for 15 s"):
        run(lambda: hold(29))


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (lock_id(3), r"^another writer \(rival:1:x\) took this one for dead and took over$"),
        (lock_id(9), r"^another writer \(rival:1:x\) took this one for dead and took over$"),
        (lock_id(2), r"^another writer took this one for dead and took over$"),
        (ROOT_ID, r"^another writer has published meanwhile$"),
    ],
)
def test_nothing_is_published_once_another_writer_has_come(planted: str, message: str) -> None:
    """A higher lock, a lock of ours with another owner, another root: seen before the flip, LockLost."""
    store = store_with(OLD)

    async def plant(call: Call) -> None:
        if call.method == "existing":
            store.rows[planted] = Row(planted, '{"owner":"rival:1:x","beat":1}', {}, VECTOR)

    steered = Steered(store, plant)
    with pytest.raises(LockLost, match=message):
        run(lambda: publish_source(steered, NEW))
    assert not any(call.flips for call in steered.calls)


@pytest.mark.expect_log("for the next run: another writer (rival:1:x) took this one for dead")
def test_nothing_is_collected_once_another_writer_has_come() -> None:
    """A higher lock after the flip ends the collection before it deletes anything."""
    store = store_with(OLD)

    async def plant(call: Call) -> None:
        if call.flips:
            id = lock_id(3)
            store.rows[id] = Row(id, '{"owner":"rival:1:x","beat":1}', {}, VECTOR)

    done = run(lambda: publish_source(Steered(store, plant), NEW, grace=0))
    assert done.collected == 0
    assert needed_ids(run_root(store_with(OLD)), OLD) <= set(store.rows)


def test_a_store_too_slow_for_the_lease_publishes_nothing() -> None:
    """The flip is sent with two thirds of the lease left, or not at all."""
    store = store_with(OLD)

    async def slow(call: Call) -> None:
        if call.method == "upsert" and call.ids == [lock_id(2)]:
            await trio.sleep(5.1)
        if call.method == "get" and {lock_id(2), lock_id(3)} <= set(call.ids):
            await trio.sleep(5.1)

    with pytest.raises(LockLost, match="the store answers too slowly to publish safely"):
        run(lambda: publish_source(Steered(store, slow), NEW, lease=15))
    assert run(lambda: published_source(store)) == OLD


def test_no_beat_lands_after_the_lock_was_given_back() -> None:
    """A writer cancelled in a beat waits for it: a store may carry out a call whose caller is gone."""
    store = MemoryStore()

    async def main() -> None:
        async def land_late(call: Call) -> None:
            if call.method == "upsert":
                server.start_soon(land, call)
                scope.cancel()
                await trio.sleep(2)

        async def land(call: Call) -> None:
            await trio.sleep(1)
            await store.upsert(call.items)  # type: ignore[arg-type]

        async with trio.open_nursery() as server:
            with trio.CancelScope() as scope:
                async with hold_lock(Steered(store, land_late), VECTOR, lease=15, wait=1):
                    await trio.sleep_forever()

    run(main)
    assert store.rows == {}


# -- a writer that stands still while another takes over


def paused_writer(
    at: int, seconds: float, *, grace: float
) -> tuple[MemoryStore, list[Exception | Published], list[Published]]:
    """Let a writer of NEW stand still at its call number `at`, and another publish OTHER from second 1 on."""
    store = store_with(OLD)
    mine: list[Exception | Published] = []
    others: list[Published] = []

    async def main() -> None:
        awake = trio.current_time() + seconds
        paused = False

        async def pause(call: Call) -> None:
            nonlocal paused
            paused = paused or call.number == at
            if paused and trio.current_time() < awake:
                with trio.CancelScope(shield=True):
                    await trio.sleep_until(awake)

        async def write() -> None:
            try:
                steered, expected = Steered(store, pause), run_root(store)
                mine.append(
                    await publish(
                        steered, ConstantEmbedder(), plan(NEW), expected=expected, grace=grace
                    )
                )
            except (LockLost, TreeChanged) as exc:
                mine.append(exc)

        async def other() -> None:
            await trio.sleep(1)
            others.append(await publish_source(store, OTHER, grace=grace))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(other)

    run(main)
    return store, mine, others


UNCOLLECTED = pytest.mark.expect_log("published, but old records were left for the next run")
OTHER: Source = {"a.md": b"other\n", "same.md": b"same\n", "dir/b.md": LONG}


def planned_calls() -> tuple[int, int]:
    """Return the number of the call that makes NEW visible in place of OLD, and of the last call."""
    store = store_with(OLD)
    steered, expected = Steered(store), run_root(store)
    run(lambda: publish(steered, ConstantEmbedder(), plan(NEW), expected=expected))
    return next(call.number for call in steered.calls if call.flips), len(steered.calls)


@pytest.mark.parametrize("grace", [600, 0])
def test_a_writer_that_stood_still_never_publishes_over_another(grace: float) -> None:
    """Before the flip, wherever a writer stands still, the other's tree stays and it is told so."""
    for at in range(1, planned_calls()[0]):
        store, mine, others = paused_writer(at, 40, grace=grace)
        assert len(others) == 1
        assert isinstance(mine[0], LockLost | TreeChanged), (at, mine)
        assert run(lambda store=store: published_source(store)) == OTHER
        assert run(lambda store=store: verify(store)).problems == ()


@UNCOLLECTED
@pytest.mark.parametrize("grace", [600, 0])
def test_a_writer_that_stood_still_in_the_flip_leaves_its_own_tree_whole(grace: float) -> None:
    """In the one window that is left, the tree that ends up visible is whole, whatever was collected."""
    store, mine, others = paused_writer(planned_calls()[0], 40, grace=grace)
    assert [type(outcome) for outcome in (*mine, *others)] == [Published, Published]
    assert run(lambda: published_source(store)) == NEW


@UNCOLLECTED
@pytest.mark.expect_log("the writer's lock could not be removed within 10 s", maybe=True)
def test_a_writer_that_stood_still_after_the_flip_harms_nothing() -> None:
    """Behind its flip, wherever a writer stands still, the other's tree is whole in the end."""
    flip, last = planned_calls()
    for at in range(flip + 1, last + 1):
        store, _, others = paused_writer(at, 40, grace=600)
        assert len(others) == 1
        assert run(lambda store=store: published_source(store)) == OTHER


def test_a_tree_replaced_right_after_its_flip_is_reported() -> None:
    """A writer whose tree is not the visible one any more when it looks again says so."""
    store = store_with(OLD)

    async def replace(call: Call) -> None:
        if call.method == "get" and call.ids == [ROOT_ID] and run_root(store).generation == 2:
            document, metadata = encode_root(other)
            store.rows[ROOT_ID] = Row(ROOT_ID, document, metadata, VECTOR)

    other = dataclasses.replace(run_root(store), generation=3)
    with pytest.raises(
        LockLost, match="as generation 2, but another writer replaced it by generation 3"
    ):
        run(lambda: publish_source(Steered(store, replace), NEW))


def test_progress_counts_to_the_end() -> None:
    """Each stage is told from nothing to all."""
    seen: list[tuple[str, int, int]] = []

    async def main() -> None:
        await publish(
            MemoryStore(rows_per_call=2),
            ConstantEmbedder(),
            plan(OLD),
            expected=None,
            progress=lambda *step: seen.append(step),
        )

    run(main)
    assert seen == [
        ("write", 0, 5),
        ("write", 2, 5),
        ("write", 4, 5),
        ("write", 5, 5),
        ("check", 0, 5),
        ("check", 5, 5),
    ]


def test_find_root_says_what_is_published() -> None:
    """The caller plans against the root, or against nothing where a first run was killed."""
    store = MemoryStore()
    assert run(lambda: find_root(store)) is None
    store.rows[lock_id(1)] = Row(lock_id(1), "{}", {}, VECTOR)
    assert run(lambda: find_root(store)) is None
    run(lambda: publish_source(store, OLD))
    assert run(lambda: find_root(store)) == run_root(store)
