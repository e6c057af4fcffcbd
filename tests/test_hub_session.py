"""A link's session, spoken to by hand: who gets what, and what a hostile view can do (nothing).

A real hub's parts over a store in memory; the view's end of the socket belongs to the test.
"""

from __future__ import annotations

import errno
import socket
import struct
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from chromafuse import wire
from chromafuse.errors import (
    CollectionMissing,
    StoreDenied,
    StoreError,
    StoreRejected,
    StoreTimeout,
    StoreUnavailable,
)
from chromafuse.hub.health import Health
from chromafuse.hub.loading import StoreLoad
from chromafuse.hub.pages import BATCH_BYTES, Pages
from chromafuse.hub.queries import Queries
from chromafuse.hub.scope import Scope
from chromafuse.hub.session import DEADLINE, IN_FLIGHT, READ_MAX, SENDING, Session
from chromafuse.hub.treecache import TreeCache
from chromafuse.hub.trees import Trees
from chromafuse.model.access import AUTHENTICATED, HIDDEN, PUBLIC, Access, Identity, Kind
from chromafuse.model.entry import TreeEntry
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.publish import find_root, publish
from tests.support.hub import planned
from tests.support.memory_store import Fault, FaultyStore, MemoryStore

Site = Mapping[str, tuple[Access, bytes]]
STALE = errno.ESTALE
ANYBODY = Identity()
SITE: Site = {
    "a.md": (PUBLIC, b"alpha\n"),
    "b/big.bin": (PUBLIC, bytes(range(256)) * 12_000),
    "b/secret.md": (AUTHENTICATED, b"secret\n"),
}


class View:
    """The view's end of a link."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.states: list[bool] = []
        self.pushed: list[tuple[int, bytes]] = []
        self._decoder = wire.Decoder()
        self._frames: list[wire.Frame] = []
        self._last = 0

    async def frame(self) -> wire.Frame | None:
        """Return the next frame, None where the hub has closed the link."""
        while not self._frames:
            try:
                data = await self.stream.receive_some(1 << 18)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._frames += self._decoder.feed(bytes(data))
        return self._frames.pop(0)

    async def greet(self, generation: int = 0, digest: bytes = wire.NO_DIGEST) -> wire.Greeting:
        """Say HELLO; return the greeting and keep the snapshot's bytes."""
        await self.stream.send_all(wire.hello(generation, digest))
        first = await self.frame()
        assert first is not None
        greeting = wire.parse_greeting(first.payload)
        self.encoded = b""
        while len(self.encoded) < greeting.length:
            part = await self.frame()
            assert part is not None
            assert part.type is wire.Type.SNAPSHOT
            self.encoded += part.payload
        return greeting

    async def ask(self, generation: int, inode: int, offset: int = 0, size: int = READ_MAX) -> int:
        """Send a READ."""
        self._last += 1
        what = wire.Read(generation, inode, offset, size)
        await self.stream.send_all(wire.read(self._last, what))
        return self._last

    async def answer(self) -> tuple[int, bytes | int]:
        """Return the next answer."""
        data = b""
        while (frame := await self.frame()) is not None:
            if frame.type is wire.Type.STORE:
                self.states.append(wire.parse_store_state(frame.payload))
                continue
            if frame.type is wire.Type.PUSH:
                self.pushed += [
                    (inode, bytes(page)) for inode, page in wire.parse_push(frame.payload)
                ]
                continue
            if frame.type is wire.Type.ERROR:
                return frame.request, wire.parse_error(frame.payload)
            data += frame.payload
            if frame.type is wire.Type.END:
                return frame.request, data
        raise AssertionError("the link is closed")

    async def read(
        self, generation: int, inode: int, offset: int = 0, size: int = READ_MAX
    ) -> bytes | int:
        """Ask, and return the bytes or the errno."""
        request = await self.ask(generation, inode, offset, size)
        answered, outcome = await self.answer()
        assert answered == request
        return outcome


class Rig:
    """The hub's parts over one store in memory."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory)
        self.trees = Trees(self.store, TreeCache(None))
        self.health = Health()
        self.nursery = nursery
        self.views: list[View] = []
        load = StoreLoad(self.store, self.health)
        self.pages = Pages(nursery, self.health, load, self.trees.listed)

    async def put(self, site: Site) -> None:
        """Publish a site."""
        expected = await find_root(self.memory)
        await publish(self.memory, ConstantEmbedder(), planned(site), expected=expected)

    async def scope(self, identity: Identity = ANYBODY) -> Scope:
        """Prune what is published."""
        return Scope.of(await self.trees.published(), identity)

    def link(self, scope: Scope) -> tuple[View, Session]:
        """Open a link, with small socket buffers."""
        ours, theirs = trio.socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        session = Session(trio.SocketStream(theirs), scope, self.pages, self.health)
        self.nursery.start_soon(session.run)
        self.views.append(View(trio.SocketStream(ours)))
        return self.views[-1], session


def with_rig(body: Callable[[Rig], Awaitable[None]], *, site: Site = SITE) -> None:
    """Run `body` on a rig whose store holds `site`; everything of it ends with the body."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            rig = Rig(nursery)
            await rig.put(site)
            try:
                await body(rig)
            finally:
                for view in rig.views:
                    await trio.aclose_forcefully(view.stream)
            nursery.cancel_scope.cancel()

    # The clock goes by itself and a test may turn it; it never jumps while a thread works.
    trio.run(main, clock=MockClock(rate=1.0))


def turn_clock(seconds: float) -> None:
    """Let the time pass."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(seconds)


# -- who gets what -------------------------------------------------------------------------------------

groups = st.frozensets(st.sampled_from(["red", "blue"]), max_size=2)
accesses = st.builds(Access, public=st.sampled_from([True, False, None]), groups=groups)
identities = st.one_of(
    st.just(Identity()),
    st.builds(Identity, kind=st.just(Kind.AUTHENTICATED), groups=groups),
    st.just(Identity(Kind.UNRESTRICTED)),
)
paths = st.lists(st.sampled_from(["a", "b", "c~page", "é"]), min_size=1, max_size=3).map("/".join)
sites = st.dictionaries(paths, st.tuples(accesses, st.binary(max_size=20)), max_size=10)


def allowed(access: Access, identity: Identity) -> bool:
    """The rules of access once more, as naively as they can be said."""
    if identity.kind is Kind.UNRESTRICTED:
        return True
    if len(access.groups) > 0:
        return any(group in identity.groups for group in access.groups)
    return access.public is True or (access.public is False and identity.kind is Kind.AUTHENTICATED)


@given(site=sites, identity=identities)
@settings(max_examples=60)
def test_a_view_gets_exactly_the_pages_that_it_may_see(site: Site, identity: Identity) -> None:
    """Asked for every inode there could be, the hub hands out the bytes of visible pages and nothing else."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope(identity))
        greeting = await view.greet()
        snapshot = wire.decode_snapshot(view.encoded)
        found = {
            inode: await view.read(greeting.generation, inode)
            for inode in [*range(len(snapshot) + 20), 1 << 52, (1 << 52) + 1, (1 << 64) - 1]
        }
        pages = set(snapshot.pages())
        expected = sorted(data for access, data in site.values() if allowed(access, identity))
        assert sorted(found[inode] for inode in pages) == expected  # type: ignore[type-var]
        assert {found[inode] for inode in found if inode not in pages} == {STALE}
        for generation in (0, greeting.generation + 1, (1 << 64) - 1):
            assert {await view.read(generation, inode) for inode in range(5)} == {STALE}

    with_rig(body, site=site)


@given(site=sites, others=sites, identity=identities)
@settings(max_examples=60)
def test_hidden_pages_change_no_byte_of_what_a_view_receives(
    site: Site, others: Site, identity: Identity
) -> None:
    """Two sites that differ only in hidden pages give the same greeting, snapshot and answers."""
    seen = {path: page for path, page in site.items() if allowed(page[0], identity)}
    hidden = {
        path: page
        for path, page in others.items()
        if not allowed(page[0], identity) and path not in seen
    }
    received: list[list[object]] = []

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope(identity))
        greeting = await view.greet()
        answers = [await view.read(1, inode) for inode in range(30)]
        received.append([greeting, view.encoded, answers, view.states])

    with_rig(body, site=site)
    with_rig(body, site={**seen, **hidden})
    assert received[0] == received[1]


def test_access_is_checked_before_the_cache() -> None:
    """A page that another identity has read is in memory, and still ESTALE for who may not see it."""

    async def body(rig: Rig) -> None:
        member = Identity(Kind.AUTHENTICATED)
        scope = await rig.scope(member)
        view, _ = rig.link(scope)
        await view.greet()
        inode = next(i for i in range(2, 9) if (e := scope.view.entry(i)) and "secret" in e.path)
        assert await view.read(1, inode) == b"secret\n"
        # The same snapshot under an identity that may see less: the check of each read is the last line.
        lesser = Scope(ANYBODY, scope.view, scope.digest)
        stranger, _ = rig.link(lesser)
        await stranger.greet()
        assert await stranger.read(1, inode) == STALE
        calls = len(rig.store.calls)
        assert await view.read(1, inode) == b"secret\n"
        assert len(rig.store.calls) == calls

    with_rig(body)


def test_what_the_published_tree_took_away_is_stale_in_an_older_one() -> None:
    """A hub that goes on with an older tree shows of it only what the newer one shows to this identity too."""

    async def body(rig: Rig) -> None:
        older = await rig.trees.published()
        changed: Site = {"a.md": (HIDDEN, b"alpha\n"), "b/secret.md": (AUTHENTICATED, b"new\n")}
        await rig.put(changed)
        newer = await rig.trees.published()
        expected = {
            ANYBODY: {"a.md": STALE, "b/big.bin": STALE},
            Identity(Kind.AUTHENTICATED): {
                "a.md": STALE,
                "b/big.bin": STALE,
                "b/secret.md": b"secret\n",
            },
            Identity(Kind.UNRESTRICTED): {
                "a.md": b"alpha\n",
                "b/big.bin": STALE,
                "b/secret.md": b"secret\n",
            },
        }
        for identity, pages in expected.items():
            view, _ = rig.link(Scope.of(older, identity, newer))
            await view.greet()
            snapshot = wire.decode_snapshot(view.encoded)
            found = {snapshot.path(inode): await view.read(1, inode) for inode in snapshot.pages()}
            assert found == pages
        # To be sure that they were there to be had:
        view, _ = rig.link(Scope.of(older, ANYBODY))
        await view.greet()
        assert await view.read(1, 2) == b"alpha\n"

    with_rig(body)


def test_no_hidden_name_version_or_byte_is_in_anything_sent() -> None:
    """All bytes that a view is sent, whatever it asks for, hold nothing of the pages that it may not see."""
    site: Site = {
        "open.md": (PUBLIC, b"everybody\n"),
        "hidden-directory/hidden-name.md": (HIDDEN, b"hidden bytes\n"),
        "open.md~/members-name.md": (AUTHENTICATED, b"members' bytes\n"),
        "group-name.md": (Access(True, frozenset({"group-itself"})), b"group's bytes\n"),
    }

    async def body(rig: Rig) -> None:
        tree = await rig.trees.published()
        view, _ = rig.link(Scope.of(tree, ANYBODY))
        sent = bytearray()
        receive = view.stream.receive_some

        async def recording(max_bytes: int | None = None) -> bytes | bytearray:
            data = await receive(max_bytes)
            sent.extend(data)
            return data

        view.stream.receive_some = recording  # type: ignore[method-assign]
        greeting = await view.greet()
        for inode in range(50):
            await view.read(greeting.generation, inode)
        assert b"open.md" in sent
        assert b"everybody" in sent
        hidden = [entry for entry in tree.entries if entry.path != "open.md"]
        words = [b"hidden", b"members", b"group", bytes.fromhex(tree.sha256), tree.sha256.encode()]
        words += [entry.version for entry in hidden] + [e.version.hex().encode() for e in hidden]
        assert [word for word in words if word in sent] == []

    with_rig(body, site=site)


def test_identities_share_no_numbers() -> None:
    """Two links with other identities, at once, each get their own pages under their own numbers."""

    async def body(rig: Rig) -> None:
        site: Site = {"a": (HIDDEN, b"hidden"), "b": (PUBLIC, b"public")}
        await rig.put(site)
        operator, _ = rig.link(await rig.scope(Identity(Kind.UNRESTRICTED)))
        anybody, _ = rig.link(await rig.scope())
        await operator.greet()
        await anybody.greet()
        assert [await operator.read(2, inode) for inode in range(5)] == [
            STALE,
            STALE,
            b"hidden",
            b"public",
            STALE,
        ]
        assert [await anybody.read(2, inode) for inode in range(5)] == [
            STALE,
            STALE,
            b"public",
            STALE,
            STALE,
        ]

    with_rig(body)


# -- reads ---------------------------------------------------------------------------------------------


@given(
    offset=st.integers(0, 3_100_000) | st.integers(0, (1 << 64) - 1),
    size=st.integers(0, READ_MAX),
)
@settings(max_examples=25)
def test_an_answer_is_short_only_at_the_end(offset: int, size: int) -> None:
    """Any offset and size give the slice of the page, in as many frames as it takes."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        await view.greet()
        page = SITE["b/big.bin"][1]
        found = await view.read(1, 4, offset, size)
        same = found == page[offset : offset + size]
        assert same  # megabytes: not to be shown

    with_rig(body)


@pytest.mark.parametrize("inode", [1, 2, 4, 99])
def test_an_insane_size_is_einval(inode: int) -> None:
    """More than the kernel ever asks for is EINVAL, whatever inode it names."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        await view.greet()
        assert await view.read(1, inode, 0, READ_MAX + 1) == errno.EINVAL
        assert await view.read(1, inode, 0, (1 << 32) - 1) == errno.EINVAL

    with_rig(body)


def test_a_store_that_hangs_costs_the_deadline() -> None:
    """An uncached read of a store that never answers is ETIMEDOUT within the deadline; cached ones go on."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        await view.greet()
        assert await view.read(1, 2) == b"alpha\n"

        async def hang(entries: object) -> object:
            return await trio.sleep_forever()

        rig.pages._load = hang  # type: ignore[assignment]
        await view.ask(1, 4)
        await view.ask(1, 2)
        assert await view.answer() == (3, b"alpha\n")
        await trio.testing.wait_all_tasks_blocked()
        turn_clock(DEADLINE)
        assert await view.answer() == (2, errno.ETIMEDOUT)

    with_rig(body)


@pytest.mark.expect_log("the store does not answer")
@pytest.mark.expect_log("the store answers again")
def test_a_change_while_the_last_one_is_being_told_is_not_lost() -> None:
    """Down and up again while the view does not read: what it hears last is how the store is."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        await view.greet()
        assert await view.read(1, 4, 0, 1) == b"\0"
        for _ in range(3):  # fills the socket, so that the hub can tell nothing
            await view.ask(1, 4)
        await trio.testing.wait_all_tasks_blocked()
        rig.health.note(StoreTimeout("slow"), trio.current_time())
        await trio.testing.wait_all_tasks_blocked()
        turn_clock(1)
        rig.health.note(None, trio.current_time())
        for _ in range(3):
            await view.answer()
        await view.read(1, 2)
        await trio.testing.wait_all_tasks_blocked()
        await view.read(1, 2)
        assert view.states == [True, False, True]

    with_rig(body)


@pytest.mark.expect_log("damaged page: b/big.bin: 1 of")
def test_a_damaged_page_is_eio_and_a_collected_one_estale() -> None:
    """Missing chunks are EIO while the published tree lists the page, ESTALE when it does not any more."""

    async def body(rig: Rig) -> None:
        scope = await rig.scope()
        view, _ = rig.link(scope)
        await view.greet()
        entry = scope.view.entry(4)
        assert entry is not None
        assert rig.memory.rows is not None
        del rig.memory.rows[entry.chunk_ids()[3]]
        assert await view.read(1, 4) == errno.EIO
        assert await view.read(1, 4) == errno.EIO
        await rig.put({"a.md": SITE["a.md"]})
        assert await view.read(1, 4) == STALE
        assert await view.read(1, 2) == b"alpha\n"

    with_rig(body)


@pytest.mark.expect_log("a request failed by a bug")
def test_a_bug_in_a_read_is_eio_and_the_link_goes_on() -> None:
    """An exception that nobody foresaw is EIO for that read and a traceback in the log; the next is answered."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        await view.greet()
        get = rig.pages.get

        async def bug(entry: TreeEntry, client: object) -> bytes:
            raise ZeroDivisionError

        rig.pages.get = bug  # type: ignore[method-assign]
        assert await view.read(1, 2) == errno.EIO
        rig.pages.get = get  # type: ignore[method-assign]
        assert await view.read(1, 2) == b"alpha\n"

    with_rig(body)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreTimeout, errno.ETIMEDOUT),
        (StoreUnavailable, errno.EIO),
        (StoreDenied, errno.EIO),
        (StoreRejected, errno.EIO),
        (CollectionMissing, errno.EIO),
    ],
)
@pytest.mark.expect_log("the store does not answer: ")
def test_what_the_store_does_is_what_a_reader_is_told(error: type[StoreError], code: int) -> None:
    """A store without an answer is ETIMEDOUT, one that refuses EIO; never ESTALE, which means replaced."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        await view.greet()

        rig.store.script.append(Fault("fail", times=99, error=error("so it is")))
        assert await view.read(1, 2) == code
        assert await view.read(1, 2) == code
        assert view.states[-1] is False

    with_rig(body)


# -- greeting ------------------------------------------------------------------------------------------


def test_a_view_that_holds_this_very_tree_is_sent_none() -> None:
    """With the digest of its snapshot a view is greeted without one and reads on, inodes unchanged."""

    async def body(rig: Rig) -> None:
        scope = await rig.scope()
        first, _ = rig.link(scope)
        told = await first.greet()
        again, _ = rig.link(scope)
        resumed = await again.greet(told.generation, told.digest)
        assert resumed == wire.Greeting(wire.VERSION, 1, told.digest, 0)
        assert await again.read(1, 2) == b"alpha\n"

    with_rig(body)


@pytest.mark.expect_log("a tree that is no longer served")
@pytest.mark.parametrize(("generation", "readable"), [(1, False), (7, True)])
def test_another_tree_is_never_read_by_the_numbers_of_an_old_one(
    generation: int, readable: bool
) -> None:
    """A view that holds another tree gets no page by its numbers, also where both have one generation."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        greeting = await view.greet(generation, b"\1" * 32)
        assert greeting.length == len(view.encoded) > 0
        assert await view.read(generation, 2) == STALE
        assert await view.read(1, 2) == (b"alpha\n" if readable else STALE)

    with_rig(body)


# -- hostile views -------------------------------------------------------------------------------------

GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n",
    "a read before hello": wire.read(1, wire.Read(1, 2, 0, 10)),
    "an oversized frame": struct.pack("<IBxxxI", 1 << 30, 1, 0),
    "an unknown type": struct.pack("<IBxxxI", 0, 99, 0),
    "a short hello": wire.frame(wire.Type.HELLO, 0, b"x"),
    "another version": wire.frame(wire.Type.HELLO, 0, struct.pack("<IQ32s", 99, 0, bytes(32))),
    "two hellos": wire.hello() + wire.hello(),
    "a hub's frame": wire.hello() + wire.store_state(True),
    "a read by another name": wire.hello() + wire.frame(wire.Type.DATA, 1, bytes(28)),
    "a short read": wire.hello() + wire.frame(wire.Type.READ, 1, b"x"),
    "half a frame": wire.hello() + wire.read(1, wire.Read(1, 2, 0, 10))[:-3],
}


@pytest.mark.expect_log("link closed: ")
@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_link_that_breaks_the_rules_is_closed(data: bytes) -> None:
    """Bytes that no view sends end this link, with one line in the log, and no other link."""

    async def body(rig: Rig) -> None:
        scope = await rig.scope()
        other, _ = rig.link(scope)
        await other.greet()
        view, _ = rig.link(scope)
        await view.stream.send_all(data)
        await view.stream.send_eof()
        while await view.frame() is not None:
            pass
        assert await other.read(1, 2) == b"alpha\n"

    with_rig(body)


@given(data=st.binary(max_size=200))
@settings(max_examples=60)
@pytest.mark.expect_log("link closed: ", maybe=True)
def test_random_bytes_get_no_page(data: bytes) -> None:
    """Whatever a stranger sends after a proper HELLO, no byte of a page comes back, and the hub lives."""

    async def body(rig: Rig) -> None:
        scope = await rig.scope()
        view, _ = rig.link(scope)
        await view.stream.send_all(wire.hello() + data)
        await view.stream.send_eof()
        kinds = set()
        while (frame := await view.frame()) is not None:
            kinds.add(frame.type)
        assert kinds <= {
            wire.Type.GREETING,
            wire.Type.SNAPSHOT,
            wire.Type.STORE,
            wire.Type.ERROR,
        }

    with_rig(body)


def test_a_view_that_does_not_read_is_not_read_either() -> None:
    """Requests whose answers nobody takes are bounded in number; other links do not notice."""

    async def body(rig: Rig) -> None:
        scope = await rig.scope()
        greedy, session = rig.link(scope)
        await greedy.greet()
        sent = 0
        with trio.move_on_after(2):
            for number in range(20_000):
                await greedy.stream.send_all(wire.read(number, wire.Read(1, 4, 0, READ_MAX)))
                sent += 1
        assert sent < 20_000
        assert session.requests <= IN_FLIGHT + 1  # the one whose answer is half sent has no slot
        other, _ = rig.link(scope)
        await other.greet()
        assert await other.read(1, 2) == b"alpha\n"
        await greedy.stream.aclose()

    with_rig(body)


def test_answers_that_nobody_takes_hold_no_whole_pages() -> None:
    """Of many large pages that a view asks for parts of, and takes none, the hub keeps the parts."""
    size, pages = 1 << 20, 40  # too large to be pushed
    site = {
        f"{number:02}": (PUBLIC, b"%02d\n" % number * (size // 3 + 1)) for number in range(pages)
    }

    async def body(rig: Rig) -> None:
        rig.pages.cache._limit = 1 << 19
        scope = await rig.scope()
        view, session = rig.link(scope)
        greeting = await view.greet()
        tracemalloc.start()
        try:
            for inode in range(2, 2 + pages):
                await view.ask(greeting.generation, inode, 0, 1 << 17)
            await trio.testing.wait_all_tasks_blocked()
            assert session.requests == pages
            assert tracemalloc.get_traced_memory()[0] < pages * (1 << 17) + 2 * size + BATCH_BYTES
        finally:
            tracemalloc.stop()
        await view.stream.aclose()

    with_rig(body, site=site)


def test_what_questions_send_ahead_is_bounded_while_nobody_takes_it() -> None:
    """A view that asks 100 questions, of a page each, and reads nothing is sent no more pages than one may be."""
    count = 100
    site = {f"{number:03}": (PUBLIC, b"%03d\n" % number * 5_000) for number in range(count)}

    class Naming:
        """Answers a question with nothing, and has the page sent whose inode it is."""

        async def answer(
            self, directory: int, data: bytes, push: Callable[[Sequence[int]], None]
        ) -> bytes:
            push([int(data)] if data else [])
            return b""

    async def body(rig: Rig) -> None:
        view, session = rig.link(await rig.scope())
        session._queries = cast(Queries, Naming())
        greeting = await view.greet()
        asked = range(2, 2 + count)
        for inode in asked:
            question = wire.Query(greeting.generation, 1, b"%d" % inode)
            await view.stream.send_all(wire.query(inode, question))
        await trio.testing.wait_all_tasks_blocked()
        assert session.requests == count
        assert {(await view.answer())[0] for _ in asked} == set(asked)
        # The answer to another question comes behind all that is on its way.
        await view.stream.send_all(wire.query(1, wire.Query(greeting.generation, 1, b"")))
        assert await view.answer() == (1, b"")
        assert 0 < len(view.pushed) <= SENDING + 1  # the one that is half sent has ended its task

    with_rig(body, site=site)


def test_many_reads_at_once_are_all_answered() -> None:
    """More requests than may be under way are answered one for one, in any order."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        await view.greet()
        count = 3 * IN_FLIGHT
        answers = {}
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                for _ in range(count):
                    await view.ask(1, 4, 5, 1_000)

            nursery.start_soon(ask)
            for _ in range(count):
                request, outcome = await view.answer()
                answers[request] = outcome
        page = SITE["b/big.bin"][1]
        assert answers == dict.fromkeys(range(1, count + 1), page[5:1_005])
        assert rig.pages.fetches == 1

    with_rig(body)


def test_a_view_that_shuts_its_ears_loses_its_link() -> None:
    """Where answers cannot be sent any more the link ends, though the view goes on asking."""

    async def body(rig: Rig) -> None:
        view, _ = rig.link(await rig.scope())
        await view.greet()
        view.stream.socket.shutdown(socket.SHUT_RD)

        async def ask_for_ever() -> None:
            while True:
                await view.ask(1, 2)

        with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
            await ask_for_ever()

    with_rig(body)


def test_a_link_that_ends_in_the_middle_of_reads_leaves_nothing() -> None:
    """A view that hangs up with reads under way ends its session; the fetch still serves others."""

    async def body(rig: Rig) -> None:
        scope = await rig.scope()
        view, _ = rig.link(scope)
        await view.greet()
        for _ in range(10):
            await view.ask(1, 4)
        await view.stream.aclose()
        other, _ = rig.link(scope)
        await other.greet()
        assert await other.read(1, 4, 0, 9_000) == SITE["b/big.bin"][1][:9_000]

    with_rig(body)
