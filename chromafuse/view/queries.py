"""The query names: a question is a path, its answer a file, both found by name and in no listing.

    DIRECTORY/.chromafuse-query/HEX/…/HEX/=MS   a question about DIRECTORY: the bytes of all HEX, of which the
                                                first NONCE are its number; MS is how long the asker waits
    DIRECTORY/.chromafuse-query/NAME            an answer that did not fit

Looking a question up asks nobody, because a caller that waits in a lookup cannot be killed. Reading its file
waits for the answer, and fails where there is none in time. The file has QUERY_SIZE bytes whatever the answer:

    "chromafuse answer 1", number in HEX, bytes of the answer, NAME or nothing, the answer if there is no NAME

each ended by a NUL, and NULs up to the end. Every question and every answer has an inode of its own, used once,
so no cache of the kernel's is ever stale. The latest are kept, by number and by bytes; older ones are ESTALE.

Concurrency: used on the trio thread only; changed between awaits.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pyfuse3
import trio

from ..errors import ChromafuseError, StoreUnavailable
from ..model.names import NAME_MAX
from ..model.snapshot import ROOT_INODE
from . import attributes
from .attributes import Owner

NAME = b".chromafuse-query"
FIRST_DIRECTORY = (1 << 52) + (1 << 40)  # the query directory of inode i is this + i; i has 32 bits
FIRST_NODE = (1 << 52) + (1 << 41)
QUERY_SIZE = 4096  # bytes
NONCE = 16  # bytes
MAGIC = b"chromafuse answer 1"
QUESTION_MAX = 64 << 10  # bytes
WAIT_MAX = 5_000  # ms
KEPT_PARTS, KEPT_TEXT = 2048, 4 << 20  # parts of questions, and bytes of them
KEPT_ANSWERS = 8 << 20  # bytes of answers that did not fit; the largest has half of that
ALWAYS_ASK = 0.0  # timeout: the kernel keeps neither name nor attributes

# Directory, question, seconds; raises ChromafuseError.
Ask = Callable[[int, bytes, float], Awaitable[bytes]]


async def ask_nobody(directory: int, question: bytes, deadline: float) -> bytes:
    """Answer no question."""
    raise StoreUnavailable("there is nobody to ask")


@dataclass(slots=True, eq=False)
class _Part:
    """A question as far as it was looked up: a directory, or with `wait` set the file of its answer."""

    directory: int  # that is asked about
    text: bytes
    wait: int = 0  # ms
    started: bool = False
    done: trio.Event = field(default_factory=trio.Event)
    answer: bytes = b""  # the file; empty: there is none

    @property
    def size(self) -> int:
        """How many bytes it holds, or will hold."""
        return len(self.text) + (QUERY_SIZE if self.wait else 0)


class QueryFiles:
    """The query names of one mount."""

    def __init__(self, ask: Ask, owner: Owner, mtime_ns: int) -> None:
        self._ask = ask
        self._owner = owner
        self._mtime_ns = mtime_ns
        self._next = FIRST_NODE
        self._parts: OrderedDict[int, _Part] = OrderedDict()
        self._text = 0  # bytes of parts
        self._answers: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()  # by name
        self._named: dict[int, bytes] = {}  # inode -> name of an answer
        self._bytes = 0  # of answers

    def owns(self, inode: int) -> bool:
        """Say whether `inode` is a number for query names."""
        return inode >= FIRST_DIRECTORY

    def root(self, directory: int) -> pyfuse3.EntryAttributes:
        """Return the attributes of the query directory of a directory."""
        return self.attributes(FIRST_DIRECTORY + directory)

    def lookup(self, parent: int, name: bytes) -> pyfuse3.EntryAttributes:
        """Answer a lookup below a query directory."""
        if not self.is_directory(parent):
            raise pyfuse3.FUSEError(errno.ENOTDIR)
        if parent < FIRST_NODE and name in self._answers:
            return self.attributes(self._answers[name][0])
        before = self._parts.get(parent)
        part = _continued(before or _Part(parent - FIRST_DIRECTORY, b""), name)
        if part is None:
            return attributes.absent(ALWAYS_ASK)
        return self.attributes(self._keep_part(part))

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        """Return the attributes of a part of a question or of an answer; ESTALE for another number."""
        if self.is_directory(inode):
            return attributes.directory(self._owner, inode, self._mtime_ns, ALWAYS_ASK)
        size = QUERY_SIZE
        if inode in self._named:
            size = len(self._answers[self._named[inode]][1])
        return attributes.page(self._owner, inode, size, self._mtime_ns, ALWAYS_ASK)

    def is_directory(self, inode: int) -> bool:
        """Say whether `inode` is a directory; ESTALE where it is nothing of ours."""
        if inode < FIRST_NODE:
            return True
        part = self._parts.get(inode)
        if part is None and inode not in self._named:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return part is not None and not part.wait

    def parent(self, inode: int) -> int:
        """Return what `..` of a directory is: the directory asked about."""
        if inode < FIRST_NODE:
            return inode - FIRST_DIRECTORY
        part = self._parts.get(inode)
        return ROOT_INODE if part is None else part.directory

    async def content(self, inode: int) -> bytes:
        """Return the whole text behind an inode. Waits for the answer to a question.

        Raises EIO where there is none in time or none at all, ESTALE for another number.
        """
        name = self._named.get(inode)
        if name is not None:
            return self._answers[name][1]
        part = self._parts.get(inode)
        if part is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        if not part.started:
            part.started = True
            try:
                await self._fill(part)
            finally:
                part.done.set()
        await part.done.wait()
        if not part.answer:
            raise pyfuse3.FUSEError(errno.EIO)
        return part.answer

    async def _fill(self, part: _Part) -> None:
        """Ask, once for all who read."""
        nonce, question = part.text[:NONCE], part.text[NONCE:]
        try:
            answer = await self._ask(part.directory, question, part.wait / 1000)
        except ChromafuseError:
            return  # an asker that hears nothing runs the real tool, on everything
        part.answer = self._file(nonce, answer)

    def _file(self, nonce: bytes, answer: bytes) -> bytes:
        head = [MAGIC, nonce.hex().encode(), b"%d" % len(answer)]
        file = b"\0".join((*head, b"", answer))
        if len(file) > QUERY_SIZE:
            file = b"\0".join((*head, self._keep(answer), b""))
        return file.ljust(QUERY_SIZE, b"\0")

    def _keep(self, answer: bytes) -> bytes:
        """Keep an answer that did not fit; return its name."""
        name, inode = b"_" + os.urandom(16).hex().encode(), self._new_inode()
        self._answers[name] = inode, answer
        self._named[inode] = name
        self._bytes += len(answer)
        while self._bytes > KEPT_ANSWERS:
            _, (old, dropped) = self._answers.popitem(last=False)
            del self._named[old]
            self._bytes -= len(dropped)
        return name

    def _keep_part(self, part: _Part) -> int:
        """Keep a part; return its inode."""
        inode = self._new_inode()
        self._parts[inode] = part
        self._text += part.size
        while len(self._parts) > KEPT_PARTS or self._text > KEPT_TEXT:
            _, dropped = self._parts.popitem(last=False)
            self._text -= dropped.size
        return inode

    def _new_inode(self) -> int:
        self._next += 1
        return self._next - 1


def _continued(part: _Part, name: bytes) -> _Part | None:
    """Return a question with one name more; None where the name is none."""
    if name[:1] == b"=":
        wait = name[1:]
        if len(part.text) < NONCE or not wait.isdigit() or not 0 < len(wait) < 6:
            return None
        return _Part(part.directory, part.text, max(1, min(int(wait), WAIT_MAX)))
    if len(name) > NAME_MAX:
        return None
    try:
        text = part.text + bytes.fromhex(name.decode("ascii"))
    except ValueError:
        return None
    if len(text) > NONCE + QUESTION_MAX:
        return None
    return _Part(part.directory, text)
