"""A tree as one identity sees it: immutable, pruned, numbered, in columns of plain numbers.

`build` takes the visible entries alone, so everything here (names after collisions, inode numbers, slots,
directory times, sizes of statfs) depends on visible entries only: a hidden page changes no byte and no
number. Nodes are numbered depth first, each directory's names in byte order; node i has inode i + 1, so the
root is inode 1. Columns instead of objects keep 100,000 pages within a few megabytes.

Immutable but for the child tables, which are built on demand and depend on nothing else: safe to share
between tasks of one thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from . import names
from .entry import MTIME_UNKNOWN, TreeEntry

ROOT_INODE = 1
DIRECTORY = (1 << 64) - 1  # in the size column: the node is a directory
BLOCK = 512  # bytes; the unit of st_blocks whatever st_blksize says, see stat(2)


@dataclass(frozen=True, slots=True)
class Child:
    """One dentry: its slot in the directory (a stable readdir cookie, from 1), its name and its inode."""

    slot: int
    name: bytes
    inode: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The columns. `ends[i]` is the node after the subtree of node i; names lie end to end in `blob`."""

    generation: int
    parents: array[int]  # 'I', node of the parent directory; the root's own is 0
    ends: array[int]  # 'I'
    sizes: array[int]  # 'Q', bytes, or DIRECTORY
    mtimes: array[int]  # 'q', ns
    name_ends: array[int]  # 'I', offsets into blob
    blob: bytes
    _children: dict[int, array[int]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        """Return the number of nodes, directories and the root included."""
        return len(self.sizes)

    def has(self, inode: int) -> bool:
        """Say whether this snapshot has `inode`."""
        return 1 <= inode <= len(self.sizes)

    def is_directory(self, inode: int) -> bool:
        """Say whether `inode`, which must exist, is a directory."""
        return self.sizes[inode - 1] == DIRECTORY

    def size(self, inode: int) -> int:
        """Return the size of a page, in bytes."""
        return self.sizes[inode - 1]

    def mtime_ns(self, inode: int) -> int:
        """Return the time of a page, or that of a directory's newest visible descendant."""
        return self.mtimes[inode - 1]

    def name(self, inode: int) -> bytes:
        """Return the last name of `inode`; the root's is empty."""
        node = inode - 1
        return self.blob[self.name_ends[node - 1] if node else 0 : self.name_ends[node]]

    def parent(self, inode: int) -> int:
        """Return the inode of the parent directory; the root is its own."""
        return self.parents[inode - 1] + 1

    def path(self, inode: int) -> str:
        """Return the full path as shown, without a leading slash; the root's is empty."""
        parts = []
        while inode != ROOT_INODE:
            parts.append(self.name(inode))
            inode = self.parent(inode)
        return b"/".join(reversed(parts)).decode()

    def lookup(self, inode: int, name: bytes) -> int:
        """Return the inode of `name` in directory `inode`, or 0 where there is none."""
        inodes = self.child_inodes(inode)
        at = bisect_left(inodes, name, key=self.name)
        return inodes[at] if at < len(inodes) and self.name(inodes[at]) == name else 0

    def children(self, inode: int, after: int = 0) -> Iterator[Child]:
        """Yield the dentries of directory `inode` whose slots come after `after`, in order."""
        inodes = self.child_inodes(inode)
        for slot in range(max(after, 0) + 1, len(inodes) + 1):
            child = inodes[slot - 1]
            yield Child(slot, self.name(child), child)

    def pages(self) -> Iterator[int]:
        """Yield the inodes of all pages, in order."""
        return (node + 1 for node, size in enumerate(self.sizes) if size != DIRECTORY)

    def blocks(self) -> int:
        """Return what all pages together occupy, in blocks of 512 bytes."""
        return sum(-(-size // BLOCK) for size in self.sizes if size != DIRECTORY)

    def child_inodes(self, inode: int) -> array[int]:
        """Return the inodes of directory `inode`'s entries, ascending."""
        found = self._children.get(inode)
        if found is None:
            found, node, end = array("I"), inode, self.ends[inode - 1]
            while node < end:
                found.append(node + 1)
                node = self.ends[node]
            self._children[inode] = found
        return found


@dataclass(frozen=True, slots=True)
class View:
    """What the hub holds of one view: the snapshot it hands out, and the entry behind each page's inode."""

    snapshot: Snapshot
    entries: tuple[TreeEntry | None, ...]  # by node; None for a directory
    renamed: tuple[
        tuple[str, str], ...
    ]  # (key, path as shown) of pages that collide with a directory

    def entry(self, inode: int) -> TreeEntry | None:
        """Return the entry of a page's inode; None for a directory and for a number that is not ours."""
        return self.entries[inode - 1] if self.snapshot.has(inode) else None


def build(generation: int, visible: Sequence[TreeEntry]) -> View:
    """Build the snapshot of `visible`, which are in the order of `names.sort_key`."""
    shown, renamed = resolve_collisions(visible)
    builder = _Builder()
    for path, entry in shown:
        builder.add(path, entry)
    return View(builder.finish(generation), tuple(builder.entries), renamed)


def resolve_collisions(
    visible: Sequence[TreeEntry],
) -> tuple[Iterable[tuple[bytes, TreeEntry]], tuple[tuple[str, str], ...]]:
    """Give each entry the path that it is shown under: (path with NUL for slash, entry), in order.

    A page and a directory of exactly one name are both shown: the page becomes `name~page`, and once more
    `~page` where that is taken. Of two entries with one key the first is shown.
    """
    keys = (names.sort_key(entry.path) for entry in visible)
    keyed = ((names.sort_key(entry.path), entry) for entry in visible)
    if not any(
        after.startswith(key) and after[len(key) : len(key) + 1] in (b"", b"\0")
        for key, after in pairwise(keys)
    ):
        return keyed, ()  # as nearly always; a list of all would be 14 MB for 100,000 pages
    listed = list(keyed)
    shown = listed[:1] + [after for before, after in pairwise(listed) if before[0] != after[0]]
    colliding = {key for (key, _), (after, _) in pairwise(shown) if after.startswith(key + b"\0")}
    return _rename(shown, colliding)


def _rename(
    shown: list[tuple[bytes, TreeEntry]], colliding: set[bytes]
) -> tuple[list[tuple[bytes, TreeEntry]], tuple[tuple[str, str], ...]]:
    taken = {key for key, _ in shown if key not in colliding}
    for key, _ in shown:
        at = key.find(b"\0")
        while at >= 0:
            taken.add(key[:at])
            at = key.find(b"\0", at + 1)
    result, renamed = [], []
    for key, entry in shown:
        path = key
        if key in colliding:
            while path in taken:
                path += names.COLLISION_SUFFIX.encode()
            taken.add(path)
            if len(path) - path.rfind(b"\0") - 1 > names.NAME_MAX:
                renamed.append((entry.path, ""))
                continue
            renamed.append((entry.path, path.replace(b"\0", b"/").decode()))
        result.append((path, entry))
    result.sort(key=lambda pair: pair[0])
    return result, tuple(renamed)


class _Builder:
    """Appends pages in depth-first order and closes directories as it leaves them."""

    def __init__(self) -> None:
        self.entries: list[TreeEntry | None] = []
        self._parents, self._ends, self._name_ends = array("I"), array("I"), array("I")
        self._sizes, self._mtimes = array("Q"), array("q")
        self._blob = bytearray()
        # (name, node) of the directories we are in, root first; and their names with a NUL behind each.
        self._open: list[tuple[bytes, int]] = []
        self._prefix = b""
        self._enter(b"")

    def add(self, path: bytes, entry: TreeEntry) -> None:
        name_at = path.rfind(b"\0") + 1
        if path[:name_at] != self._prefix:
            self._go_to(path[:name_at])
        self._node(path[name_at:], entry.size, entry.mtime_ns, entry)
        self._ends[-1] = len(self._ends)

    def _go_to(self, prefix: bytes) -> None:
        directories = prefix.split(b"\0")[:-1]
        depth = 0
        while (
            depth < len(directories)
            and depth + 1 < len(self._open)
            and self._open[depth + 1][0] == directories[depth]
        ):
            depth += 1
        self._leave_to(depth + 1)
        for directory in directories[depth:]:
            self._enter(directory)
        self._prefix = prefix

    def finish(self, generation: int) -> Snapshot:
        self._leave_to(0)
        for node, mtime in enumerate(self._mtimes):
            if mtime == _NO_TIME:  # only the root of an empty tree has no descendant
                self._mtimes[node] = MTIME_UNKNOWN
        return Snapshot(
            generation,
            self._parents,
            self._ends,
            self._sizes,
            self._mtimes,
            self._name_ends,
            bytes(self._blob),
        )

    def _enter(self, name: bytes) -> None:
        self._open.append((name, self._node(name, DIRECTORY, _NO_TIME, None)))

    def _leave_to(self, depth: int) -> None:
        while len(self._open) > depth:
            _, node = self._open.pop()
            self._ends[node] = len(self._ends)
            if self._open:
                above = self._open[-1][1]
                self._mtimes[above] = max(self._mtimes[above], self._mtimes[node])

    def _node(self, name: bytes, size: int, mtime: int, entry: TreeEntry | None) -> int:
        node = len(self._sizes)
        parent = self._open[-1][1] if self._open else 0
        self._parents.append(parent)
        self._ends.append(0)
        self._sizes.append(size)
        self._mtimes.append(mtime)
        self._blob += name
        self._name_ends.append(len(self._blob))
        self.entries.append(entry)
        self._mtimes[parent] = max(self._mtimes[parent], mtime)
        return node


_NO_TIME = -(1 << 63)
