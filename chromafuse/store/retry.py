"""How long a request to a store may take and how its repetitions are spaced.

One deadline covers one request with all its repetitions; what is left when it passes is StoreTimeout.
Repetitions wait a random part of a growing span ("full jitter"), so that many readers that lost the same
server do not come back in step. Every request we make can be repeated: reads are reads, `add` keeps what
exists, `upsert` and `delete` end in the same state.

Concurrency: plain functions over trio's clock; no state.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..errors import StoreTimeout

FIRST_SPAN = 0.05  # s; a restarted local server answers again within a few of these
LONGEST_SPAN = 2.0  # s
ATTEMPTS = 5  # requests a store may answer with "later" or an internal error before we believe it


def pause_before(attempt: int) -> float:
    """Return how long to wait before repetition `attempt` (1 is the first), in seconds."""
    span = min(LONGEST_SPAN, FIRST_SPAN * 2 ** min(attempt, 16))
    return random.uniform(0, span)


@contextmanager
def within(deadline: float, what: str) -> Iterator[trio.CancelScope]:
    """Raise StoreTimeout, naming `what`, when the body takes longer than `deadline` seconds."""
    with trio.move_on_after(deadline) as scope:
        yield scope
    if scope.cancelled_caught:
        raise StoreTimeout(f"{what}: no answer within {deadline:g} s")
