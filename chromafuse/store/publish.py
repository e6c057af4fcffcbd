"""Publishing a tree so that readers see the old one or the new one, whole, and nothing between.

Under the writer's lock (lock.py): write the chunks that are missing, and the parts of the tree; see that
every one of them is there; replace the root by one upsert of one row, which is the commit; see once more
that all is there; collect what has been dead for the grace time (garbage.py). All records but the root are
immutable and named by their content, so a writer may die at any point: the old tree is whole, and the next
run finds and uses what was written. A tree that is published already, and complete, is not written again.

The caller has planned against one root, and its guards (how much a run may remove) hold against that one
alone. So a root that is another by the time the lock is won is `TreeChanged`: the caller plans again.

What the lock cannot exclude, because Chroma has no compare-and-swap: a writer whose process, or whose last
request, stood still for over two thirds of a lease between `Lock.confirm` and the end of the one call that
follows it, while another took over. If that call is the flip, it replaces the other's newer tree; the second
look after the flip finds what the other collected meanwhile and writes it again, so the tree is whole, and
one of the two sources. If it is a deletion by the garbage collection, it may hit a chunk that the other's
tree has taken up again after it was dead for the whole grace time; readers get EIO for that page, `verify`
names it, and the next run writes it, because a published tree that misses chunks does not count as published.

Concurrency: one call of `publish` is one writer; writers in any number of processes and hosts exclude each
other by the lock. Readers need none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..errors import (
    ChromafuseError,
    LockLost,
    NotPublished,
    RecordDamaged,
    StoreError,
    UnknownFormat,
    UserError,
)
from ..model.records import (
    ROOT_ID,
    Root,
    TreeEntry,
    chunk_metadata,
    cut,
    encode_root,
    encode_tree,
    page_version,
    split_tree,
)
from .embedding import Embedder as Embedder  # the type of publish()'s argument, for its callers
from .embedding import check_embedding
from .garbage import dead_ids, is_ours, load_condemned, old_locks, store_condemned
from .lock import Lock, hold_lock
from .protocol import Row, Store, Vector
from .reader import load_root, load_tree

log = logging.getLogger(__name__)
T = TypeVar("T")

LEASE = (
    15.0  # s; over the deadline of a store call (10 s), so that a call ends within a fresh lease
)
WAIT = 30.0  # s that the loser waits for the lock; over a lease, so that it survives a dead writer
GRACE = 600.0  # s that replaced pages stay readable
# An embedded store does one call after the other, some 400 rows a second on two busy cores: the lock's sign
# of life must find its turn well within a lease.
WRITE_ROWS = 500
_ROUNDS = 3  # times that missing chunks are written before the store counts as losing them

Progress = Callable[[str, int, int], None]
"""Called with what is being done ("write", "check", "collect"), how much of it is done, and of how much."""


class TreeChanged(ChromafuseError):
    """The published tree is not the one that the caller planned against; nothing was written."""


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """A page as it is to be published. `load` returns its bytes; it is called when its chunks are missing."""

    entry: TreeEntry
    load: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Published:
    """What a run did. The generation is the old one where there was nothing to do."""

    generation: int
    written_chunks: int
    reused_chunks: int
    collected: int  # records deleted, of trees dead for the grace time


async def find_root(store: Store) -> Root | None:
    """Return the published root, None in a collection that is empty or holds a first run that was killed.

    Raises UserError for a collection that is not ours: nothing may be written into it.
    """
    try:
        return await load_root(store)
    except NotPublished:
        strangers = sorted(id for id in await store.list_ids() if not is_ours(id))
        if strangers:
            raise UserError(
                f"the collection holds {len(strangers)} records that are not chromafuse's "
                f"({strangers[0][:80]!r}, …); give another --collection"
            ) from None
        return None
    except UnknownFormat as exc:
        raise UserError(f"{exc}; give another --collection") from exc
    except RecordDamaged as exc:
        raise UserError(
            f"{exc}: the root record is damaged; give another --collection, or delete this one"
        ) from exc


async def publish(
    store: Store,
    embedder: Embedder,
    pages: Sequence[PlannedPage],
    *,
    expected: Root | None,
    now: Callable[[], float] = time.time,
    lease: float = LEASE,
    wait: float = WAIT,
    grace: float = GRACE,
    progress: Progress = lambda stage, done, total: None,
) -> Published:
    """Make `pages` the published tree in place of `expected`, the root that the caller planned against.

    Raises TreeChanged where another root is published, LockBusy, LockLost, UserError where a page cannot be
    read or is not what was planned, or the collection is not ours; in all these cases the tree that was
    published is whole and nothing of this one is visible, unless LockLost says otherwise.
    """
    draft = _Draft.of(pages, embedder)
    current = await find_root(store)
    check_embedding(await store.info(), current.embedding if current else None, embedder)
    if (
        current is not None
        and current.sha256 == draft.root.sha256
        and await _is_whole(store, current, draft)
    ):
        return Published(current.generation, 0, len(draft.ids), 0)
    if current != expected:
        raise TreeChanged(_changed(expected, current))
    async with hold_lock(store, draft.vector, lease=lease, wait=wait) as lock:
        if lock.root != expected:
            raise TreeChanged(_changed(expected, lock.root))
        return await _Writer(store, embedder, draft, lock, progress).run(now, grace)


def _changed(expected: Root | None, current: Root | None) -> str:
    planned, found = (
        f"generation {root.generation}" if root else "nothing" for root in (expected, current)
    )
    return f"planned against {planned}, but {found} is published"


@dataclass(frozen=True, slots=True)
class _Draft:
    """The tree to be published, before its generation is known."""

    pages: Sequence[PlannedPage]
    ids: frozenset[str]  # of all chunks
    root: Root
    canonical: bytes
    parts: tuple[str, ...]
    vector: Vector  # of records that are no chunks

    @classmethod
    def of(cls, pages: Sequence[PlannedPage], embedder: Embedder) -> _Draft:
        entries = [page.entry for page in pages]
        if len({entry.path for entry in entries}) != len(entries):
            raise ValueError("two pages have one path")
        canonical = encode_tree(entries)
        parts, digest = split_tree(canonical)
        root = Root(0, digest, len(parts), len(canonical), embedder.name, embedder.dimension)
        ids = frozenset(id for entry in entries for id in entry.chunk_ids())
        vector = (1.0,) + (0.0,) * (embedder.dimension - 1)
        return cls(pages, ids, root, canonical, tuple(parts), vector)

    def live_names(self) -> set[str]:
        """Return the names (garbage.name_of) of everything that the tree needs."""
        return {page.entry.version.hex() for page in self.pages} | {self.root.sha256}


async def _is_whole(store: Store, root: Root, draft: _Draft) -> bool:
    """Say whether the tree and all its chunks can be read from the store."""
    try:
        await load_tree(store, root)
    except RecordDamaged:
        return False
    return len(await store.existing(draft.ids)) == len(draft.ids)


class _Writer:
    """One publication under one lock. The order of its steps is the protocol."""

    def __init__(
        self, store: Store, embedder: Embedder, draft: _Draft, lock: Lock, progress: Progress
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._draft = draft
        self._lock = lock
        self._progress = progress
        self._root = replace(draft.root, generation=lock.generation)
        self._written: set[str] = set()
        self._visible = False

    async def run(self, now: Callable[[], float], grace: float) -> Published:
        listed = await self._store.list_ids()
        await self._revive(listed)
        await self._fill(self._draft.ids.difference(listed))
        await self._write_parts()
        await self._flip()
        await self._look_again()
        collected = await self._collect(listed, now, grace)
        written = len(self._written)
        return Published(self._root.generation, written, len(self._draft.ids) - written, collected)

    async def _revive(self, listed: Sequence[str]) -> None:
        """Take what the new tree uses again off the list of the condemned, before it is visible."""
        condemned = await load_condemned(self._store, listed)
        live = self._draft.live_names()
        if live.isdisjoint(condemned.times):
            return
        kept = {name: at for name, at in condemned.times.items() if name not in live}
        await store_condemned(self._store, condemned, kept, self._draft.vector)

    async def _fill(self, missing: Collection[str]) -> None:
        """Write the chunks in `missing`, and see that all chunks of the tree are there."""
        for _ in range(_ROUNDS):
            if missing:
                await self._write_chunks(missing)
            self._progress("check", 0, len(self._draft.ids))
            missing = self._draft.ids - await self._store.existing(self._draft.ids)
            self._progress("check", len(self._draft.ids), len(self._draft.ids))
            if not missing:
                return
        await self._lost(f"{len(missing)} of the chunks")

    async def _write_chunks(self, missing: Collection[str]) -> None:
        done = 0
        self._progress("write", done, len(missing))
        size = min(self._store.rows_per_call, WRITE_ROWS)
        for batch in _batches(self._missing_rows(missing), size):
            if not self._visible:  # what is visible is made whole, lock or not
                self._lock.check()
            vectors = await self._embedder.embed([row.document for row in batch])
            rows = [
                replace(row, embedding=vector) for row, vector in zip(batch, vectors, strict=True)
            ]
            await self._store.add(rows)
            self._written.update(row.id for row in rows)
            done += len(rows)
            self._progress("write", done, len(missing))

    def _missing_rows(self, missing: Collection[str]) -> Iterator[Row]:
        for page in self._draft.pages:
            ids = page.entry.chunk_ids()
            if any(id in missing for id in ids):
                rows = zip(ids, _page_rows(page), strict=True)
                yield from (row for id, row in rows if id in missing)

    async def _write_parts(self) -> None:
        """Write the parts of the tree, and read them back as a reader does.

        Parts that are there and make the right tree are left alone, also when another version of the
        compressor cut them differently; their number is what the root will say.
        """
        old = self._lock.root
        if old is not None and old.sha256 == self._root.sha256:
            self._root = replace(old, generation=self._root.generation)
        if await self._parts_are_right():
            return
        self._root = replace(self._draft.root, generation=self._root.generation)
        rows = zip(self._root.part_ids(), self._draft.parts, strict=True)
        await self._store.upsert(
            [Row(id, text, {"kind": "tree"}, self._draft.vector) for id, text in rows]
        )
        if not await self._parts_are_right():
            await self._lost("parts of the path tree")

    async def _lost(self, what: str) -> None:
        """Raise LockLost where another writer may have collected what is missing, else blame the store."""
        await self._lock.confirm()
        raise StoreError(f"the store does not keep {what} written to it")

    async def _parts_are_right(self) -> bool:
        try:
            await load_tree(self._store, self._root)
        except RecordDamaged:
            return False
        return True

    async def _flip(self) -> None:
        document, metadata = encode_root(self._root)
        row = Row(ROOT_ID, document, metadata, self._draft.vector)
        await self._lock.confirm()
        await self._store.upsert([row])
        self._lock.published(document)
        self._visible = True

    async def _look_again(self) -> None:
        """See that the tree just published is whole: its writer may have stood still before the flip."""
        root = await load_root(self._store)
        if root != self._root:
            raise LockLost(
                f"this tree was published as generation {self._root.generation}, but another writer "
                f"replaced it by generation {root.generation} at once"
            )
        if not await self._parts_are_right():
            await self._write_parts()
            if self._root != root:
                await self._flip()
        missing = self._draft.ids - await self._store.existing(self._draft.ids)
        if missing:
            await self._fill(missing)

    async def _collect(self, listed: Sequence[str], now: Callable[[], float], grace: float) -> int:
        """Delete what was condemned the grace time ago; condemn what is dead since. Never fails the run."""
        try:
            return await self._collect_dead(listed, now(), grace)
        except (StoreError, LockLost) as exc:
            log.warning("published, but old records were left for the next run: %s", exc)
            return 0

    async def _collect_dead(self, listed: Sequence[str], moment: float, grace: float) -> int:
        dead = dead_ids(listed, self._draft.live_names())
        condemned = await load_condemned(self._store, listed)
        times = {name: min(condemned.times.get(name, moment), moment) for name in dead}
        due = [name for name, at in times.items() if moment - at >= grace]
        doomed = [id for name in due for id in dead[name]]
        doomed += old_locks(listed, self._root.generation)
        for batch in _batches(doomed, self._store.rows_per_call):
            await self._lock.confirm()
            await self._store.delete(batch)
        for name in due:
            del times[name]
        await self._lock.confirm()
        await store_condemned(self._store, condemned, times, self._draft.vector)
        return len(doomed)


def _page_rows(page: PlannedPage) -> Iterator[Row]:
    """Yield the rows of a page, read now; raise UserError where it is not what was planned."""
    entry = page.entry
    try:
        data = page.load()
    except OSError as exc:
        raise UserError(f"{entry.path} can no longer be read: {exc.strerror}; run again") from exc
    if page_version(entry.path, data) != entry.version:
        raise UserError(f"{entry.path} has changed since the run began; run again")
    pieces = cut(data)
    if (len(data), len(pieces.documents)) != (entry.size, entry.chunks):
        raise ValueError(f"{entry.path}: planned with a wrong size or number of chunks")
    for index, (id, document) in enumerate(zip(entry.chunk_ids(), pieces.documents, strict=True)):
        yield Row(
            id, document, chunk_metadata(entry.path, entry.version, index, binary=pieces.binary)
        )


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch
