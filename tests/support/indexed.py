"""Trees in memory that are indexed for real, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from chromafuse.errors import ChromafuseError
from chromafuse.hub.indexing import Indexing
from chromafuse.model.access import PUBLIC
from chromafuse.model.entry import TreeEntry
from chromafuse.model.records import cut, page_version

KEY = "collection"


class Site:
    """Pages by path, and a loader of them that counts; `before` is called with the number of each load."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self.entries = [_entry(path, page) for path, page in sorted(pages.items())]
        self.loads: list[list[str]] = []
        self.before: Callable[[int], None] | None = None
        self.errors: dict[str, ChromafuseError] = {}
        self._pages = pages

    @property
    def versions(self) -> dict[str, bytes]:
        """The version of each page."""
        return {entry.path: entry.version for entry in self.entries}

    @property
    def loaded(self) -> list[str]:
        """The paths of all pages that were loaded, in order."""
        return [path for load in self.loads for path in load]

    async def load(self, entries: Sequence[TreeEntry]) -> dict[bytes, bytes | ChromafuseError]:
        """Load pages; see `loading.Load`."""
        self.loads.append([entry.path for entry in entries])
        if self.before is not None:
            self.before(len(self.loads))
        await trio.lowlevel.checkpoint()
        return {
            entry.version: self.errors.get(entry.path) or self._pages[entry.path]
            for entry in entries
        }


def _entry(path: str, page: bytes) -> TreeEntry:
    chunks = len(cut(page).documents)
    return TreeEntry(path, PUBLIC, page_version(path, page), chunks, len(page), 5)


def numbered(count: int, size: int = 0) -> Site:
    """Return a site of pages that each hold their number, as a word of its own, and `size` bytes besides."""
    return Site(
        {
            f"page-{number:04}.md": b"page %04d of many\n" % number + b"filler\n" * (size // 7)
            for number in range(count)
        }
    )


@asynccontextmanager
async def indexing(
    site: Site, directory: Path | None, activity: Callable[[], int] = lambda: 0
) -> AsyncIterator[Indexing]:
    """Run the indexing of a site in a directory."""
    found = Indexing(directory, KEY, site.entries, site.load, activity=activity, delay=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        yield found
        nursery.cancel_scope.cancel()


async def reaches(found: Indexing, state: str) -> None:
    """Wait until the indexing has a state."""
    with trio.fail_after(60):
        while found.state != state:
            await found.leaves(found.state)


def builders(parent: int | None = None) -> list[int]:
    """Return the pids of the processes that build for a process, this one unless another is named."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            ppid = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if b"chromafuse.hub.indexer" in words and ppid == (parent or os.getpid()):
            found.append(int(entry.name))
    return found
