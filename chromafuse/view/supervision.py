"""The view's end of its supervisor's socket: lines of JSON, and the hub's sockets as descriptors.

    {"hub": true} + a descriptor   a link to the hub, also later to a restarted one
    {"ask": "counters"}            answered {"event": "counters", ...}
    end of file                    the supervisor is gone

The view itself writes {"event": "mounted", ...} or {"event": "failed", ...}, once.

Concurrency: one task reads; lines are small and written whole by whoever has one.
"""

from __future__ import annotations

import array
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import trio

from ..errors import ProtocolError

LINE_MAX = 64 << 10  # bytes
_DESCRIPTORS = 8  # taken in one call


@dataclass(frozen=True, slots=True)
class HubLink:
    """A fresh link to the hub."""

    stream: trio.SocketStream


@dataclass(frozen=True, slots=True)
class Question:
    """The supervisor asks for something by name."""

    about: str


class Supervision:
    """The control socket of a view."""

    def __init__(self, descriptor: int) -> None:
        self._socket = trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor))
        self._buffer = b""
        self._descriptors: list[int] = []

    async def messages(self) -> AsyncIterator[HubLink | Question]:
        """Yield what the supervisor says until it closes. Raises ProtocolError."""
        while await self._receive():
            *lines, self._buffer = self._buffer.split(b"\n")
            if len(self._buffer) > LINE_MAX:
                raise ProtocolError("a control line without an end")
            for line in lines:
                yield self._message(line)

    async def tell(self, event: str, **facts: Any) -> None:
        """Send one line. A supervisor that is gone is not told."""
        data = memoryview(json.dumps({"event": event, **facts}).encode() + b"\n")
        try:
            while data:
                data = data[await self._socket.send(data) :]
        except (BrokenPipeError, ConnectionResetError):
            return

    async def _receive(self) -> bool:
        space = socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = await self._socket.recvmsg(
                LINE_MAX, space, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return False
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                self._descriptors += numbers
        self._buffer += data
        return bool(data)

    def _message(self, line: bytes) -> HubLink | Question:
        try:
            message = json.loads(line)
        except ValueError:
            raise ProtocolError("a control line that is no JSON") from None
        match message:
            case {"hub": True} if self._descriptors:
                end = socket.socket(fileno=self._descriptors.pop(0))
                return HubLink(trio.SocketStream(trio.socket.from_stdlib_socket(end)))
            case {"ask": str(about)}:
                return Question(about)
        raise ProtocolError(f"a control line of no known kind: {line[:80]!r}")
