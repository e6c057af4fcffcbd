"""The view's end of the hub's socket: the snapshot once, then bytes by (generation, inode, offset, size).

A hub may die and another take its place: the supervisor hands in a new socket. Reads that wait then are asked
again there, all within the one deadline of each read. What a hub says is checked as the bytes of a stranger:
a frame that does not fit closes the link, and the view waits for the next one.

Concurrency: one reader task and one writer task a link; any number of tasks call `read`. State is changed
between two awaits only.
"""

from __future__ import annotations

import errno
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from .. import wire
from ..errors import ChromafuseError, ProtocolError, StoreTimeout, StoreUnavailable
from ..model.snapshot import Snapshot

log = logging.getLogger(__name__)

DEADLINE = 10.0  # s for one read, waiting for another hub included
# The kernel asks for a page twice before it gives up (readahead, then the page alone): without a memory of
# the first failure the caller would wait two deadlines.
FAILURE_KEPT = 1.0  # s
ANSWER_MAX = 4 << 20  # bytes of the answer to a question
_CHUNK = 256 << 10  # bytes taken from the socket at once
_REQUESTS = 1 << 32  # request ids are 32 bits wide
# What a reader may be told. The kernel takes errnos of 512 and above for no answer at all, and EINTR makes
# programs ask again without end.
_PASSED_ON = frozenset({errno.EIO, errno.ETIMEDOUT, errno.ESTALE})


class Refused(ChromafuseError):
    """The hub answered a read with an errno."""

    def __init__(self, code: int) -> None:
        super().__init__(f"errno {code}")
        self.errno = code if code in _PASSED_ON else errno.EIO


class _LinkLost(Exception):
    """The link ended while a read waited on it."""


@dataclass(frozen=True, slots=True)
class Held:
    """The tree that this view shows, as the first hub described it."""

    snapshot: Snapshot
    digest: bytes


@dataclass(slots=True, eq=False)
class _Pending:
    """One read that waits for its answer."""

    size: int
    done: trio.Event = field(default_factory=trio.Event)
    parts: list[bytes | memoryview] = field(default_factory=list)
    code: int = 0
    lost: bool = False

    def add(self, part: bytes | memoryview) -> None:
        self.parts.append(part)
        if sum(map(len, self.parts)) > self.size:
            raise ProtocolError(f"more than the {self.size} bytes that were asked for")

    def fail(self, code: int) -> None:
        self.code = code
        self.done.set()

    def outcome(self) -> list[bytes | memoryview]:
        """Return the parts of the answer. Raises Refused, or _LinkLost."""
        if self.lost:
            raise _LinkLost
        if self.code:
            raise Refused(self.code)
        return self.parts

    def lose(self) -> None:
        self.lost = True
        self.done.set()


Take = Callable[[list[tuple[int, memoryview]]], None]


class _Connection:
    """One socket, from HELLO to its end."""

    def __init__(self, stream: trio.SocketStream, generation: int) -> None:
        self.generation = generation  # the hub's name for the tree that this view shows
        self.take: Take | None = None  # gets what a hub pushes that serves the tree shown here
        self.store_up = True  # until the hub says otherwise
        self._stream = stream
        self._frames: deque[wire.Frame] = deque()
        self._decoder = wire.Decoder()
        self._pending: dict[int, _Pending] = {}
        self._issued = 0
        # Unbounded, but at most one small frame for each of the kernel's requests, which are bounded.
        self._outbox, self._outgoing = trio.open_memory_channel[bytes](math.inf)

    async def greet(self, held: Held | None) -> tuple[wire.Greeting, bytes]:
        """Send HELLO; return the greeting, and the encoded snapshot where there was none held.

        Raises ProtocolError, or _LinkLost.
        """
        mine = (held.snapshot.generation, held.digest) if held else (0, wire.NO_DIGEST)
        self._outbox.send_nowait(wire.hello(*mine))
        greeting = wire.parse_greeting((await self._expect(wire.Type.GREETING)).payload)
        if greeting.version != wire.VERSION:
            raise ProtocolError(f"the hub speaks version {greeting.version}, not {wire.VERSION}")
        encoded, left = bytearray(), greeting.length
        while left > 0:
            part = (await self._expect(wire.Type.SNAPSHOT)).payload
            left -= len(part)
            if held is None:  # else it is read past: this mount keeps its tree
                encoded += part
        if left:
            raise ProtocolError("a snapshot longer than announced")
        return greeting, bytes(encoded)

    async def ask(self, inode: int, offset: int, size: int, again: bool) -> bytes | memoryview:
        """Return the answer to one read. Raises Refused, or _LinkLost."""
        what = wire.Read(self.generation, inode, offset, size, again)
        parts = await self._answer(size, lambda request: wire.read(request, what))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def query(self, directory: int, question: bytes) -> bytes:
        """Return the answer to a question. Raises Refused, or _LinkLost."""
        what = wire.Query(self.generation, directory, question)
        return b"".join(await self._answer(ANSWER_MAX, lambda request: wire.query(request, what)))

    async def receive(self) -> None:
        """Hand out answers until the hub closes. Raises ProtocolError."""
        while (frame := await self._next()) is not None:
            if frame.type is wire.Type.STORE:
                self.store_up = wire.parse_store_state(frame.payload)
            elif frame.type is wire.Type.PUSH:
                pages = wire.parse_push(frame.payload)
                if self.take is not None:
                    self.take(pages)
            else:
                self._hand_out(frame)

    async def send(self) -> None:
        """Send what is queued, in order."""
        async for data in self._outgoing:
            await self._stream.send_all(data)

    def abandon(self) -> None:
        """Tell every read that waits on this socket to ask elsewhere."""
        for pending in self._pending.values():
            pending.lose()

    async def close(self) -> None:
        """Close the socket; nothing waits on it afterwards."""
        self.abandon()
        self._outbox.close()
        await trio.aclose_forcefully(self._stream)

    async def _answer(self, size: int, encode: Callable[[int], bytes]) -> list[bytes | memoryview]:
        """Send what `encode` makes for a request id; return the parts of the answer, of `size` bytes at most."""
        request = self._issued % _REQUESTS
        while request in self._pending:
            self._issued += 1
            request = self._issued % _REQUESTS
        self._issued += 1
        pending = self._pending[request] = _Pending(size)
        try:
            self._outbox.send_nowait(encode(request))
            await pending.done.wait()
        finally:
            self._pending.pop(request, None)
        return pending.outcome()

    def _hand_out(self, frame: wire.Frame) -> None:
        if frame.type not in (wire.Type.DATA, wire.Type.END, wire.Type.ERROR):
            raise ProtocolError(f"a {frame.type.name} frame after the greeting")
        pending = self._pending.get(frame.request)
        if pending is None:
            if frame.request >= self._issued:
                raise ProtocolError(f"an answer to request {frame.request}, which was never sent")
            return  # the read gave up in the meantime
        if frame.type is wire.Type.ERROR:
            pending.fail(wire.parse_error(frame.payload))
            return
        pending.add(frame.payload)
        if frame.type is wire.Type.END:
            pending.done.set()

    async def _expect(self, kind: wire.Type) -> wire.Frame:
        while True:
            frame = await self._next()
            if frame is None:
                raise _LinkLost
            if frame.type is kind:
                return frame
            if frame.type is not wire.Type.STORE:
                raise ProtocolError(f"a {frame.type.name} frame where {kind.name} belongs")
            self.store_up = wire.parse_store_state(frame.payload)

    async def _next(self) -> wire.Frame | None:
        while not self._frames:
            data = await self._stream.receive_some(_CHUNK)
            if not data:
                return None
            self._frames.extend(self._decoder.feed(bytes(data)))
        return self._frames.popleft()


class Link:
    """What the handlers ask. `serve` runs one socket; the newest one is the one that is asked."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._held: Held | None = None
        self._first = trio.Event()
        self._refusal: ProtocolError | None = None
        self._connection: _Connection | None = None
        self._changed = trio.Event()  # set, and replaced, when a connection is ready
        self._take: Take | None = None
        self._stopped = False
        self._timed_out: dict[int, float] = {}  # inode -> when its failure is forgotten

    @property
    def backend_up(self) -> bool:
        """Whether pages that nobody has read yet can be had."""
        return self._connection is not None and self._connection.store_up

    async def held(self) -> Held:
        """Wait for the tree of the first hub. Raises ProtocolError where it sent none that can be read."""
        await self._first.wait()
        if self._refusal is not None:
            raise self._refusal
        assert self._held is not None
        return self._held

    async def serve(self, stream: trio.SocketStream) -> None:
        """Speak with one hub until it goes away or breaks the rules."""
        connection = _Connection(stream, self._held.snapshot.generation if self._held else 0)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sender, connection)
                await self._conversation(connection)
                nursery.cancel_scope.cancel()
        finally:
            if self._connection is connection:
                self._connection = None
            with trio.CancelScope(shield=True):
                await connection.close()

    def hand_pushed_to(self, take: Take) -> None:
        """Give the pages that a hub pushes to `take`, which raises ProtocolError for wrong ones."""
        self._take = take

    async def read(
        self, inode: int, offset: int, size: int, *, again: bool = False
    ) -> bytes | memoryview:
        """Return `size` bytes of a page, `again` where the kernel had it.

        Raises Refused, StoreTimeout, or StoreUnavailable when stopped.
        """
        now = trio.current_time()
        if self._timed_out.get(inode, now) > now:
            raise StoreTimeout("the page could not be had a moment ago")
        try:
            with trio.fail_after(self._deadline):
                return await self._ask_until_answered(inode, offset, size, again)
        except trio.TooSlowError:
            self._remember_failure(inode)
            raise StoreTimeout(f"no answer from the hub in {self._deadline:g} s") from None

    async def query(self, directory: int, question: bytes, deadline: float) -> bytes:
        """Return the hub's answer to a question about a directory.

        Raises StoreTimeout; StoreUnavailable where there is no hub now; Refused.
        """
        if self._connection is None or self._stopped:
            raise StoreUnavailable("there is no hub to ask")
        try:
            with trio.fail_after(deadline):
                return await self._connection.query(directory, question)
        except trio.TooSlowError:
            raise StoreTimeout(f"no answer from the hub in {deadline:g} s") from None
        except _LinkLost:
            raise StoreUnavailable("the hub is gone") from None

    def stop(self) -> None:
        """End every read that waits, now and from now on: the mount goes away."""
        self._stopped = True
        if self._connection is not None:
            self._connection.abandon()
        self._announce()

    async def _ask_until_answered(
        self, inode: int, offset: int, size: int, again: bool
    ) -> bytes | memoryview:
        while True:
            changed = self._changed
            if self._stopped:
                raise StoreUnavailable("the mount is going away")
            if self._connection is None:
                await changed.wait()
                continue
            try:
                return await self._connection.ask(inode, offset, size, again)
            except _LinkLost:
                continue

    async def _conversation(self, connection: _Connection) -> None:
        try:
            greeting, encoded = await connection.greet(self._held)
            self._adopt(connection, greeting, encoded)
            await connection.receive()
        except ProtocolError as exc:
            log.error("the link to the hub is closed: %s", exc)
            if self._held is None:
                self._refusal = exc
                self._first.set()
        except (_LinkLost, trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("the link to the hub ended")

    def _adopt(self, connection: _Connection, greeting: wire.Greeting, encoded: bytes) -> None:
        if self._held is None:
            self._held = Held(wire.decode_snapshot(encoded), greeting.digest)
            connection.generation, connection.take = greeting.generation, self._hand_on
            self._first.set()
        elif greeting.digest == self._held.digest:
            # What this view may see is the same, so are its inodes; only the hub's number for it changed.
            connection.generation, connection.take = greeting.generation, self._hand_on
        else:
            log.warning("the hub serves another tree now; this mount keeps its own")
        previous, self._connection = self._connection, connection
        if previous is not None:
            previous.abandon()
        self._announce()

    def _hand_on(self, pages: list[tuple[int, memoryview]]) -> None:
        if self._take is not None:
            self._take(pages)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _remember_failure(self, inode: int) -> None:
        now = trio.current_time()
        for old in [old for old, until in self._timed_out.items() if until <= now]:
            del self._timed_out[old]
        self._timed_out[inode] = now + FAILURE_KEPT

    async def _sender(self, connection: _Connection) -> None:
        try:
            await connection.send()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("the hub takes no more requests")  # the reader sees the end and closes
