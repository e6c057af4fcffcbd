"""One view's link: the snapshot it gets, and the bytes it asks for. Every page is checked before it goes out.

The identity is fixed when the session is made; no frame carries or changes one. A request names an inode of
this session's own snapshot; anything else (a directory, somebody else's number, another generation) is
ESTALE, alike for all. Visibility is checked again on every read, before any cache is looked at.

The view is not trusted: frames are bounded, so is what one link may have under way, and a view that does not
read its socket stops being read. A link that breaks the rules is closed; the hub lives on.

Concurrency: one reader task, one writer task, and one task a request in flight, in a nursery of the session.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import trio

from .. import wire
from ..errors import ChromafuseError, ProtocolError, StaleInode, StoreTimeout, errno_of
from ..model.access import Identity
from ..model.records import PathTree, TreeEntry
from ..model.snapshot import View, build
from .pages import Pages

log = logging.getLogger(__name__)

DEADLINE = 9.0  # s for one read; the view gives up after 10
IN_FLIGHT = 256  # requests of one link; the view itself has at most as many tasks
READ_MAX = 8 << 20  # bytes of one read; the kernel asks for at most 1 MiB
_CHUNK = 64 << 10  # bytes taken from the socket at once


@dataclass(frozen=True, slots=True)
class Scope:
    """What one identity sees of one tree: its view, encoded once, and the digest of what is visible.

    `current` is the published tree where that is another one: a page must be visible in both.
    """

    identity: Identity
    view: View
    encoded: bytes
    digest: bytes
    newer: dict[str, TreeEntry] | None = None

    @classmethod
    def of(cls, tree: PathTree, identity: Identity, newer: PathTree | None = None) -> Scope:
        """Prune `tree` for `identity`."""
        view = build(tree.generation, tree.visible(identity))
        encoded = wire.encode_snapshot(view.snapshot)
        versions = b"".join(entry.version for entry in view.entries if entry is not None)
        digest = wire.snapshot_digest(encoded, versions)
        by_path = None if newer is None else {entry.path: entry for entry in newer.entries}
        return cls(identity, view, encoded, digest, by_path)

    @property
    def generation(self) -> int:
        """The generation of the tree that is served."""
        return self.view.snapshot.generation

    @property
    def pages(self) -> int:
        """How many pages the identity sees."""
        return sum(entry is not None for entry in self.view.entries)

    def page(self, generation: int, inode: int) -> TreeEntry:
        """Return the entry that a request names. Raises StaleInode for everything else."""
        if generation != self.generation:
            raise StaleInode(f"generation {generation} is not served here")
        entry = self.view.entry(inode)
        if entry is None or not self._admitted(entry):
            raise StaleInode(f"inode {inode} is no page of this view")
        return entry

    def _admitted(self, entry: TreeEntry) -> bool:
        if not entry.access.admits(self.identity):
            return False
        if self.newer is None:
            return True
        now = self.newer.get(entry.path)
        # A page that the published tree no longer has was removed, not taken away from anybody.
        return now is None or now.access.admits(self.identity)


@dataclass(eq=False)
class Session:
    """One link. `run` ends when the view closes it, or when it breaks the rules."""

    stream: trio.abc.HalfCloseableStream
    scope: Scope
    pages: Pages
    store_up: Callable[[], bool]
    requests: int = 0
    _outbox: trio.MemorySendChannel[list[bytes]] = field(init=False)
    _slots: trio.Semaphore = field(init=False)

    async def run(self) -> None:
        """Serve the link to its end."""
        # Unbuffered: an answer is handed over only when the socket takes it, so a view that does not read
        # keeps its requests in flight, and their number is bounded.
        self._outbox, outgoing = trio.open_memory_channel[list[bytes]](0)
        self._slots = trio.Semaphore(IN_FLIGHT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, outgoing, nursery.cancel_scope)
            try:
                await self._serve(nursery)
            except ProtocolError as exc:
                log.warning("link closed: %s", exc)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                log.debug("link gone")
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(self.stream)

    async def tell_store_state(self) -> None:
        """Send the view whether the store answers."""
        await self._outbox.send([wire.store_state(self.store_up())])

    async def _serve(self, nursery: trio.Nursery) -> None:
        frames = self._frames()
        first = await anext(frames, None)
        if first is None:
            return
        await self._greet(first)
        async for frame in frames:
            if frame.type is not wire.Type.READ:
                raise ProtocolError(f"a {frame.type.name} frame from a view")
            wanted = wire.parse_read(frame.payload)
            await self._slots.acquire()
            nursery.start_soon(self._answer, frame.request, wanted)

    async def _frames(self) -> AsyncIterator[wire.Frame]:
        decoder = wire.Decoder()
        while data := await self.stream.receive_some(_CHUNK):
            for frame in decoder.feed(bytes(data)):
                yield frame
        if decoder.unfinished:
            raise ProtocolError("the link ended in the middle of a frame")

    async def _greet(self, frame: wire.Frame) -> None:
        if frame.type is not wire.Type.HELLO:
            raise ProtocolError(f"a {frame.type.name} frame before HELLO")
        hello = wire.parse_hello(frame.payload)
        if hello.version != wire.VERSION:
            raise ProtocolError(f"the view speaks version {hello.version}, not {wire.VERSION}")
        scope = self.scope
        held = (hello.generation, hello.digest) == (scope.generation, scope.digest)
        encoded = b"" if held else scope.encoded
        await self._outbox.send([wire.greeting(scope.generation, scope.digest, len(encoded))])
        for part in wire.snapshot_frames(encoded):
            await self._outbox.send([part])
        await self.tell_store_state()

    async def _answer(self, request: int, wanted: wire.Read) -> None:
        self.requests += 1
        try:
            with trio.fail_after(DEADLINE):
                data = await self._read(wanted)
            frames = list(wire.answer(request, data))
        except trio.TooSlowError:
            frames = [wire.error(request, errno_of(StoreTimeout()))]
        except ChromafuseError as exc:
            frames = [wire.error(request, errno_of(exc))]
        except Exception:
            log.exception("a read failed by a bug")
            frames = [wire.error(request, errno.EIO)]
        await self._outbox.send(frames)
        self._slots.release()

    async def _read(self, wanted: wire.Read) -> memoryview:
        entry = self.scope.page(wanted.generation, wanted.inode)
        if wanted.size > READ_MAX:
            raise StaleInode(f"a read of {wanted.size} bytes")
        page = await self.pages.get(entry)
        return memoryview(page)[wanted.offset : wanted.offset + wanted.size]

    async def _write(
        self, outgoing: trio.MemoryReceiveChannel[list[bytes]], scope: trio.CancelScope
    ) -> None:
        try:
            async for frames in outgoing:
                for frame in frames:
                    await self.stream.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()
