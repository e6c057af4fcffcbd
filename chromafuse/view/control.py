"""The control files: `.chromafuse/README.md` and `.chromafuse/status`, found by name and in no listing.

The query names (queries.py), which every directory has, are reached through here too.

They say facts of this view alone: nothing that a hidden page could change, so no generation, no error text,
no time. A changed status gets a new inode, so no cache of the kernel's is ever stale; the texts of the last
inodes are kept for those who have them open.

Concurrency: used on the trio thread only, never across an await.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

import pyfuse3

from ..model.names import CONTROL
from ..model.snapshot import ROOT_INODE, Child
from . import attributes
from .attributes import Owner
from .queries import ALWAYS_ASK, Ask, QueryFiles, ask_nobody
from .queries import NAME as QUERY

FIRST_INODE = 1 << 52  # the tree's own numbers stay far below, and all below 2^53
DIRECTORY = FIRST_INODE
README = FIRST_INODE + 1
FIRST_STATUS = FIRST_INODE + 2
STATUS_SIZE = 512  # bytes, whatever it says
KEPT = 64  # texts of status that stay readable

README_NAME = "README.md"
README_TEXT = b"""\
# How to search here

This is a read-only directory of documentation pages. Plain tools work: ls, cat, find, grep, rg, tar, diff.

- Find a word: `grep -rn 'WORD' .` or `rg -n 'WORD' .`; only the names: `grep -rl 'WORD' .`
- A word or phrase of three letters or more is found fastest. `chromafuse grep` and `chromafuse rg`, or a grep and
  rg made by `chromafuse shims`, look at the pages that can match alone, with the same output.
- Find a page by name: `find . -name '*auth*'`
- Long lines: `grep -rn 'WORD' . | cut -c 1-300`, or `rg -M 300 --max-columns-preview 'WORD'`
- Read part of a page: `sed -n '1,80p' PATH`
- Search first, then read the pages that match: a page costs something the first time, nothing after.

Good to know:

- A path here is the path of the page in the documentation. If a page `x` and a directory `x` have one
  name, the page is shown as `x~page`.
- What is not listed is not here, for you. There is nothing to unlock, and nothing can be written:
  every write fails with "Read-only file system".
- "Connection timed out", "Input/output error" or "Stale file handle" on one page means that it could not
  be fetched. It is never shown shortened or empty instead. Try again later.
- `.chromafuse/status`: `digest` names exactly what you see here, `pages` is how many pages that is,
  `backend: down` means that only pages which were read before can be read now.
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the status file says besides the state of the backend."""

    digest: bytes  # of everything this view may see
    pages: int
    mode: str

    def text(self, backend_up: bool) -> bytes:
        """Return the status file: `key: value` lines, padded to its fixed size."""
        lines = {
            "digest": self.digest.hex(),
            "pages": str(self.pages),
            "mode": self.mode,
            "backend": "ok" if backend_up else "down",
        }
        text = "".join(f"{key}: {value}\n" for key, value in lines.items()).encode()
        return text.ljust(STATUS_SIZE - 1) + b"\n"


@dataclass(slots=True)
class ControlFiles:
    """The control directory of one mount."""

    facts: Facts
    backend_up: Callable[[], bool]
    owner: Owner
    mtime_ns: int  # the root's: it depends on what is visible, and never on now
    ask: Ask = ask_nobody
    queries: QueryFiles = field(init=False)
    _status: dict[int, bytes] = field(default_factory=dict)
    _newest: int = FIRST_STATUS - 1

    def __post_init__(self) -> None:
        self.queries = QueryFiles(self.ask, self.owner, self.mtime_ns)

    def owns(self, inode: int) -> bool:
        """Say whether `inode` is a number for control files."""
        return inode >= FIRST_INODE

    def hides(self, parent: int, name: bytes) -> bool:
        """Say whether `name` in directory `parent` is the control directory or a query directory."""
        return name == QUERY or (parent == ROOT_INODE and name == CONTROL.encode())

    def lookup(self, parent: int, name: bytes) -> pyfuse3.EntryAttributes:
        """Answer a lookup of a control or query directory itself, or in it."""
        if self.queries.owns(parent):
            return self.queries.lookup(parent, name)
        if not self.owns(parent):
            return self.queries.root(parent) if name == QUERY else self.attributes(DIRECTORY)
        if not self.is_directory(parent):
            raise pyfuse3.FUSEError(errno.ENOTDIR)
        for child in self.children(parent):
            if child.name == name:
                return self.attributes(child.inode)
        return attributes.absent(ALWAYS_ASK)

    def children(self, inode: int) -> list[Child]:
        """Return the dentries of a directory of ours, in byte order. A query directory shows none."""
        if self.queries.owns(inode):
            return []
        return [Child(1, README_NAME.encode(), README), Child(2, b"status", self._current_status())]

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        """Return the attributes of a control file or of a directory; ESTALE for another number."""
        if self.queries.owns(inode):
            return self.queries.attributes(inode)
        if inode == DIRECTORY:
            return attributes.directory(self.owner, inode, self.mtime_ns, ALWAYS_ASK)
        size = len(self.content(inode))
        return attributes.page(self.owner, inode, size, self.mtime_ns, ALWAYS_ASK)

    async def read(self, inode: int) -> bytes:
        """Return the whole text behind an inode. Only an answer to a query has to be waited for."""
        if self.queries.owns(inode):
            return await self.queries.content(inode)
        return self.content(inode)

    def parent(self, inode: int) -> int:
        """Return what `..` of a directory of ours is."""
        return self.queries.parent(inode) if self.queries.owns(inode) else ROOT_INODE

    def content(self, inode: int) -> bytes:
        """Return the text behind a control file's inode; ESTALE for another number."""
        text = README_TEXT if inode == README else self._status.get(inode)
        if text is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return text

    def is_directory(self, inode: int) -> bool:
        """Say whether `inode` is a directory; ESTALE where it is nothing of ours."""
        if self.queries.owns(inode):
            return self.queries.is_directory(inode)
        if inode == DIRECTORY:
            return True
        self.content(inode)
        return False

    def _current_status(self) -> int:
        text = self.facts.text(self.backend_up())
        if self._status.get(self._newest) != text:
            self._newest += 1
            self._status[self._newest] = text
            self._status.pop(self._newest - KEPT, None)
        return self._newest
