"""Where page bytes come from when memory has none: the seam `Load`, and the store behind it.

Loads stack: the shared cache (shared.py) is a `Load` around this one. Each answers for every version that it
was asked for, and hands out nothing that was not checked against its version.

Concurrency: stateless; any number of calls at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

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


class StoreLoad:
    """Loads from the store, and notes how that went."""

    def __init__(self, store: Store, health: Health) -> None:
        self._store = store
        self._health = health

    async def __call__(self, entries: Sequence[TreeEntry]) -> dict[bytes, Outcome]:
        """Load pages; see `Load`."""
        started = trio.current_time()
        try:
            loaded = await load_pages(self._store, entries)
        except StoreError as exc:
            self._health.note(exc, started)
            raise
        if any(entry.chunks for entry in entries):  # else nothing was asked: empty pages have none
            self._health.note(None, started)
        return loaded
