"""The view's end of the hub's socket, against bytes written by the test."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from chromafuse import wire
from chromafuse.errors import ProtocolError, StoreTimeout, StoreUnavailable
from chromafuse.view.link import Link, Refused
from tests.support.fake_hub import make_view
from tests.support.logguard import LogGuard

SNAPSHOT = make_view({"a.md": b"a" * 100, "b.md": b"b" * 100}).snapshot
ENCODED = wire.encode_snapshot(SNAPSHOT)
DIGEST = b"\xaa" * 32
GREETING = wire.greeting(SNAPSHOT.generation, DIGEST, len(ENCODED))
HELD = wire.greeting(SNAPSHOT.generation, DIGEST, 0)
CLOSED = "the link to the hub is closed"


@dataclass
class Hub:
    """The hub's end, played by the test."""

    stream: trio.SocketStream
    decoder: wire.Decoder = field(default_factory=wire.Decoder)
    frames: list[wire.Frame] = field(default_factory=list)

    async def hear(self) -> wire.Frame:
        """Return the next frame of the view."""
        while not self.frames:
            data = await self.stream.receive_some()
            assert data, "the view closed the link"
            self.frames += self.decoder.feed(bytes(data))
        return self.frames.pop(0)

    async def say(self, *frames: bytes) -> None:
        """Send frames."""
        await self.stream.send_all(b"".join(frames))

    async def greet(self) -> None:
        """Hear HELLO and send the tree."""
        assert (await self.hear()).type is wire.Type.HELLO
        await self.say(GREETING, *wire.snapshot_frames(ENCODED))

    async def hear_read(self) -> tuple[int, wire.Read]:
        """Return request id and content of the next READ."""
        frame = await self.hear()
        assert frame.type is wire.Type.READ
        return frame.request, wire.parse_read(frame.payload)


@asynccontextmanager
async def hub_of(link: Link) -> AsyncIterator[Hub]:
    """Connect a hub to a link; the link's task ends with it."""
    ours, theirs = (trio.socket.from_stdlib_socket(end) for end in socket.socketpair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.serve, trio.SocketStream(theirs))
        yield Hub(trio.SocketStream(ours))
        await trio.aclose_forcefully(trio.SocketStream(ours))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario that must not hang."""

    async def bounded() -> None:
        with trio.fail_after(10):
            await scenario()

    trio.run(bounded)


class Reads:
    """Reads that run in the background, and how they ended."""

    def __init__(self, link: Link, nursery: trio.Nursery) -> None:
        self._link, self._nursery = link, nursery
        self.results: dict[int, bytes | Exception] = {}
        self._done = trio.Event()

    def start(self, offset: int, size: int = 10) -> None:
        self._nursery.start_soon(self._read, offset, size)

    async def _read(self, offset: int, size: int) -> None:
        try:
            self.results[offset] = await self._link.read(2, offset, size)
        except (StoreTimeout, StoreUnavailable, Refused) as exc:
            self.results[offset] = exc
        self._done.set()
        self._done = trio.Event()

    async def wait(self, count: int) -> dict[int, bytes | Exception]:
        while len(self.results) < count:
            await self._done.wait()
        return self.results


def test_the_first_hub_gives_the_tree() -> None:
    """HELLO names no tree; what comes back is the tree, in frames of any number."""

    async def scenario() -> None:
        link = Link()
        assert not link.backend_up
        async with hub_of(link) as hub:
            hello = await hub.hear()
            assert wire.parse_hello(hello.payload) == wire.Hello(wire.VERSION, 0, bytes(32))
            half = len(ENCODED) // 2
            parts = [wire.frame(wire.Type.SNAPSHOT, 0, ENCODED[:half]), wire.store_state(False)]
            await hub.say(GREETING, *parts, wire.frame(wire.Type.SNAPSHOT, 0, ENCODED[half:]))
            held = await link.held()
            assert (held.snapshot, held.digest) == (SNAPSHOT, DIGEST)
            assert not link.backend_up

    run(scenario)


def test_answers_come_in_any_order() -> None:
    """Each answer goes to the read that asked, whole also when it comes in pieces."""

    async def scenario() -> None:
        link = Link()
        async with hub_of(link) as hub, trio.open_nursery() as nursery:
            await hub.greet()
            await link.held()
            reads = Reads(link, nursery)
            requests = {}
            for offset in (0, 10, 20):
                reads.start(offset)
                request, read = await hub.hear_read()
                assert read == wire.Read(SNAPSHOT.generation, 2, offset, 10)
                requests[offset] = request
            assert len(set(requests.values())) == 3
            await hub.say(
                wire.frame(wire.Type.DATA, requests[20], b"twenty"),
                wire.error(requests[10], errno.ESTALE),
                *wire.answer(requests[0], b"zero"),
                wire.frame(wire.Type.END, requests[20], b" end"),
            )
            found = await reads.wait(3)
            assert (found[0], found[20]) == (b"zero", b"twenty end")
            assert isinstance(found[10], Refused)
            assert found[10].errno == errno.ESTALE

    run(scenario)


def test_an_answer_that_comes_too_late_is_ignored() -> None:
    """A read that gave up leaves no trap: its answer is dropped, the next one is heard."""

    async def scenario() -> None:
        link = Link(deadline=0.05)
        async with hub_of(link) as hub, trio.open_nursery() as nursery:
            await hub.greet()
            await link.held()
            reads = Reads(link, nursery)
            reads.start(0)
            late, _ = await hub.hear_read()
            assert isinstance((await reads.wait(1))[0], StoreTimeout)
            nursery.start_soon(link.read, 3, 0, 3)
            request, _ = await hub.hear_read()
            await hub.say(*wire.answer(late, b"late"), *wire.answer(request, b"now"))

    run(scenario)


def test_a_failure_is_remembered_for_a_moment() -> None:
    """The kernel asks for a page twice: the second question does not wait a second deadline."""

    async def scenario() -> None:
        link = Link(deadline=0.2)
        for longest in (1.0, 0.1):
            start = trio.current_time()
            with pytest.raises(StoreTimeout):
                await link.read(2, 0, 10)
            assert trio.current_time() - start < longest

    run(scenario)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 12,
        wire.frame(wire.Type.END, 99, b"never asked"),
        wire.frame(wire.Type.END, 0, b"12345678901"),
        wire.frame(wire.Type.ERROR, 0, b""),
        wire.frame(wire.Type.STORE, 0, b"?"),
        wire.frame(wire.Type.HELLO, 0, b""),
        wire.frame(wire.Type.READ, 0, b""),
        GREETING,
        wire.frame(wire.Type.SNAPSHOT, 0, b"more"),
    ],
    ids=[
        *("no frame", "no request", "too long", "no errno", "no state", "hello", "read"),
        *("second greeting", "more snapshot"),
    ],
)
def test_what_breaks_the_rules_closes_the_link(log_guard: LogGuard, garbage: bytes) -> None:
    """The read that waits asks the next hub; nothing of the bad one is handed out."""
    log_guard.expect(CLOSED)

    async def scenario() -> None:
        link = Link()
        async with trio.open_nursery() as nursery:
            reads = Reads(link, nursery)
            async with hub_of(link) as hub:
                await hub.greet()
                await link.held()
                reads.start(0)
                await hub.hear_read()
                await hub.say(garbage)
                assert await hub.stream.receive_some() == b""
            assert not link.backend_up
            async with hub_of(link) as hub:
                hello = wire.parse_hello((await hub.hear()).payload)
                assert hello == wire.Hello(wire.VERSION, SNAPSHOT.generation, DIGEST)
                await hub.say(HELD)
                request, read = await hub.hear_read()
                assert read.generation == SNAPSHOT.generation
                await hub.say(*wire.answer(request, b"good"))
                assert await reads.wait(1) == {0: b"good"}

    run(scenario)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([wire.frame(wire.Type.GREETING, 0, b"")], "a payload of 0 bytes where 52 belong"),
        ([wire.greeting(7, DIGEST, 0)], "a snapshot without its head"),
        (
            [wire.greeting(7, DIGEST, 10), wire.frame(wire.Type.SNAPSHOT, 0, b"x" * 11)],
            "a snapshot longer than announced",
        ),
        ([wire.greeting(7, DIGEST, 1 << 40)], f"a snapshot of {1 << 40} bytes is announced"),
        ([GREETING, wire.error(0, 5)], "a ERROR frame where SNAPSHOT belongs"),
        (
            [wire.frame(wire.Type.GREETING, 0, b"\3" + bytes(51))],
            "the hub speaks version 3, not 2",
        ),
    ],
)
def test_a_tree_that_cannot_be_read_is_refused(
    log_guard: LogGuard, frames: list[bytes], why: str
) -> None:
    """The mount is not made on half a tree, nor with a hub of another version."""
    log_guard.expect(f"{CLOSED}: {why}")

    async def scenario() -> None:
        link = Link()
        async with hub_of(link) as hub:
            await hub.hear()
            await hub.say(*frames)
            with pytest.raises(ProtocolError) as caught:
                await link.held()
            assert str(caught.value) == why

    run(scenario)


def test_a_hub_that_dies_before_its_tree_is_waited_out() -> None:
    """The supervisor starts another hub; its tree is taken."""

    async def scenario() -> None:
        link = Link()
        async with hub_of(link) as hub:
            await hub.hear()
            await hub.say(GREETING, wire.frame(wire.Type.SNAPSHOT, 0, ENCODED[:5]))
        async with hub_of(link) as hub:
            await hub.greet()
            assert (await link.held()).snapshot == SNAPSHOT

    run(scenario)


def test_a_newer_link_takes_over() -> None:
    """A second link is asked from its greeting on, also by reads that wait on the first."""

    async def scenario() -> None:
        link = Link()
        async with trio.open_nursery() as nursery, hub_of(link) as first:
            await first.greet()
            await link.held()
            reads = Reads(link, nursery)
            reads.start(0)
            await first.hear_read()
            async with hub_of(link) as second:
                await second.hear()
                await second.say(HELD)
                request, _ = await second.hear_read()
                await second.say(*wire.answer(request, b"second"))
                assert await reads.wait(1) == {0: b"second"}

    run(scenario)


def test_a_stopped_link_lets_nobody_wait() -> None:
    """At the end of the mount reads fail at once, the waiting ones and the new ones."""

    async def scenario() -> None:
        link = Link()
        async with trio.open_nursery() as nursery:
            reads = Reads(link, nursery)
            reads.start(0)
            async with hub_of(link) as hub:
                await hub.greet()
                await hub.hear_read()
                link.stop()
                reads.start(10)
                found = await reads.wait(2)
                assert [type(found[at]) for at in (0, 10)] == [StoreUnavailable] * 2

    run(scenario)
