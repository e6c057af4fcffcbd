"""The writer's lock: which of several writers may publish into a collection.

Chroma has no compare-and-swap. What it has: `add` never replaces a record, so of several writers that add
`__lock__:<n>` the one whose owner is found in it afterwards has won. The number n is the generation that
the winner will publish, so every lock up to the root's generation is history. The holder keeps adding to
the beat in its record; a waiter that has seen one beat for a whole lease, by its own clock, takes the holder
for dead and adds the lock after it, n + 1. Clocks of two hosts are never compared. The highest lock is the
valid one: a holder that finds a higher one was given up by somebody, and gives up itself (`LockLost`).

What can still go wrong is said in publish.py.

Concurrency: one `Lock` belongs to one task; a second task of the same nursery beats, and is never cancelled
inside a beat, so that no beat can land after the release and bring the lock back.
"""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
import trio

from ..errors import LockBusy, LockLost, StoreError
from ..model.records import ROOT_ID, Root, decode_root
from .protocol import Row, Store, Vector

log = logging.getLogger(__name__)

BEATS = 4  # a lease; so one lost beat does not lose the lock
AHEAD = (
    16  # locks looked for in one call; so many writers died in a row before a second call is needed
)
RELEASE = 10.0  # s that giving the lock back may take, also when the writer is being cancelled
_OWNER = re.compile(r"[^\w.-]")


def lock_id(number: int) -> str:
    """Return the id of lock `number`."""
    return f"__lock__:{number}"


@dataclass(frozen=True, slots=True)
class State:
    """The root and the locks above its generation, as found: number -> document."""

    root: Root | None
    document: str | None  # of the root
    locks: dict[int, str]

    @property
    def generation(self) -> int:
        """The generation that is published, 0 where there is none."""
        return self.root.generation if self.root else 0


async def load_state(store: Store) -> State:
    """Fetch the root and every lock above its generation. Raises UnknownFormat, RecordDamaged, StoreError."""
    document = await _document(store)
    root = None if document is None else decode_root(document)
    first = root.generation + 1 if root else 1
    locks: dict[int, str] = {}
    while True:
        found = await store.get([lock_id(n) for n in range(first, first + AHEAD)])
        for n in range(first, first + AHEAD):
            if lock_id(n) in found:
                locks[n] = found[lock_id(n)].document
        first += AHEAD
        if first - 1 not in locks:
            return State(root, document, locks)


async def _document(store: Store) -> str | None:
    rows = await store.get([ROOT_ID])
    return rows[ROOT_ID].document if ROOT_ID in rows else None


@dataclass(slots=True, eq=False)
class Lock:
    """A lock that was won. `root` is what was published when it was; `generation` what may be, next."""

    generation: int
    root: Root | None
    owner: str
    lease: float
    _store: Store
    _vector: Vector
    _expected: str | None  # the root's document as it has to be
    _fresh_until: float
    _count: int = 0
    _beating: trio.Lock = field(default_factory=trio.Lock)

    def check(self) -> None:
        """Raise LockLost where the last beat is older than a lease: others may take us for dead."""
        if trio.current_time() >= self._fresh_until:
            raise LockLost(
                f"the store took no sign of life from this writer for {self.lease:g} s, so that another "
                "may have taken over"
            )

    async def confirm(self) -> None:
        """Raise LockLost unless, a moment ago, this was the valid lock and the root the expected one.

        On return two thirds of the lease are left: with the default lease and deadline, one store call ends
        within what is left.
        """
        self.check()
        if self._left() < self.lease * 11 / 12:
            await self.beat()
        number, owned = self.generation, lock_id(self.generation)
        higher = [lock_id(n) for n in range(number + 1, number + 1 + AHEAD)]
        rows = await self._store.get([ROOT_ID, owned, *higher])
        taken = [id for id in higher if id in rows]
        if taken or owned not in rows or _owner(rows[owned].document) != self.owner:
            other = f" ({_owner(rows[taken[-1]].document)})" if taken else ""
            raise LockLost(f"another writer{other} took this one for dead and took over")
        document = rows[ROOT_ID].document if ROOT_ID in rows else None
        if document != self._expected:
            raise LockLost("another writer has published meanwhile")
        if self._left() < self.lease * 2 / 3:
            raise LockLost("the store answers too slowly to publish safely")

    def published(self, document: str) -> None:
        """Note that the root is now `document`, by this writer's own hand."""
        self._expected = document

    async def beat(self) -> None:
        """Write a sign of life; the time of sending counts, since a waiter cannot have seen it before."""
        async with self._beating:
            sent = trio.current_time()
            self._count += 1
            with trio.CancelScope(shield=True):
                await self._store.upsert(
                    [_row(self.generation, self.owner, self._count, self._vector)]
                )
            self._fresh_until = sent + self.lease

    async def keep_beating(self, stop: trio.Event) -> None:
        """Beat until `stop`. A beat that fails is not the end: the lease is, and `check` sees it."""
        while not stop.is_set():
            with trio.move_on_after(self.lease / BEATS):
                await stop.wait()
                return
            try:
                await self.beat()
            except StoreError as exc:
                log.info("no sign of life could be written to the writer's lock: %s", exc)

    async def release(self) -> None:
        """Remove the lock, and those of dead writers below it."""
        first = self.root.generation + 1 if self.root else 1
        numbers = range(max(first, self.generation - AHEAD), self.generation + 1)
        with trio.move_on_after(RELEASE, shield=True) as scope:
            try:
                await self._store.delete([lock_id(n) for n in numbers])
            except StoreError as exc:
                log.warning(
                    "the writer's lock could not be removed, the next waits a lease: %s", exc
                )
        if scope.cancelled_caught:
            log.warning("the writer's lock could not be removed within %g s", RELEASE)

    def _left(self) -> float:
        return self._fresh_until - trio.current_time()


@dataclass(slots=True)
class _Watch:
    """The highest lock as a waiter saw it, and since when it has not changed."""

    number: int
    document: str
    since: float

    def dead(self, lease: float) -> bool:
        return trio.current_time() - self.since >= lease


@asynccontextmanager
async def hold_lock(
    store: Store, vector: Vector, *, lease: float, wait: float
) -> AsyncIterator[Lock]:
    """Hold the writer's lock; raise LockBusy when another holds it for longer than `wait` seconds."""
    lock = await _acquire(store, vector, lease, wait)
    raised: BaseException | None = None
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.keep_beating, stop)
            try:
                yield lock
            except BaseException as exc:  # noqa: BLE001 - raised again below
                raised = exc  # past the nursery, which would wrap it in a group
            stop.set()
    finally:
        await lock.release()
    if raised is not None:
        raise raised


async def _acquire(store: Store, vector: Vector, lease: float, wait: float) -> Lock:
    owner = f"{_OWNER.sub('_', socket.gethostname())[:64]}:{os.getpid()}:{secrets.token_hex(4)}"
    give_up = trio.current_time() + wait
    watch: _Watch | None = None
    while True:
        state = await load_state(store)
        highest = max(state.locks, default=0)
        if highest:
            watch = _watch(watch, highest, state.locks[highest])
        if not highest or (watch and watch.dead(lease)):
            lock = await _claim(store, max(highest, state.generation) + 1, owner, vector, lease)
            if lock is not None:
                return lock
        elif trio.current_time() >= give_up:
            raise LockBusy(
                f"another writer{_named(watch)} has been publishing for {wait:g} s; "
                "wait until it is done, and run again"
            )
        await trio.sleep(lease / 16 * (1 + random.random()))


def _watch(watch: _Watch | None, number: int, document: str) -> _Watch:
    if watch and (watch.number, watch.document) == (number, document):
        return watch
    return _Watch(number, document, trio.current_time())


def _named(watch: _Watch | None) -> str:
    return f" ({_owner(watch.document)})" if watch else ""


async def _claim(
    store: Store, number: int, owner: str, vector: Vector, lease: float
) -> Lock | None:
    """Try to win lock `number`; None where it is another's, or was history before it was won."""
    sent = trio.current_time()
    won = False
    try:
        await store.add([_row(number, owner, 0, vector)])
        state = await load_state(store)
        won = max(state.locks, default=0) == number and _owner(state.locks[number]) == owner
    finally:
        if not won:
            await _withdraw(store, number, owner)
    if not won:
        return None
    return Lock(number, state.root, owner, lease, store, vector, state.document, sent + lease)


async def _withdraw(store: Store, number: int, owner: str) -> None:
    """Remove lock `number` if it is the owner's, also when the owner is being cancelled."""
    id = lock_id(number)
    with trio.move_on_after(RELEASE, shield=True):
        rows = await store.get([id])
        if id in rows and _owner(rows[id].document) == owner:
            await store.delete([id])


def _row(number: int, owner: str, beat: int, vector: Vector) -> Row:
    document = orjson.dumps({"owner": owner, "beat": beat}).decode()
    return Row(lock_id(number), document, {"kind": "lock"}, vector)


def _owner(document: str) -> str:
    try:
        record = orjson.loads(document)
        return str(record["owner"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return "of unknown name"
