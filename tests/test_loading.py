"""Loading from the store: what it says about the store's health; and the batches of what is loaded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.errors import StoreTimeout, StoreUnavailable
from chromafuse.hub.health import Health
from chromafuse.hub.loading import StoreLoad, batches
from chromafuse.model.access import PUBLIC
from chromafuse.model.entry import TreeEntry
from chromafuse.store.publish import find_root, publish
from tests.support.hub import planned
from tests.support.logguard import LogGuard
from tests.support.memory_store import Fault, FaultyStore, MemoryStore
from tests.support.publishing import ConstantEmbedder, run

SITE = {f"page{number}": (PUBLIC, b"text %d\n" % number) for number in range(3)}
EMPTY = planned({"empty": (PUBLIC, b"")})[0].entry


def with_load(body: Callable[[FaultyStore, Health, StoreLoad], Awaitable[None]]) -> None:
    """Run `body` on a loader over a store that holds SITE."""

    async def main() -> None:
        memory = MemoryStore()
        expected = await find_root(memory)
        await publish(memory, ConstantEmbedder(), planned(SITE), expected=expected)
        store, health = FaultyStore(memory), Health()
        await body(store, health, StoreLoad(store, health))

    run(main)


def test_an_outage_is_told_once_and_ends_with_the_next_answer(log_guard: LogGuard) -> None:
    """A store that is down fails each load with its own error, is logged once, and once more when it is back."""
    log_guard.expect("the store does not answer: StoreUnavailable: scripted fault")
    log_guard.expect("the store answers again")
    entries = [page.entry for page in planned(SITE)]

    async def body(store: FaultyStore, health: Health, load: StoreLoad) -> None:
        store.script.append(Fault("fail", times=20))
        for _ in range(20):
            with pytest.raises(StoreUnavailable, match="scripted fault"):
                await load(entries)
        assert not health.up
        expected = {entry.version: SITE[entry.path][1] for entry in entries}
        assert await load(entries) == expected
        assert health.up

    with_load(body)
    assert len(log_guard.handler.records) == 2


@pytest.mark.expect_log("the store does not answer")
def test_an_empty_page_says_nothing_of_the_store() -> None:
    """A page without chunks is loaded in an outage too, and does not end it: nobody was asked."""

    async def body(store: FaultyStore, health: Health, load: StoreLoad) -> None:
        health.note(StoreTimeout("hangs"), trio.current_time())
        assert await load([EMPTY]) == {EMPTY.version: b""}
        assert not health.up

    with_load(body)


@given(sizes=st.lists(st.integers(0, 20), max_size=40), pages=st.integers(1, 5))
def test_batches_are_bounded_and_lose_nothing(sizes: list[int], pages: int) -> None:
    """For any sizes: every page once, in order; no batch over a bound but of one page, none too small."""
    entries = [TreeEntry(str(at), PUBLIC, bytes(16), 1, size, 5) for at, size in enumerate(sizes)]
    found = list(batches(entries, pages, 10))
    assert [entry for batch in found for entry in batch] == entries
    totals = [sum(entry.size for entry in batch) for batch in found]
    for at, batch in enumerate(found):
        assert 1 <= len(batch) <= pages
        assert len(batch) == 1 or totals[at] <= 10
        if at + 1 < len(found):
            assert len(batch) == pages or totals[at] + found[at + 1][0].size > 10
