"""Reading a published tree and its pages. Nothing unverified leaves this module.

A tree is checked against the digest in the root record, a page against its version in the tree.

Concurrency: stateless coroutines over a `Store`; any number at once. Many bytes are hashed in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ..errors import ChromafuseError, NotPublished, PageGone, RecordDamaged
from ..model.records import ROOT_ID, Root, TreeEntry, assemble, decode_root, join_tree
from .protocol import Row, Store

_LARGE = 1 << 20  # bytes of pages, or of a tree, that are put together in a thread


async def load_root(store: Store) -> Root:
    """Fetch and decode the root record.

    Raises NotPublished where the collection has none, UnknownFormat, RecordDamaged, StoreError.
    """
    rows = await store.get([ROOT_ID])
    if ROOT_ID not in rows:
        raise NotPublished(f"the collection has no record {ROOT_ID}: nothing was published in it")
    return decode_root(rows[ROOT_ID].document)


async def load_tree(store: Store, root: Root) -> bytes:
    """Fetch the canonical JSON of the tree that `root` names, checked against its digest.

    Raises RecordDamaged where a part is missing or wrong, StoreError.
    """
    ids = root.part_ids()
    rows = await store.get(ids)
    missing = [part for part in ids if part not in rows]
    if missing:
        raise RecordDamaged(f"{len(missing)} of the path tree's {len(ids)} parts are missing")
    documents = [rows[part].document for part in ids]
    if root.size > _LARGE:  # the hub loads a tree while it serves; 100,000 pages take some 40 ms
        return await trio.to_thread.run_sync(join_tree, root, documents)
    return join_tree(root, documents)


async def load_pages(
    store: Store, entries: Sequence[TreeEntry]
) -> dict[bytes, bytes | ChromafuseError]:
    """Fetch pages, many in few calls; the answer holds each version asked for: its bytes, or why not.

    A page with all chunks missing is PageGone, one with wrong or some missing chunks RecordDamaged: it is for
    the caller, who knows which tree is current, to say whether a page that is gone ought to be there.
    Raises StoreError where the store does not answer; then nothing is known of any page.
    """
    wanted = {entry.version: entry for entry in entries}
    rows = await store.get([chunk for entry in wanted.values() for chunk in entry.chunk_ids()])
    if sum(entry.size for entry in wanted.values()) > _LARGE:
        return await trio.to_thread.run_sync(_pages, wanted, rows)
    return _pages(wanted, rows)


def _pages(
    wanted: dict[bytes, TreeEntry], rows: dict[str, Row]
) -> dict[bytes, bytes | ChromafuseError]:
    return {version: _page(entry, rows) for version, entry in wanted.items()}


def _page(entry: TreeEntry, rows: dict[str, Row]) -> bytes | ChromafuseError:
    ids = entry.chunk_ids()
    found = [rows[chunk] for chunk in ids if chunk in rows]
    if ids and not found:
        return PageGone(f"{entry.path}: none of its {len(ids)} chunks is stored")
    if len(found) < len(ids):
        return RecordDamaged(f"{entry.path}: {len(ids) - len(found)} of {len(ids)} chunks missing")
    try:
        return assemble(entry, [(row.document, row.metadata) for row in found])
    except RecordDamaged as exc:
        return exc
