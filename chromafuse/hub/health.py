"""Whether the store answers: the one place that knows, and that says so once a change.

Concurrency: one trio thread; state changes only between two awaits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ..errors import ChromafuseError, StoreError

log = logging.getLogger(__name__)

PROBE = 2.0  # s between two looks at a store that did not answer


class Health:
    """The state of the store, as the last call found it."""

    def __init__(self) -> None:
        self.error = ""
        self._changed = trio.Event()
        self._answered = float("-inf")  # when a call last ended well

    @property
    def up(self) -> bool:
        """Whether the last call was answered."""
        return not self.error

    def note(self, exc: StoreError | None, started: float) -> None:
        """Take note of how a call that began at `started` (trio's clock) ended."""
        if exc is None:
            self._answered = trio.current_time()
        elif started < self._answered:
            return  # an old call that only now gives up says nothing of the store as it is
        was_up, self.error = self.up, "" if exc is None else f"{type(exc).__name__}: {exc}"
        if self.up == was_up:
            return
        if self.up:
            log.warning("the store answers again")
        else:
            log.warning("the store does not answer: %s", self.error)
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        """Wait until `up` turns."""
        await self._changed.wait()

    async def probe(self, look: Callable[[], Awaitable[object]]) -> None:
        """Look at a store that is down every PROBE seconds, for nobody may be reading."""
        while True:
            if self.up:
                await self.changed()
                continue
            await trio.sleep(PROBE)
            started = trio.current_time()
            try:
                await look()
            except StoreError as exc:
                self.note(exc, started)
            except ChromafuseError:
                self.note(None, started)  # it answers; what it says is for readers to find out
            else:
                self.note(None, started)
