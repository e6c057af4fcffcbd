"""What one identity sees of one tree. The hub prunes here, and says here who may read which inode.

Immutable: safe to share between sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import wire
from ..errors import StaleInode
from ..model.access import Identity
from ..model.entry import TreeEntry
from ..model.records import PathTree
from ..model.snapshot import View, build


@dataclass(frozen=True, slots=True)
class Scope:
    """What one identity sees of one tree: its view, and the digest of what is visible.

    `still_shown` holds the paths that the published tree shows, where that is another one: a page must be
    visible in both, or a restart of the hub would hand out what was withdrawn before it.
    """

    identity: Identity
    view: View
    digest: bytes
    still_shown: frozenset[str] | None = None

    @classmethod
    def of(cls, tree: PathTree, identity: Identity, newer: PathTree | None = None) -> Scope:
        """Prune `tree` for `identity`."""
        view = build(tree.generation, tree.visible(identity))
        encoded = wire.encode_snapshot(view.snapshot)
        versions = b"".join(entry.version for entry in view.entries if entry is not None)
        digest = wire.snapshot_digest(encoded, versions)
        shown = None if newer is None else frozenset(e.path for e in newer.visible(identity))
        return cls(identity, view, digest, shown)

    @property
    def encoded(self) -> bytes:
        """The snapshot for the view, made when it is asked for: a view takes it once, at its start."""
        return wire.encode_snapshot(self.view.snapshot)

    @property
    def generation(self) -> int:
        """The generation of the tree that is served."""
        return self.view.snapshot.generation

    @property
    def pages(self) -> int:
        """How many pages the identity sees."""
        return sum(entry is not None for entry in self.view.entries)

    def page(self, inode: int) -> TreeEntry:
        """Return the entry of a page's inode. Raises StaleInode for everything else."""
        entry = self.view.entry(inode)
        if entry is None or not self._admits(entry):
            raise StaleInode(f"inode {inode} is no page of this view")
        return entry

    def _admits(self, entry: TreeEntry) -> bool:
        shown = self.still_shown is None or entry.path in self.still_shown
        return shown and entry.access.admits(self.identity)
