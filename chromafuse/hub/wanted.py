"""The pages to be asked of the store next: clients in turn, so that one greedy reader does not starve others.

Two such queues: what somebody waits for, and what is fetched ahead of readers, who may never come. A page in
the second moves to the first when somebody waits for it.

Concurrency: one trio thread; nothing here waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import trio

from ..model.entry import TreeEntry
from .loading import Outcome

Client = Hashable  # whoever reads: the session of a view


@dataclass(eq=False, slots=True)
class Fetch:
    """One page that is wanted. `outcome` is set before `done`."""

    entry: TreeEntry
    client: Client
    ahead: bool  # nobody waits for it but who sends it ahead
    readers: int = 0
    done: trio.Event = field(default_factory=trio.Event)
    outcome: Outcome | None = None


class Wanted:
    """One queue: fetches of each client in order, clients in turn."""

    def __init__(self) -> None:
        self._queues: OrderedDict[Client, OrderedDict[bytes, Fetch]] = OrderedDict()

    def __bool__(self) -> bool:
        """Say whether anything is wanted."""
        return bool(self._queues)

    def add(self, fetch: Fetch) -> None:
        """Put a fetch at the end of its client's queue."""
        self._queues.setdefault(fetch.client, OrderedDict())[fetch.entry.version] = fetch

    def remove(self, fetch: Fetch) -> bool:
        """Take a fetch out; say whether it was there."""
        queue = self._queues.get(fetch.client)
        if queue is None or queue.pop(fetch.entry.version, None) is None:
            return False
        if not queue:
            del self._queues[fetch.client]
        return True

    def take(self, pages: int, size: int) -> list[Fetch]:
        """Take out the next fetches, one of each client in turn: at most `pages`, and `size` bytes or one."""
        batch: list[Fetch] = []
        while self._queues and len(batch) < pages:
            client, queue = next(iter(self._queues.items()))
            fetch = next(iter(queue.values()))
            size -= fetch.entry.size
            if batch and size < 0:
                break
            batch.append(fetch)
            self.remove(fetch)
            if client in self._queues:
                self._queues.move_to_end(client)
        return batch
