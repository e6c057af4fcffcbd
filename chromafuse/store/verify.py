"""Reading a whole collection against its digests: what `chromafuse verify` reports.

Every page of the published tree is fetched and its version computed anew. A publication may replace the tree
meanwhile, and its garbage collection delete what is being read: problems found while the root changed are
looked for again in the new tree.

Concurrency: one task; only reads; takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ChromafuseError, RecordDamaged
from ..model.records import PathTree, Root, TreeEntry, decode_tree
from ..model.snapshot import resolve_collisions
from .garbage import is_ours, name_of
from .protocol import Store
from .reader import load_pages, load_root, load_tree

_ROUNDS = 3  # trees in a row that may be replaced while they are read

Progress = Callable[[str, int, int], None]
"""Called with "verify", the number of pages read, and of how many."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. Only `problems` are faults; the rest is for the operator's information."""

    generation: int
    sha256: str  # of the canonical tree
    pages: int  # in the tree, those with problems included
    chunks: int
    bytes: int  # of the pages that are right
    problems: tuple[tuple[str, str], ...]  # (path, why), by path
    renamed: tuple[tuple[str, str], ...]  # (path, path as an unrestricted mount shows it)
    orphans: int  # chunks and tree parts of replaced or unfinished trees, to be collected
    foreign: int  # records of no format of ours; they are never touched

    @property
    def ok(self) -> bool:
        """Say whether every page of the tree can be read and is right."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        lists = {
            "problems": [{"path": path, "why": why} for path, why in self.problems],
            "renamed": [{"path": path, "shown": shown} for path, shown in self.renamed],
        }
        return {"ok": self.ok, **asdict(self), **lists}


async def verify(store: Store, *, progress: Progress = lambda stage, done, total: None) -> Report:
    """Read everything that is published in `store`.

    Raises NotPublished, UnknownFormat, RecordDamaged where there is no readable tree at all; StoreError.
    """
    for _ in range(_ROUNDS - 1):
        root = await load_root(store)
        try:
            report = await _verify(store, root, progress)
        except RecordDamaged:
            if await load_root(store) == root:
                raise
            continue
        if report.ok or await load_root(store) == root:
            return report
    return await _verify(store, await load_root(store), progress)


async def _verify(store: Store, root: Root, progress: Progress) -> Report:
    tree = decode_tree(await load_tree(store, root), root.generation)
    why: dict[str, str] = dict(tree.problems)
    right = done = 0
    progress("verify", done, len(tree.entries))
    for batch in _batches(tree.entries, store.rows_per_call):
        pages = await load_pages(store, batch)
        for entry in batch:
            page = pages[entry.version]
            if isinstance(page, ChromafuseError):
                why[entry.path] = _without_path(str(page), entry.path)
            else:
                right += len(page)
        done += len(batch)
        progress("verify", done, len(tree.entries))
    orphans, foreign = await _others(store, root, tree)
    return Report(
        generation=root.generation,
        sha256=root.sha256,
        pages=len(tree.entries) + len(tree.problems),
        chunks=sum(entry.chunks for entry in tree.entries),
        bytes=right,
        problems=tuple(sorted(why.items())),
        renamed=resolve_collisions(tree.entries)[1],
        orphans=orphans,
        foreign=foreign,
    )


def _without_path(message: str, path: str) -> str:
    return message.removeprefix(f"{path}: ")


def _batches(entries: Sequence[TreeEntry], rows: int) -> Iterator[list[TreeEntry]]:
    """Cut `entries` where the chunks of the next page do not fit into one call any more."""
    batch: list[TreeEntry] = []
    size = 0
    for entry in entries:
        if batch and (size + entry.chunks > rows or len(batch) >= rows):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.chunks
    if batch:
        yield batch


async def _others(store: Store, root: Root, tree: PathTree) -> tuple[int, int]:
    """Count the records that the tree does not need: ours, and those of others."""
    live = {entry.version.hex() for entry in tree.entries} | {root.sha256}
    orphans = foreign = 0
    for id in await store.list_ids():
        name = name_of(id)
        orphans += name is not None and name not in live
        foreign += not is_ours(id)
    return orphans, foreign
