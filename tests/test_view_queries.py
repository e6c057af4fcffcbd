"""The query names of a mount: what looks them up, what they say, and how little is kept of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing

from chromafuse.errors import StoreTimeout
from chromafuse.view import queries
from chromafuse.view.attributes import Owner
from chromafuse.view.queries import (
    FIRST_DIRECTORY,
    KEPT_ANSWERS,
    KEPT_PARTS,
    KEPT_TEXT,
    NONCE,
    QUERY_SIZE,
    QUESTION_MAX,
    QueryFiles,
)

OWNER = Owner(1000, 100)
DIRECTORY = 3
NUMBER = bytes(range(NONCE))
Ask = Callable[[int, bytes, float], Awaitable[bytes]]


class Hub:
    """Answers with `answer`, and keeps what it was asked."""

    def __init__(self, answer: bytes | Exception = b"yes\0end\0") -> None:
        self.answer = answer
        self.asked: list[tuple[int, bytes, float]] = []
        self.hold: trio.Event | None = None

    async def ask(self, directory: int, question: bytes, deadline: float) -> bytes:
        self.asked.append((directory, question, deadline))
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def files(hub: Hub) -> QueryFiles:
    """Return the query names over a hub."""
    return QueryFiles(hub.ask, OWNER, 1)


def look_up(names: QueryFiles, question: bytes, *, wait: str = "1000") -> pyfuse3.EntryAttributes:
    """Walk down a question as the kernel does; return what its last name is."""
    found = names.root(DIRECTORY)
    text = (NUMBER + question).hex()
    for name in [text[at : at + 254] for at in range(0, len(text), 254)] + [f"={wait}"]:
        found = names.lookup(found.st_ino, name.encode())
        assert found.st_ino
    return found


def content(names: QueryFiles, inode: int) -> Any:
    """Read a file to its end; an errno's name where it fails."""
    try:
        return trio.run(names.content, inode)
    except pyfuse3.FUSEError as exc:
        return errno.errorcode[exc.errno]


def test_a_question_is_a_path_and_its_answer_a_file() -> None:
    """Looking it up asks nobody; reading asks once, with the bytes of the path, and pads the answer."""
    hub = Hub()
    names = files(hub)
    question = os.urandom(300)
    found = look_up(names, question, wait="250")
    assert (found.st_size, hub.asked) == (QUERY_SIZE, [])
    head = b"\0".join((b"chromafuse answer 1", NUMBER.hex().encode(), b"8", b"", b"yes\0end\0"))
    assert content(names, found.st_ino) == head.ljust(QUERY_SIZE, b"\0")
    assert content(names, found.st_ino) == head.ljust(QUERY_SIZE, b"\0")
    assert hub.asked == [(DIRECTORY, question, 0.25)]


def test_an_answer_that_does_not_fit_has_a_file_of_its_own() -> None:
    """Its name is in the first file, its size is exact, and any query directory finds it."""
    hub = Hub(os.urandom(QUERY_SIZE))
    names = files(hub)
    fields = content(names, look_up(names, b"x").st_ino).split(b"\0")
    assert fields[:3] == [b"chromafuse answer 1", NUMBER.hex().encode(), b"4096"]
    found = names.lookup(FIRST_DIRECTORY + 1, fields[3])
    assert (len(fields[3]), found.st_size) == (33, QUERY_SIZE)
    assert content(names, found.st_ino) == hub.answer
    assert names.lookup(FIRST_DIRECTORY + 1, fields[3][:-1] + b"g").st_ino == 0


def test_the_answer_fits_up_to_the_last_byte() -> None:
    """One byte more than there is room for takes the second file."""
    for size, named in ((4037, False), (4038, True)):
        names = files(Hub(b"x" * size))
        file = content(names, look_up(names, b"x").st_ino)
        assert (len(file), bool(file.split(b"\0")[3])) == (QUERY_SIZE, named)


def test_every_question_has_a_number_of_its_own() -> None:
    """The same path asked again is another file, so that no cache answers it."""
    hub = Hub()
    names = files(hub)
    first, second = look_up(names, b"x"), look_up(names, b"x")
    assert first.st_ino != second.st_ino
    assert (first.entry_timeout, first.attr_timeout) == (0, 0)
    assert content(names, first.st_ino) == content(names, second.st_ino)
    assert len(hub.asked) == 2


def test_two_readers_of_one_question_ask_once() -> None:
    """Who reads while the answer is waited for waits along."""
    hub = Hub()
    names = files(hub)
    inode = look_up(names, b"x").st_ino
    read: list[bytes] = []

    async def reader() -> None:
        read.append(await names.content(inode))

    async def main() -> None:
        hub.hold = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader)
            nursery.start_soon(reader)
            await trio.testing.wait_all_tasks_blocked()
            hub.hold.set()

    trio.run(main)
    assert (len(hub.asked), len(read), read[0] == read[1]) == (1, 2, True)


def test_no_answer_is_an_error_at_once_for_all_who_come_later() -> None:
    """The kernel reads a page twice before it gives up; the second time nobody is asked."""
    hub = Hub(StoreTimeout("no"))
    names = files(hub)
    inode = look_up(names, b"x").st_ino
    assert [content(names, inode), content(names, inode)] == ["EIO", "EIO"]
    assert len(hub.asked) == 1


@pytest.mark.parametrize(
    "name", [b"0g", b"abc", b"=", b"=x", b"=123456", b"README.md", b"\xff", b"a" * 256]
)
def test_other_names_are_absent(name: bytes) -> None:
    """What is neither hexadecimal nor a time is no name; a time alone is no question."""
    names = files(Hub())
    absent = names.lookup(names.root(DIRECTORY).st_ino, name)
    assert (absent.st_ino, absent.entry_timeout) == (0, 0)
    assert names.lookup(names.root(DIRECTORY).st_ino, b"=1000").st_ino == 0


def test_a_question_is_bounded() -> None:
    """A path that goes on for ever ends with a name that is absent."""
    names = files(Hub())
    inode, length = names.root(DIRECTORY).st_ino, 0
    while inode:
        inode = names.lookup(inode, b"ab" * 127).st_ino
        length += 127 if inode else 0
    assert QUESTION_MAX - 127 <= length <= QUESTION_MAX + NONCE


def test_old_questions_and_answers_are_dropped() -> None:
    """What is kept is bounded by number and by bytes; what was dropped is ESTALE."""
    hub = Hub(bytes(KEPT_ANSWERS // 2))
    names = files(hub)
    first = look_up(names, b"x").st_ino
    named = content(names, first).split(b"\0")[3]
    old = names.lookup(FIRST_DIRECTORY + 1, named).st_ino
    for _ in range(2):
        content(names, look_up(names, b"x").st_ino)
    for _ in range(KEPT_PARTS):
        look_up(names, b"x")
    assert names.lookup(FIRST_DIRECTORY + 1, named).st_ino == 0
    assert [content(names, inode) for inode in (first, old)] == ["ESTALE", "ESTALE"]
    for inode in (first, old):
        with pytest.raises(pyfuse3.FUSEError):
            names.attributes(inode)
    for _ in range(2 * KEPT_TEXT // QUESTION_MAX):
        look_up(names, bytes(QUESTION_MAX))
    assert len(names._parts) < KEPT_PARTS
    assert sum(part.size for part in names._parts.values()) == names._text <= KEPT_TEXT
    assert sum(len(text) for _, text in names._answers.values()) == names._bytes <= KEPT_ANSWERS


def test_a_directory_of_questions_is_one() -> None:
    """It has the directory asked about for its parent, and a file is none."""
    names = files(Hub())
    root = names.root(DIRECTORY)
    part = names.lookup(root.st_ino, NUMBER.hex().encode())
    assert (names.parent(root.st_ino), names.parent(part.st_ino)) == (DIRECTORY, DIRECTORY)
    assert names.is_directory(part.st_ino)
    file = names.lookup(part.st_ino, b"=10")
    assert not names.is_directory(file.st_ino)
    with pytest.raises(pyfuse3.FUSEError):
        names.lookup(file.st_ino, b"00")
    assert names.root(DIRECTORY).st_ino == root.st_ino
    assert queries.FIRST_DIRECTORY < root.st_ino < queries.FIRST_NODE <= part.st_ino < 1 << 53
