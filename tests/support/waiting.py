"""Waiting for a state: poll it under a deadline, never sleep and hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INTERVAL = 0.01  # s; a poll that reads a file costs far less than this


def wait_for(predicate: Callable[[], T], *, timeout: float = 10.0, what: str) -> T:
    """Return the first truthy value of `predicate`; fail by the name of `what` when time is up.

    The predicate is asked once more after the deadline, so a machine that stalled is not a failure.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        value = predicate()
        if value:
            return value
        if late:
            raise AssertionError(f"not within {timeout:g} s: {what} (last seen: {value!r})")
        time.sleep(INTERVAL)
