"""Where page bytes come from when memory has none: the seams `Cache` and `Load`, and the load from the store.

Each load answers for every version that it was asked for, and neither seam hands out anything that was not
checked against its version.

Concurrency: stateless; any number of calls at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import trio

from ..errors import ChromafuseError, StoreError
from ..model.entry import TreeEntry
from ..store.protocol import Store
from ..store.reader import load_pages
from .health import Health

Outcome = bytes | ChromafuseError

# Many pages in one call; the answer holds each version asked for: its bytes, or why not. Raises StoreError
# where the store does not answer; then nothing is known of any page.
Load = Callable[[Sequence[TreeEntry]], Awaitable[dict[bytes, Outcome]]]


def batches(entries: Iterable[TreeEntry], pages: int, size: int) -> Iterator[Sequence[TreeEntry]]:
    """Yield the entries in order, at most `pages` at a time, and `size` bytes of pages or one page."""
    batch: list[TreeEntry] = []
    left = size
    for entry in entries:
        if batch and (len(batch) == pages or entry.size > left):
            yield batch
            batch, left = [], size
        batch.append(entry)
        left -= entry.size
    if batch:
        yield batch


class StoreLoad:
    """Loads from the store, and notes how that went."""

    def __init__(self, store: Store, health: Health) -> None:
        self.calls = 0  # that asked the store for anything
        self._store = store
        self._health = health

    async def __call__(self, entries: Sequence[TreeEntry]) -> dict[bytes, Outcome]:
        """Load pages; see `Load`."""
        asks = any(entry.chunks for entry in entries)  # empty pages have none
        self.calls += asks
        started = trio.current_time()
        try:
            loaded = await load_pages(self._store, entries)
        except StoreError as exc:
            self._health.note(exc, started)
            raise
        if asks:
            self._health.note(None, started)
        return loaded


class Cache(Protocol):
    """Pages by version, kept elsewhere (shared.py). Neither call raises: what does not work is a miss."""

    async def find(self, entries: Sequence[TreeEntry]) -> dict[bytes, bytes]:
        """Return those pages that are there, each checked against its version."""

    def keep(self, pages: Mapping[bytes, bytes]) -> None:
        """Take pages, by version."""


class CachedLoad:
    """Loads from a cache, and what it does not have from `load`, for who wants all of it or nothing."""

    def __init__(self, cache: Cache, load: Load) -> None:
        self._cache = cache
        self._load = load

    async def __call__(self, entries: Sequence[TreeEntry]) -> dict[bytes, Outcome]:
        """Load pages; see `Load`. Where the store does not answer, what the cache has is answered all the same."""
        found: dict[bytes, Outcome] = {**await self._cache.find(entries)}
        missing = [entry for entry in entries if entry.version not in found]
        if not missing:
            return found
        try:
            loaded = await self._load(missing)
        except StoreError as exc:
            if not found:
                raise
            return found | dict.fromkeys((entry.version for entry in missing), exc)
        self._cache.keep(
            {version: page for version, page in loaded.items() if isinstance(page, bytes)}
        )
        return found | loaded
