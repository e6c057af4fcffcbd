"""Page bytes in the hub: one fetch for all, batches, outages, what is gone and damaged."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

import pytest
import trio
import trio.testing

from chromafuse.errors import (
    ChromafuseError,
    NotPublished,
    PageGone,
    RecordDamaged,
    StoreTimeout,
    StoreUnavailable,
)
from chromafuse.hub.health import PROBE, Health
from chromafuse.hub.pagecache import MEMORY, PageCache
from chromafuse.hub.pages import (
    AHEAD_BYTES,
    AHEAD_CALLS,
    BATCH_BYTES,
    BATCH_PAGES,
    CALLS,
    Pages,
)
from chromafuse.hub.session import DEADLINE
from chromafuse.model.access import PUBLIC
from chromafuse.model.entry import TreeEntry
from tests.support.logguard import LogGuard
from tests.support.publishing import run


def entry(number: int, size: int = 10) -> TreeEntry:
    """Return the entry of a page that no store holds."""
    return TreeEntry(f"page {number}", PUBLIC, number.to_bytes(16, "big"), 1, size, 5)


class Fake:
    """A loader that answers when the test lets it, and says what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.open = trio.Event()
        self.open.set()
        self.outcome: Callable[[TreeEntry], bytes | ChromafuseError] = lambda found: bytes(
            found.size
        )
        self.listed: set[bytes] = set()
        self.health = Health()

    async def load(self, entries: Sequence[TreeEntry]) -> dict[bytes, bytes | ChromafuseError]:
        self.calls.append([int.from_bytes(found.version, "big") for found in entries])
        await self.open.wait()
        await trio.lowlevel.checkpoint()
        return {found.version: self.outcome(found) for found in entries}

    async def list(self) -> set[bytes]:
        await trio.lowlevel.checkpoint()
        return self.listed


def with_pages(body: Callable[[Fake, Pages], Awaitable[None]], memory: int = MEMORY) -> None:
    """Run `body` on fresh pages over a fake loader."""

    async def main() -> None:
        fake = Fake()
        async with trio.open_nursery() as nursery:
            await body(fake, Pages(nursery, fake.health, fake.load, fake.list, memory=memory))

    run(main)


# -- fetching ------------------------------------------------------------------------------------------


def test_many_readers_of_one_page_cause_one_fetch() -> None:
    """A hundred reads of an uncached page are one store call, and later reads are none."""

    async def body(fake: Fake, pages: Pages) -> None:
        found = []

        async def read() -> None:
            found.append(await pages.get(entry(1)))

        fake.open = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            fake.open.set()
        await read()
        assert found == [bytes(10)] * 101
        assert (fake.calls, pages.fetches) == ([[1]], 1)

    with_pages(body)


def test_a_reader_that_gives_up_takes_nobody_along() -> None:
    """The first reader is cancelled while its fetch is under way; the others get the page, by one call."""

    async def body(fake: Fake, pages: Pages) -> None:
        fake.open = trio.Event()
        found: list[bytes] = []

        async def read() -> None:
            found.append(await pages.get(entry(1)))

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(1):
                await read()
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            fake.open.set()
        assert (found, fake.calls) == ([bytes(10)], [[1]])

    with_pages(body)


def test_pages_wanted_meanwhile_go_together() -> None:
    """While every allowed call is under way pages queue up, and go in as few calls as the bounds allow."""

    async def body(fake: Fake, pages: Pages) -> None:
        fake.open = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(CALLS):
                nursery.start_soon(pages.get, entry(number))
                await trio.testing.wait_all_tasks_blocked()
            for number in range(CALLS, CALLS + BATCH_PAGES + 10):
                nursery.start_soon(pages.get, entry(number))
            await trio.testing.wait_all_tasks_blocked()
            assert fake.calls == [[number] for number in range(CALLS)]
            fake.open.set()
        assert [len(call) for call in fake.calls[CALLS:]] == [BATCH_PAGES, 10]
        assert sorted(chain(*fake.calls)) == list(range(CALLS + BATCH_PAGES + 10))

    with_pages(body)


def test_large_pages_do_not_go_together() -> None:
    """A call asks for a bounded number of bytes; a page over the bound goes alone."""

    async def body(fake: Fake, pages: Pages) -> None:
        sizes = [BATCH_BYTES + 1, BATCH_BYTES // 2, BATCH_BYTES // 2, 1]
        async with trio.open_nursery() as nursery:
            for number, size in enumerate(sizes):
                nursery.start_soon(pages.get, entry(number, size))
        by_size = [sorted(sizes[number] for number in call) for call in fake.calls]
        assert all(sum(call) <= BATCH_BYTES or len(call) == 1 for call in by_size)
        assert sorted(chain(*by_size)) == sorted(sizes)

    with_pages(body)


def test_a_page_over_the_memory_is_fetched_once_for_all_its_reads() -> None:
    """A page that is larger than the cache is kept while it is the one that is read."""

    async def body(fake: Fake, pages: Pages) -> None:
        for _ in range(64):
            assert await pages.get(entry(1, 5_000)) == bytes(5_000)
        await pages.get(entry(2, 5_000))
        await pages.get(entry(1, 5_000))
        assert fake.calls == [[1], [2], [1]]

    with_pages(body, memory=1_000)


# -- outages -------------------------------------------------------------------------------------------


def test_what_nobody_waits_for_is_not_fetched_after_an_outage() -> None:
    """Reads that timed out in the queue leave nothing behind for the store to answer first."""

    async def body(fake: Fake, pages: Pages) -> None:
        fake.open = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(CALLS):
                nursery.start_soon(pages.get, entry(number))
                await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(DEADLINE):
                async with trio.open_nursery() as readers:
                    for number in range(100, 200):
                        readers.start_soon(pages.get, entry(number))
            nursery.start_soon(pages.get, entry(500))
            await trio.testing.wait_all_tasks_blocked()
            fake.open.set()
        assert fake.calls == [[number] for number in range(CALLS)] + [[500]]
        assert await pages.get(entry(100)) == bytes(10)

    with_pages(body)


@pytest.mark.expect_log("the store does not answer")
@pytest.mark.expect_log("the store answers again")
def test_a_store_that_is_down_is_looked_at_until_it_answers() -> None:
    """Without any reader the state turns back within the time between two looks; up, nobody looks."""

    async def main() -> None:
        health = Health()
        looks: list[float] = []

        async def look() -> None:
            looks.append(trio.current_time())
            if len(looks) < 3:
                raise StoreTimeout("still hanging")
            if len(looks) == 3:
                raise NotPublished("it answers, and that is what counts here")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(health.probe, look)
            await trio.sleep(100)
            assert looks == []
            health.note(StoreTimeout("hangs"), trio.current_time())
            start = trio.current_time()
            await health.changed()
            assert health.up
            assert [round(at - start) for at in looks] == [PROBE, 2 * PROBE, 3 * PROBE]
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
        assert len(looks) == 3

    run(main)


def test_an_old_failure_says_nothing_of_a_store_that_has_answered_since() -> None:
    """A call that began before another one was answered and now gives up does not turn the state."""

    async def main() -> None:
        health = Health()
        started = trio.current_time()
        await trio.sleep(1)
        health.note(None, trio.current_time())
        health.note(StoreTimeout("late"), started)
        assert health.up

    run(main)


def test_one_error_for_many_readers_gathers_no_traceback() -> None:
    """Each of many readers gets the error as if it were alone, however many had it before."""

    async def body(fake: Fake, pages: Pages) -> None:
        async def fail(_: Sequence[TreeEntry]) -> dict[bytes, bytes | ChromafuseError]:
            raise StoreUnavailable("gone")

        pages._load = fail
        depths = []

        async def read() -> None:
            try:
                await pages.get(entry(1))
            except StoreUnavailable as exc:
                depths.append(sum(1 for _ in traceback.walk_tb(exc.__traceback__)))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(read)
        assert depths == [2] * 50  # `read` and `get`

    with_pages(body)


# -- gone and damaged ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [PageGone("no chunk"), RecordDamaged("a chunk is missing")])
def test_what_is_wrong_and_not_listed_any_more_was_replaced(wrong: ChromafuseError) -> None:
    """Chunks that the collector took, in whole or in part, are PageGone, and no log line."""

    async def body(fake: Fake, pages: Pages) -> None:
        fake.outcome = lambda _: wrong
        with pytest.raises(PageGone, match="page 1 was replaced"):
            await pages.get(entry(1))

    with_pages(body)


@pytest.mark.parametrize("wrong", [PageGone("no chunk"), RecordDamaged("a chunk is missing")])
def test_what_is_wrong_and_listed_is_damaged(wrong: ChromafuseError, log_guard: LogGuard) -> None:
    """A page of the published tree that is not there is RecordDamaged, logged once until it is mended."""
    log_guard.expect(f"damaged page: {wrong}")

    async def body(fake: Fake, pages: Pages) -> None:
        fake.listed = {entry(1).version}
        fake.outcome = lambda _: wrong
        for _ in range(3):
            with pytest.raises(RecordDamaged):
                await pages.get(entry(1))
        assert len(log_guard.handler.records) == 1
        fake.outcome = lambda _: b"mended"
        assert await pages.get(entry(1)) == b"mended"
        pages.cache = PageCache(MEMORY)
        fake.outcome = lambda _: wrong
        for _ in range(3):
            with pytest.raises(RecordDamaged):
                await pages.get(entry(1))
        assert len(log_guard.handler.records) == 2

    with_pages(body)


def test_one_wrong_page_does_not_harm_its_batch(log_guard: LogGuard) -> None:
    """Pages that came in one call with a damaged one are served."""
    log_guard.expect("damaged page: bad bytes")

    async def body(fake: Fake, pages: Pages) -> None:
        fake.listed = {entry(1).version}
        fake.outcome = lambda found: (
            RecordDamaged("bad bytes") if found.version == entry(1).version else b"good"
        )
        found: list[object] = []

        async def read(number: int) -> None:
            try:
                found.append(await pages.get(entry(number)))
            except ChromafuseError as exc:
                found.append(str(exc))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(read, number)
        assert sorted(map(str, found)) == ["b'good'", "b'good'", "bad bytes"]
        assert len(fake.calls) == 1

    with_pages(body)


@pytest.mark.expect_log("damaged page: bad bytes")
def test_good_pages_do_not_wait_for_the_word_on_a_damaged_one() -> None:
    """While the hub finds out why a page is wrong, the pages that came with it are handed out."""

    async def body(fake: Fake, pages: Pages) -> None:
        explained = trio.Event()

        async def listed() -> set[bytes]:
            await explained.wait()
            return {entry(1).version}

        pages._listed = listed
        fake.outcome = lambda found: (
            RecordDamaged("bad bytes") if found.version == entry(1).version else b"good"
        )
        found: list[object] = []

        async def read(number: int) -> None:
            try:
                found.append(await pages.get(entry(number)))
            except RecordDamaged as exc:
                found.append(str(exc))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(read, number)
            await trio.testing.wait_all_tasks_blocked()
            assert [sorted(call) for call in fake.calls] == [[0, 1, 2]]
            assert found == [b"good", b"good"]
            explained.set()
        assert found == [b"good", b"good", "bad bytes"]

    with_pages(body)


@pytest.mark.expect_log("what is published cannot be read: the collection was made anew")
def test_a_root_that_is_gone_fails_the_read_as_what_it_is(log_guard: LogGuard) -> None:
    """Where the published tree cannot be read either, the read fails with that, logged once, never served."""

    async def body(fake: Fake, pages: Pages) -> None:
        async def listed() -> set[bytes]:
            raise NotPublished("the collection was made anew")

        pages._listed = listed
        fake.outcome = lambda _: PageGone("no chunk")
        for _ in range(3):
            with pytest.raises(NotPublished):
                await pages.get(entry(1))
        assert len(log_guard.handler.records) == 1
        pages._listed = fake.list
        with pytest.raises(PageGone):
            await pages.get(entry(1))
        pages._listed = listed
        with pytest.raises(NotPublished):
            await pages.get(entry(1))
        assert len(log_guard.handler.records) == 2

    with_pages(body)


@pytest.mark.expect_log("the store does not answer: StoreTimeout: hangs")
def test_a_store_that_goes_away_between_page_and_tree_is_an_outage() -> None:
    """Where the store fails while the hub looks why a page is wrong, the read fails so, and the state turns."""

    async def body(fake: Fake, pages: Pages) -> None:
        async def listed() -> set[bytes]:
            await trio.sleep(1)
            raise StoreTimeout("hangs")

        pages._listed = listed
        fake.outcome = lambda _: PageGone("no chunk")
        with pytest.raises(StoreTimeout):
            await pages.get(entry(1))
        assert fake.health.error == "StoreTimeout: hangs"

    with_pages(body)


@pytest.mark.expect_log("a fetch failed by a bug")
def test_a_bug_in_a_fetch_fails_its_reads_alone() -> None:
    """An exception that nobody foresaw is a traceback in the log and an error for the readers; the hub lives."""

    async def body(fake: Fake, pages: Pages) -> None:
        def bug(_: TreeEntry) -> bytes:
            raise ZeroDivisionError

        good, fake.outcome = fake.outcome, bug
        with pytest.raises(ChromafuseError, match="given up"):
            await pages.get(entry(1))
        fake.outcome = good
        assert await pages.get(entry(1)) == bytes(10)

    with_pages(body)


# -- ahead of readers ----------------------------------------------------------------------------------


def test_pages_ahead_come_in_few_calls() -> None:
    """What is fetched ahead goes in calls bounded by bytes; every page, or why not, is told in its order."""

    async def body(fake: Fake, pages: Pages) -> None:
        gone = PageGone("gone")
        fake.outcome = lambda found: (
            gone if found.version == entry(2).version else bytes(found.size)
        )
        wanted = [entry(number, AHEAD_BYTES // 4) for number in range(10)]
        outcomes = await pages.get_ahead(wanted, "somebody")
        assert fake.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert [type(outcome) for outcome in outcomes] == [bytes, bytes, PageGone, *[bytes] * 7]

    with_pages(body)


def test_a_reader_overtakes_what_is_fetched_ahead() -> None:
    """A page that waits behind others fetched ahead is asked for at once when somebody reads it, and once."""

    async def body(fake: Fake, pages: Pages) -> None:
        fake.open = trio.Event()
        size = AHEAD_BYTES // 2
        async with trio.open_nursery() as nursery:
            ahead = [entry(number, size) for number in range(10)]
            nursery.start_soon(pages.get_ahead, ahead, "somebody")
            await trio.testing.wait_all_tasks_blocked()
            assert fake.calls == [[0, 1], [2, 3]]
            nursery.start_soon(pages.get, ahead[9], "somebody")
            nursery.start_soon(pages.get, ahead[0], "somebody")
            await trio.testing.wait_all_tasks_blocked()
            assert fake.calls == [[0, 1], [2, 3], [9]]
            fake.open.set()
        assert sorted(chain.from_iterable(fake.calls)) == list(range(10))

    with_pages(body)


def test_a_greedy_client_does_not_starve_others() -> None:
    """Of a client that has thousands of pages fetched ahead, and one with few, the few come in the next call."""

    async def body(fake: Fake, pages: Pages) -> None:
        fake.open = trio.Event()
        async with trio.open_nursery() as nursery:
            greedy = [entry(number) for number in range(4 * BATCH_PAGES)]
            modest = [entry(100_000 + number) for number in range(3)]
            nursery.start_soon(pages.get_ahead, greedy, "greedy")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(pages.get_ahead, modest, "modest")
            await trio.testing.wait_all_tasks_blocked()
            assert len(fake.calls) == AHEAD_CALLS
            fake.open.set()
        assert {100_000, 100_001, 100_002} < set(fake.calls[AHEAD_CALLS])

    with_pages(body)


def test_nothing_is_fetched_ahead_for_a_client_that_is_gone() -> None:
    """What waits behind others when its client goes away is not asked for; what is under way is kept."""

    async def body(fake: Fake, pages: Pages) -> None:
        fake.open = trio.Event()
        async with trio.open_nursery() as nursery:
            ahead = [entry(number, AHEAD_BYTES) for number in range(10)]
            nursery.start_soon(pages.get_ahead, ahead, "somebody")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        fake.open.set()
        await trio.testing.wait_all_tasks_blocked()
        assert fake.calls == [[0], [1]]
        assert [await pages.get(one) for one in ahead[:2]] == [bytes(AHEAD_BYTES)] * 2
        assert fake.calls == [[0], [1]]

    with_pages(body)
