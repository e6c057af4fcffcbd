"""The bytes of a question and of its answer, as they travel between the shim, the view and the hub.

Both are fields, each ended by a NUL, so none holds one; a list is its length and then its items. shim.py cannot
import this (it is one file, and starts in milliseconds): a test holds the two together.

    question  "1", tool, words…, environment… (NAME=value), files… (position, content), where, whole
    answer    "plain", reason, "end"
              "send", files… (position, path), "end"
              "plan", options…, operands…, kept… ("1", "0" by operand), walks, prefix, lister…, pages, source,
              candidates…, binaries…, directories… (inode, path), "end"

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..errors import ProtocolError
from .plan import Plain, Plan, Request, Send

VERSION = b"1"
TOOLS = (b"grep", b"egrep", b"fgrep", b"rg")
REQUEST_MAX = 64 << 10  # bytes
ANSWER_MAX = 4 << 20  # bytes; twice of what a command line can hold
_END = b"end"


@dataclass(frozen=True, slots=True)
class Question:
    """A search, asked at one directory.

    `where` is how the operands call that directory (`.`: the current one). `whole` asks for its directories too,
    for who cannot read the mount table and looks himself whether something else is mounted there.
    """

    request: Request
    where: bytes
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Filtered:
    """A plan, and what of it can match below the directory. Paths are relative to it, in readdir order."""

    plan: Plan
    kept: tuple[bool, ...]  # by operand: look at it, if it is there and no directory
    pages: int  # that are below the directory
    source: str  # who says what can match
    candidates: tuple[bytes, ...]
    binaries: tuple[bytes, ...] = ()  # where one of these is listed, run it untouched
    directories: tuple[tuple[int, bytes], ...] = ()


Answer = Filtered | Plain | Send


def encode_question(question: Question) -> bytes:
    """Return the bytes of a question. Raises ProtocolError where a field holds a NUL."""
    request = question.request
    files = [part for at, content in request.files.items() for part in (_number(at), content)]
    return _joined(
        (
            VERSION,
            request.tool.encode(),
            *_list(request.words),
            *_list([b"=".join(pair) for pair in request.env.items()]),
            *_list(files),
            question.where,
            _flag(question.whole),
        )
    )


def parse_question(data: bytes) -> Question:
    """Read a question. Raises ProtocolError."""
    if len(data) > REQUEST_MAX:
        raise ProtocolError(f"a question of {len(data)} bytes")
    fields = _Fields(data)
    if fields.next() != VERSION:
        raise ProtocolError("a question of another version")
    tool = fields.next()
    if tool not in TOOLS:
        raise ProtocolError("a question about another tool")
    words = tuple(fields.many())
    env = dict(_pair(entry) for entry in fields.many())
    files = dict(_numbered(fields.many()))
    where, whole = fields.next(), fields.flag()
    fields.end()
    return Question(Request(tool.decode(), words, env, files), where, whole)


def encode_answer(answer: Answer) -> bytes:
    """Return the bytes of an answer. Raises ProtocolError where a field holds a NUL."""
    if isinstance(answer, Plain):
        return _joined((b"plain", answer.reason.encode(), _END))
    if isinstance(answer, Send):
        named = [part for at, path in answer.words for part in (_number(at), path)]
        return _joined((b"send", *_list(named), _END))
    plan = answer.plan
    directories = [part for inode, path in answer.directories for part in (_number(inode), path)]
    return _joined(
        (
            b"plan",
            *_list(plan.options),
            *_list(plan.operands),
            *_list([_flag(kept) for kept in answer.kept]),
            _flag(plan.recursive),
            plan.prefix,
            *_list(plan.enumerate or ()),
            _number(answer.pages),
            answer.source.encode(),
            *_list(answer.candidates),
            *_list(answer.binaries),
            *_list(directories),
            _END,
        )
    )


def parse_answer(data: bytes) -> Answer:
    """Read an answer; the needs and the selection of a plan stay behind. Raises ProtocolError."""
    fields = _Fields(data)
    kind = fields.next()
    answer: Answer
    if kind == b"plain":
        answer = Plain(fields.next().decode())
    elif kind == b"send":
        answer = Send(tuple(_numbered(fields.many())))
    elif kind == b"plan":
        answer = _filtered(fields)
    else:
        raise ProtocolError("an answer of another kind")
    if fields.next() != _END:
        raise ProtocolError("an answer without its end")
    fields.end()
    return answer


def _filtered(fields: _Fields) -> Filtered:
    options, operands = tuple(fields.many()), tuple(fields.many())
    kept = tuple(flag == b"1" for flag in fields.many())
    plan = Plan(None, options, operands, fields.flag(), fields.next())
    lister = tuple(fields.many())
    return Filtered(
        replace(plan, enumerate=lister or None),
        kept,
        fields.number(),
        fields.next().decode(),
        tuple(fields.many()),
        tuple(fields.many()),
        tuple(_numbered(fields.many())),
    )


class _Fields:
    """The fields of a message, from the first on. Raises ProtocolError where one is missing or wrong."""

    def __init__(self, data: bytes) -> None:
        *self._fields, rest = data.split(b"\0")
        self._at = 0
        if rest:
            raise ProtocolError("a field without an end")

    def next(self) -> bytes:
        if self._at == len(self._fields):
            raise ProtocolError("a field is missing")
        self._at += 1
        return self._fields[self._at - 1]

    def number(self) -> int:
        text = self.next()
        if not text.isdigit() or len(text) > 19:
            raise ProtocolError("a field that is no number")
        return int(text)

    def flag(self) -> bool:
        return self.number() == 1

    def many(self) -> list[bytes]:
        count = self.number()
        found = self._fields[self._at : self._at + count]
        if len(found) < count:
            raise ProtocolError("a list without an end")
        self._at += count
        return found

    def end(self) -> None:
        if self._at < len(self._fields):
            raise ProtocolError("fields too many")


def _pair(entry: bytes) -> tuple[bytes, bytes]:
    name, equals, value = entry.partition(b"=")
    if not equals:
        raise ProtocolError("a variable without a value")
    return name, value


def _numbered(parts: list[bytes]) -> Iterator[tuple[int, bytes]]:
    if len(parts) % 2:
        raise ProtocolError("a number without what it numbers")
    for number, value in zip(parts[::2], parts[1::2], strict=True):
        if not number.isdigit() or len(number) > 19:
            raise ProtocolError("a field that is no number")
        yield int(number), value


def _joined(fields: Iterable[bytes]) -> bytes:
    parts = list(fields)
    data = b"".join(part + b"\0" for part in parts)
    if data.count(b"\0") != len(parts):
        raise ProtocolError("a field with a NUL")
    return data


def _list(items: Iterable[bytes]) -> list[bytes]:
    found = list(items)
    return [_number(len(found)), *found]


def _number(value: int) -> bytes:
    return b"%d" % value


def _flag(value: bool) -> bytes:
    return b"1" if value else b"0"
