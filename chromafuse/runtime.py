"""The runtime directory: who is mounting where, and one status socket for each mount.

A mountpoint has a lock file there, held by its supervisor from before the first look at the mountpoint to its
own end, and a socket, which answers `status`. Names are digests of the mountpoint's path. What a killed
supervisor left is cleared by whoever comes next and gets the lock.

Concurrency: blocking calls; the lock is the kernel's, on an open file, so it ends with its last holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .errors import UserError
from .text import printable

SYSTEM = Path("/run/chromafuse")
ANSWER = 2.0  # s that a supervisor has for its answer
_NAME = "chromafuse"
_ANSWER_MAX = 1 << 20  # bytes
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: see SO_PEERCRED in unix(7)


class Claimed(UserError):
    """Somebody else has the mountpoint."""


def directory(env: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of this user: below XDG_RUNTIME_DIR, else /run for root, else below /tmp."""
    if os.path.isabs(env.get("XDG_RUNTIME_DIR", "")):
        return Path(env["XDG_RUNTIME_DIR"]) / _NAME
    if os.geteuid() == 0:
        return SYSTEM
    return Path(f"/tmp/{_NAME}-{os.geteuid()}")  # noqa: S108 - checked by open_directory


def places(env: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the directories in which a mount of this user may be found: a session's, and the system's."""
    own = directory(env)
    return [own] if own == SYSTEM or os.geteuid() != 0 else [own, SYSTEM]


def open_directory(path: Path, *, create: bool) -> int:
    """Return a descriptor of the directory. Raises UserError for one that others could write to."""
    try:
        if create:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not create:
            raise
        raise UserError(
            f"cannot use the runtime directory {path}: {exc.strerror}; set XDG_RUNTIME_DIR to one of yours"
        ) from exc
    facts = os.fstat(found)
    if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o022:
        os.close(found)
        raise UserError(
            f"the runtime directory {path} can be written by others; remove it, or set XDG_RUNTIME_DIR"
        )
    return found


def key_of(mountpoint: str) -> str:
    """Return the name that the files of a mountpoint have."""
    return hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:32]


# -- the supervisor's side -----------------------------------------------------------------------------


@dataclass(slots=True)
class Claim:
    """A mountpoint that nobody else is mounting on, as long as this is open, here or in a forked process."""

    path: Path  # of the runtime directory
    key: str
    _directory: int
    _lock: int
    held: list[int] = field(default_factory=list)  # further descriptors that live as long

    @classmethod
    def take(cls, mountpoint: str, env: Mapping[str, str] = os.environ) -> Claim:
        """Take the lock of `mountpoint`. Raises Claimed where somebody has it."""
        path, key = directory(env), key_of(mountpoint)
        found = open_directory(path, create=True)
        lock = _lock(found, f"{key}.lock")
        if lock is None:
            os.close(found)
            raise Claimed(
                f"another chromafuse is mounting on {printable(mountpoint)}, or is at its end there; "
                "see `chromafuse status`"
            )
        return cls(path, key, found, lock)

    @property
    def log_file(self) -> Path:
        """Where a daemon of this claim logs when it has nowhere else."""
        return self.path / f"{self.key}.log"

    def listen(self) -> socket.socket:
        """Return the mount's listening status socket. To be called in the process that will answer it."""
        name = f"{self.key}.sock"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._directory)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(_address(self._directory, name))
        os.chmod(f"/proc/self/fd/{self._directory}/{name}", 0o600)
        listener.listen()
        return listener

    def abandon(self) -> None:
        """Close it here; another process holds on to it."""
        for descriptor in (*self.held, self._lock, self._directory):
            os.close(descriptor)
        self.held.clear()

    def release(self) -> None:
        """Remove its files and give the mountpoint free."""
        for suffix in ("sock", "lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.key}.{suffix}", dir_fd=self._directory)
        self.abandon()


def _lock(directory: int, name: str) -> int | None:
    """Open and lock a file, None where it is locked. The holder before may have removed it: then once more."""
    while True:
        opened = os.open(
            name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory
        )
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return None
        if os.fstat(opened).st_nlink:
            return opened
        os.close(opened)


def _address(directory: int, name: str) -> str:
    # Through the descriptor: a unix address holds 107 bytes, and a runtime directory may be deep.
    return f"/proc/self/fd/{directory}/{name}"


class _Connected(Protocol):
    """A socket of the standard library or of trio."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def peer(connection: _Connected) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


# -- the asker's side ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Supervisor:
    """One that was found: its key, its process, and its answer (None: none in time)."""

    key: str
    pid: int
    status: dict[str, Any] | None


def keys(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the keys of all sockets that are there."""
    found: set[str] = set()
    for path in places(env):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found |= {entry.stem for entry in path.iterdir() if entry.suffix == ".sock"}
    return sorted(found)


def find(key: str, env: Mapping[str, str] = os.environ, *, ask: bool = True) -> Supervisor | None:
    """Return the supervisor of a mountpoint, with its status where `ask`; None where there is none."""
    with _connection(key, env) as connection:
        if connection is None:
            return None
        pid, uid = peer(connection)
        if uid not in (os.geteuid(), 0):
            return None
        return Supervisor(key, pid, _ask(connection) if ask else None)


def _ask(connection: socket.socket) -> dict[str, Any] | None:
    connection.settimeout(ANSWER)
    answer = b""
    try:
        connection.sendall(b'{"ask": "status"}\n')
        while not answer.endswith(b"\n") and len(answer) < _ANSWER_MAX:
            data = connection.recv(65536)
            if not data:
                return None
            answer += data
        found: dict[str, Any] = json.loads(answer)
    except (OSError, ValueError):
        return None
    return found


@contextlib.contextmanager
def _connection(key: str, env: Mapping[str, str]) -> Iterator[socket.socket | None]:
    with contextlib.ExitStack() as stack:
        for path in places(env):
            try:
                found = open_directory(path, create=False)
            except FileNotFoundError:
                continue
            stack.callback(os.close, found)
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(ANSWER)
            try:
                connection.connect(_address(found, f"{key}.sock"))
            except FileNotFoundError:
                continue
            except ConnectionRefusedError:
                _clear(found, key)
                continue
            except OSError:  # it is there, and so busy or stopped that it takes no connection
                continue
            yield connection
            return
        yield None


def _clear(directory: int, key: str) -> None:
    """Remove the files of a supervisor that is gone; one that is just starting has the lock."""
    lock = _lock(directory, f"{key}.lock")
    if lock is None:
        return
    for suffix in ("sock", "lock"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{key}.{suffix}", dir_fd=directory)
    os.close(lock)
