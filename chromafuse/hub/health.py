"""Whether the store, or the shared cache, answers: the one place that knows, and that says so once a change.

Concurrency: one trio thread; state changes only between two awaits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ..errors import ChromafuseError, StoreError

log = logging.getLogger(__name__)

PROBE = 2.0  # s between two looks at one that did not answer


class Health:
    """The state of the store, or of `what` is named, as the last call found it.

    Errors of the class `failure` say that it does not answer; any other says that it does.
    """

    def __init__(
        self, what: str = "the store", failure: type[ChromafuseError] = StoreError
    ) -> None:
        self.error = ""
        self._what = what
        self._failure = failure
        self._changed = trio.Event()
        self._answered = float("-inf")  # when a call last ended well

    @property
    def up(self) -> bool:
        """Whether the last call was answered."""
        return not self.error

    def note(self, exc: ChromafuseError | None, started: float) -> None:
        """Take note of how a call that began at `started` (trio's clock) ended."""
        if exc is None:
            self._answered = trio.current_time()
        elif started < self._answered:
            return  # an old call that only now gives up says nothing of how it is now
        was_up, self.error = self.up, "" if exc is None else f"{type(exc).__name__}: {exc}"
        if self.up == was_up:
            return
        if self.up:
            log.warning("%s answers again", self._what)
        else:
            log.warning("%s does not answer: %s", self._what, self.error)
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        """Wait until `up` turns."""
        await self._changed.wait()

    async def probe(self, look: Callable[[], Awaitable[object]]) -> None:
        """Look every PROBE seconds while it is down, for nobody may be reading."""
        while True:
            if self.up:
                await self.changed()
                continue
            await trio.sleep(PROBE)
            started = trio.current_time()
            try:
                await look()
            except ChromafuseError as exc:
                # Any other error is an answer; what it says is for readers to find out.
                self.note(exc if isinstance(exc, self._failure) else None, started)
            else:
                self.note(None, started)
