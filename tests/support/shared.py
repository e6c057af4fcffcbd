"""The part of a hub that has pages, over a store in memory and a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from trio.testing import MockClock

from chromafuse.hub.health import Health
from chromafuse.hub.loading import Outcome, StoreLoad
from chromafuse.hub.pagecache import MEMORY, PageCache
from chromafuse.hub.pages import Pages
from chromafuse.hub.redislocation import RedisLocation, RedisSettings, parse_redis
from chromafuse.hub.redisserver import RedisServer
from chromafuse.hub.shared import SharedCache
from chromafuse.model.access import PUBLIC
from chromafuse.model.entry import TreeEntry
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.publish import find_root, publish
from tests.support.hub import planned
from tests.support.memory_store import FaultyStore, MemoryStore

PATIENCE = 20_000  # ms; a busy machine must not look like a Redis that hangs


@dataclass
class Loader:
    """What a hub has pages from."""

    store: FaultyStore
    from_store: StoreLoad
    cache: SharedCache
    pages: Pages

    async def bytes_of(self, entries: Sequence[TreeEntry]) -> dict[str, Outcome]:
        """Return pages by path, as if the hub had none of them in memory."""
        self.pages.cache = PageCache()
        outcomes = await self.pages.get_ahead(entries, None)
        return {entry.path: page for entry, page in zip(entries, outcomes, strict=True)}


class Site:
    """Pages in a store in memory, which any number of loaders share."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self.pages = dict(pages)
        self.memory = MemoryStore()
        plan = planned({path: (PUBLIC, data) for path, data in self.pages.items()})
        self.entries = [page.entry for page in plan]

    async def publish(self) -> None:
        """Put the pages into the store."""
        plan = planned({path: (PUBLIC, data) for path, data in self.pages.items()})
        expected = await find_root(self.memory)
        await publish(self.memory, ConstantEmbedder(), plan, expected=expected)

    async def _listed(self) -> set[bytes]:
        return {entry.version for entry in self.entries}

    @asynccontextmanager
    async def loader(
        self,
        where: str | RedisLocation,
        *,
        ttl: int = 1000,
        value_max: int = 8 << 20,
        timeout_ms: int = PATIENCE,
        memory: int = MEMORY,
        env: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Loader]:
        """Have what one hub loads with, as long as it is needed."""
        location = parse_redis(where) if isinstance(where, str) else where
        settings = RedisSettings(location, ttl, value_max, timeout_ms)
        store = FaultyStore(self.memory)
        health = Health()
        from_store = StoreLoad(store, health)
        cache = SharedCache(RedisServer(location, timeout_ms / 1000, env or {}), settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.run)
            pages = Pages(nursery, health, from_store, self._listed, memory=memory, shared=cache)
            yield Loader(store, from_store, cache, pages)
            nursery.cancel_scope.cancel()


def run(site: Site, body: Callable[[], Awaitable[None]]) -> None:
    """Publish `site` and run `body`. The clock goes by itself, and a test may turn it."""

    async def main() -> None:
        await site.publish()
        with trio.fail_after(60):  # of the test's clock; a loader that hangs is a failure by name
            await body()

    trio.run(main, clock=MockClock(rate=1.0))


async def until(reached: Callable[[], object], what: str) -> None:
    """Wait for a state."""
    with trio.move_on_after(20):
        while not reached():  # noqa: ASYNC110 - threads and another process change what is looked at
            await trio.sleep(0.01)
        return
    raise AssertionError(f"did not come: {what}")


def turn_clock(seconds: float) -> None:
    """Let the time pass."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(seconds)
