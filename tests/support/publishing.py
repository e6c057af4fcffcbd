"""Publishing in tests: sources in memory, any store steered by a test, and what is published.

`Steered` wraps any store and hands every call to a function of the test before the call is made; the
function may raise, wait, or change the store. A store behind a `Dying` one is what a killed process leaves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import trio
from trio.testing import MockClock

from chromafuse.model import access
from chromafuse.model.records import ROOT_ID, Root, TreeEntry, cut, decode_tree, page_version
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.protocol import CollectionInfo, Row, Store
from chromafuse.store.publish import PlannedPage, Published, find_root, publish
from chromafuse.store.reader import load_pages, load_root, load_tree

T = TypeVar("T")
Source = Mapping[str, bytes]
WRITES = ("add", "upsert", "delete")


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` under trio with a clock that jumps as soon as everything waits."""
    return trio.run(main, clock=MockClock(autojump_threshold=0))


class Call:
    """One call of a store: its number from 1, its method, and the ids or rows it was given."""

    def __init__(self, number: int, method: str, items: Sequence[object]) -> None:
        self.number = number
        self.method = method
        self.items = items

    @property
    def ids(self) -> list[str]:
        """The ids that the call is about."""
        return [item.id if isinstance(item, Row) else str(item) for item in self.items]

    @property
    def flips(self) -> bool:
        """Whether the call replaces the root."""
        return self.method == "upsert" and self.ids == [ROOT_ID]


class Steered:
    """A store whose every call is first shown to `before`, then counted in `calls`."""

    def __init__(
        self, store: Store, before: Callable[[Call], Awaitable[None]] | None = None
    ) -> None:
        self.store = store
        self.before = before
        self.calls: list[Call] = []

    @property
    def rows_per_call(self) -> int:
        return self.store.rows_per_call

    @property
    def writes(self) -> list[Call]:
        """The calls that write."""
        return [call for call in self.calls if call.method in WRITES]

    async def _note(self, method: str, items: Collection[object] = ()) -> None:
        call = Call(len(self.calls) + 1, method, list(items))
        self.calls.append(call)
        if self.before is not None:
            await self.before(call)

    async def info(self) -> CollectionInfo:
        await self._note("info")
        return await self.store.info()

    async def get(self, ids: Collection[str]) -> dict[str, Row]:
        await self._note("get", ids)
        return await self.store.get(ids)

    async def existing(self, ids: Collection[str]) -> set[str]:
        await self._note("existing", ids)
        return await self.store.existing(ids)

    async def list_ids(self) -> list[str]:
        await self._note("list_ids")
        return await self.store.list_ids()

    async def searches_all(self) -> bool:
        await self._note("searches_all")
        return await self.store.searches_all()

    async def search(self, pattern: str) -> list[str]:
        await self._note("search", [pattern])
        return await self.store.search(pattern)

    async def tagged(self, key: str, value: str) -> list[str]:
        await self._note("tagged", [key, value])
        return await self.store.tagged(key, value)

    async def add(self, rows: Sequence[Row]) -> None:
        await self._note("add", rows)
        await self.store.add(rows)

    async def upsert(self, rows: Sequence[Row]) -> None:
        await self._note("upsert", rows)
        await self.store.upsert(rows)

    async def delete(self, ids: Collection[str]) -> None:
        await self._note("delete", ids)
        await self.store.delete(ids)


class Killed(BaseException):
    """The process of this store's user is dead: no code of its own may catch this."""


class Dying(Steered):
    """A store whose user is killed in call number `at`: before it has any effect, or half through it."""

    def __init__(self, store: Store, at: int, *, half: bool) -> None:
        super().__init__(store, self._die)
        self._at = at
        self._half = half

    async def _die(self, call: Call) -> None:
        if call.number < self._at:
            return
        if call.number == self._at and self._half and call.method in WRITES:
            await getattr(self.store, call.method)(call.items[: len(call.items) // 2])
        raise Killed


def plan(
    source: Source, *, grants: access.Access = access.PUBLIC, mtime_ns: int = 5
) -> list[PlannedPage]:
    """Return what ingest would plan for `source`."""
    return [
        PlannedPage(_entry(path, data, grants, mtime_ns), lambda data=data: data)  # type: ignore[misc]
        for path, data in source.items()
    ]


def _entry(path: str, data: bytes, grants: access.Access, mtime_ns: int) -> TreeEntry:
    documents = cut(data).documents
    return TreeEntry(path, grants, page_version(path, data), len(documents), len(data), mtime_ns)


async def publish_source(store: Store, source: Source, **options: float) -> Published:
    """Publish `source` over what is published now."""
    expected = await find_root(store)
    return await publish(store, ConstantEmbedder(), plan(source), expected=expected, **options)  # type: ignore[arg-type]


async def published_source(store: Store) -> dict[str, bytes]:
    """Return what is published, every page read and checked; an exception where one is not right."""
    root = await load_root(store)
    tree = decode_tree(await load_tree(store, root), root.generation)
    assert tree.problems == ()
    pages = await load_pages(store, tree.entries)
    result = {}
    for entry in tree.entries:
        page = pages[entry.version]
        if isinstance(page, Exception):
            raise page
        result[entry.path] = page
    return result


def needed_ids(root: Root, source: Source) -> set[str]:
    """Return the ids of everything that a published `source` consists of."""
    chunks = (id for page in plan(source) for id in page.entry.chunk_ids())
    return {ROOT_ID, *root.part_ids(), *chunks}
