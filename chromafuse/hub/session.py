"""One view's link: the snapshot it gets, and the bytes it asks for. Every page is checked before it goes out.

The identity is fixed when the session is made; no frame carries or changes one. A request names an inode of
this session's own snapshot; anything else (a directory, somebody else's number, another generation) is
ESTALE, alike for all. Visibility is checked again on every read, before any cache is looked at.

What a read makes likely to be read next is sent along unasked (readahead.py), under the same checks, to a view
that shows the tree which is served.

The view is not trusted: frames are bounded, so is what one link may have under way, and a view that does not
read its socket stops being read. A link that breaks the rules is closed; the hub lives on.

Concurrency: one reader task, one writer task, one task a request in flight and a few that send ahead, in a
nursery of the session.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import trio

from .. import wire
from ..errors import ChromafuseError, ProtocolError, StaleInode, StoreTimeout, errno_of
from ..model.entry import TreeEntry
from .health import Health
from .pages import Pages
from .queries import Queries
from .readahead import ReadAhead
from .scope import Scope

log = logging.getLogger(__name__)

DEADLINE = 9.0  # s for one read; the view gives up after 10
IN_FLIGHT = 256  # requests of one link; more wait in the view's socket
READ_MAX = 1 << 20  # bytes of one read; the kernel asks for no more
SENDING = 32  # tasks of one link that send what nobody asked for; with so many nothing is added
SEND_PAGES, SEND_BYTES = 64, 1 << 20  # of one
_CHUNK = 64 << 10  # bytes taken from the socket at once


class _Incoming:
    """The frames of one stream."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._decoder = wire.Decoder()
        self._frames: deque[wire.Frame] = deque()

    async def next(self) -> wire.Frame | None:
        """Return the next frame, None at the end. Raises ProtocolError."""
        while not self._frames:
            data = await self._stream.receive_some(_CHUNK)
            if not data:
                if self._decoder.unfinished:
                    raise ProtocolError("the link ended in the middle of a frame")
                return None
            self._frames.extend(self._decoder.feed(bytes(data)))
        return self._frames.popleft()


class Session:
    """One link. `run` ends when the view closes it, or when it breaks the rules."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        scope: Scope,
        pages: Pages,
        health: Health,
        queries: Queries | None = None,
    ) -> None:
        self.requests = 0
        self._stream = stream
        self._scope = scope
        self._pages = pages
        self._health = health
        self._queries = queries
        self._generation: int | None = scope.generation  # that requests must name
        self._slots = trio.Semaphore(IN_FLIGHT)
        self._readahead = ReadAhead(scope.view.snapshot)
        self._pushing = False  # the view shows the tree that is served
        self._sending = 0  # tasks that send pages which nobody asked for
        # Unbuffered: an answer is handed over only when the socket takes it, so a view that does not read
        # keeps its requests in flight, and their number is bounded.
        self._outbox, self._outgoing = trio.open_memory_channel[Iterable[bytes]](0)

    async def run(self) -> None:
        """Serve the link to its end."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                await self._serve(nursery)
                nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _serve(self, nursery: trio.Nursery) -> None:
        incoming = _Incoming(self._stream)
        try:
            if (first := await incoming.next()) is None:
                return
            await self._greet(first)
            nursery.start_soon(self._follow_health)
            while (frame := await incoming.next()) is not None:
                wanted: wire.Read | wire.Query
                if frame.type is wire.Type.READ:
                    wanted = wire.parse_read(frame.payload)
                elif frame.type is wire.Type.QUERY:
                    wanted = wire.parse_query(frame.payload)
                else:
                    raise ProtocolError(f"a {frame.type.name} frame from a view")
                await self._slots.acquire()
                nursery.start_soon(self._answer, nursery, frame.request, wanted)
        except ProtocolError as exc:
            log.warning("link closed: %s", exc)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("link gone")

    async def _greet(self, frame: wire.Frame) -> None:
        if frame.type is not wire.Type.HELLO:
            raise ProtocolError(f"a {frame.type.name} frame before HELLO")
        hello = wire.parse_hello(frame.payload)
        if hello.version != wire.VERSION:
            raise ProtocolError(f"the view speaks version {hello.version}, not {wire.VERSION}")
        scope = self._scope
        # The digest alone: what is visible is then the same, inodes included, whatever the generation.
        encoded = b"" if hello.digest == scope.digest else scope.encoded
        self._pushing = hello.digest in (scope.digest, wire.NO_DIGEST)
        if encoded and hello.digest != wire.NO_DIGEST:
            log.warning("the mount shows a tree that is no longer served: its pages are ESTALE")
            if hello.generation == scope.generation:
                # A collection made anew counts from 1 again: the same number, another tree.
                self._generation = None
        await self._outbox.send([wire.greeting(scope.generation, scope.digest, len(encoded))])
        await self._outbox.send(wire.snapshot_frames(encoded))

    async def _follow_health(self) -> None:
        told = None
        while True:
            if told is not self._health.up:
                told = self._health.up
                await self._outbox.send([wire.store_state(told)])
            else:
                await self._health.changed()

    async def _answer(
        self, nursery: trio.Nursery, request: int, wanted: wire.Read | wire.Query
    ) -> None:
        self.requests += 1
        answer: Iterable[bytes]
        try:
            with trio.fail_after(DEADLINE):
                if isinstance(wanted, wire.Query):
                    answer = await self._query(nursery, request, wanted)
                else:
                    answer = await self._read(nursery, request, wanted)
        except trio.TooSlowError:
            answer = [wire.error(request, errno_of(StoreTimeout()))]
        except ChromafuseError as exc:
            answer = [wire.error(request, errno_of(exc))]
        except Exception:
            log.exception("a request failed by a bug")
            answer = [wire.error(request, errno.EIO)]
        await self._outbox.send(answer)
        self._slots.release()

    async def _read(
        self, nursery: trio.Nursery, request: int, wanted: wire.Read
    ) -> Iterable[bytes]:
        if wanted.size > READ_MAX:
            return [wire.error(request, errno.EINVAL)]
        self._require_served(wanted.generation)
        entry = self._scope.page(wanted.inode)
        self._look_ahead(nursery, wanted)
        page = await self._pages.get(entry, self)
        answer = memoryview(page)[wanted.offset : wanted.offset + wanted.size]
        # Frames of its own: a view that takes no answers would keep every page alive that it asked for.
        return list(wire.answer(request, answer))

    async def _query(
        self, nursery: trio.Nursery, request: int, wanted: wire.Query
    ) -> Iterable[bytes]:
        if self._queries is None:
            return [wire.error(request, errno.ENOSYS)]
        self._require_served(wanted.generation)

        def push(inodes: Sequence[int]) -> None:
            if self._may_send():
                self._send_ahead(nursery, self._readahead.named(inodes))

        answer = await self._queries.answer(wanted.directory, wanted.question, push)
        return list(wire.answer(request, answer))

    def _require_served(self, generation: int) -> None:
        if generation != self._generation:
            raise StaleInode(f"generation {generation} is not served here")

    def _look_ahead(self, nursery: trio.Nursery, wanted: wire.Read) -> None:
        """Have sent what will be read next."""
        if self._may_send():
            ahead = self._readahead.read(wanted.inode, trio.current_time(), again=wanted.again)
            self._send_ahead(nursery, ahead)

    def _may_send(self) -> bool:
        return self._pushing and self._sending < SENDING and self._health.up

    def _send_ahead(self, nursery: trio.Nursery, inodes: Sequence[int]) -> None:
        for batch in self._batches(inodes):
            self._sending += 1
            nursery.start_soon(self._send, batch)

    def _shown(self, inodes: Sequence[int]) -> Iterator[tuple[int, TreeEntry]]:
        for inode in inodes:
            with suppress(StaleInode):  # withdrawn since this tree was published
                yield inode, self._scope.page(inode)

    def _batches(self, inodes: Sequence[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        size = 0
        for inode in inodes:
            size += self._scope.view.snapshot.size(inode)
            if batch and (size > SEND_BYTES or len(batch) == SEND_PAGES):
                yield batch
                batch, size = [], self._scope.view.snapshot.size(inode)
            batch.append(inode)
        if batch:
            yield batch

    async def _send(self, inodes: Sequence[int]) -> None:
        try:
            entries = dict(self._shown(inodes))
            outcomes = await self._pages.get_ahead(list(entries.values()), self)
            found = zip(entries, outcomes, strict=True)
            await self._outbox.send(
                wire.push((inode, page) for inode, page in found if isinstance(page, bytes))
            )
        except Exception:
            log.exception("pages could not be sent ahead, by a bug")
        finally:
            self._sending -= 1

    async def _write(self, scope: trio.CancelScope) -> None:
        try:
            async for frames in self._outgoing:
                for frame in frames:
                    await self._stream.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()
