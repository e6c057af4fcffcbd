"""A mountpoint before a mount and at its end: may we mount here, and taking a mount away.

Everything that can be seen beforehand is refused here, before a process is started: one line, the way out,
nothing half mounted. A dead mount of ours is cleared and gone over; a live one is never mounted upon.

Concurrency: blocking calls. `prepare` holds the mountpoint's lock from its first look on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping

from . import mountinfo, runtime
from .errors import UsageError, UserError
from .mountinfo import Health, Mount
from .text import printable, quoted

DEVICE = "/dev/fuse"
GONE = 15.0  # s that a supervisor has to end after its mount is gone
UNTOLD = 1.0  # s of these that it has to see by itself that the mount is gone
_POLL = 0.02  # s


def locate(path: str) -> str:
    """Return the mountpoint that `path` means, absolute and without symbolic links. Raises UserError."""
    if not path:  # a shell variable that is not set; it must not mean the current directory
        raise UsageError("MOUNTPOINT is empty; name a directory")
    try:
        return mountinfo.resolve(path)
    except OSError as exc:
        raise UserError(f"cannot look at {printable(path)}: {exc.strerror}") from exc


def prepare(path: str, env: Mapping[str, str] = os.environ) -> runtime.Claim:
    """Claim the mountpoint `path`, as `locate` gives it, and see that a mount can go there. Raises UserError."""
    try:
        claim = runtime.Claim.take(path, env)
    except runtime.Claimed:
        _refuse_ours(
            path, _top(path), mountinfo.probe(path)
        )  # says more, where it is mounted by now
        raise
    try:
        _require_free(path)
        claim.held += _lock_directory(path)
        _require_device()
    except BaseException:
        claim.release()
        raise
    return claim


def _require_free(path: str) -> None:
    top = _top(path)
    if top is not None and top.is_ours:
        _refuse_ours(path, top, mountinfo.probe(path))
        clear(path)
        top = _top(path)
    shown = printable(path)
    if top is not None and top.fstype != "autofs":
        raise UserError(
            f"{shown}: a file system is mounted there already ({top.fstype}); choose another mountpoint"
        )
    _require_empty_directory(path, shown, trigger=top is not None)


def _refuse_ours(path: str, top: Mount | None, health: Health) -> None:
    """Raise UserError for a mount of ours that is not dead."""
    if top is None or not top.is_ours or health is Health.DEAD:
        return
    what = "already" if health is Health.LIVE else "that does not answer"
    shown = printable(path)
    raise UserError(
        f"{shown} is a mount of chromafuse {what}; `chromafuse umount {quoted(path)}` ends it"
    )


def _top(path: str) -> Mount | None:
    found = mountinfo.layers(path)
    return found[-1] if found and path != "/" else None


def _require_empty_directory(path: str, shown: str, *, trigger: bool) -> None:
    try:
        # stat does not set off an automount, opening the directory would: and then wait for ourselves.
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise UserError(f"{shown} is not a directory; choose an empty directory")
        if trigger:
            return
        with os.scandir(path) as entries:
            if next(entries, None) is not None:
                raise UserError(
                    f"{shown} is not empty; choose an empty directory, a mount would hide what is in it"
                )
    except FileNotFoundError:
        raise UserError(
            f"there is no directory {shown}; make it: mkdir -p {quoted(path)}"
        ) from None
    except OSError as exc:
        raise UserError(f"cannot look at the mountpoint {shown}: {exc.strerror}") from exc


def _lock_directory(path: str) -> list[int]:
    """Lock the directory itself: other users, and other runtime directories, have other lock files."""
    if _top(path) is not None:
        return []  # an autofs trigger
    found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(found)
        raise UserError(
            f"another chromafuse is mounting on {printable(path)}; see `chromafuse status`"
        ) from None
    except OSError:  # a file system without locks
        os.close(found)
        return []
    return [found]


def _require_device() -> None:
    if not os.path.exists(DEVICE):
        raise UserError(
            f"there is no {DEVICE}; load the kernel module (modprobe fuse), or give the container the device "
            f"(--device {DEVICE})"
        )
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        raise UserError("fusermount3 is missing; install the package fuse3")


# -- taking a mount away -------------------------------------------------------------------------------


def clear(path: str) -> None:
    """Take away every dead layer of ours at `path`. Raises UserError where that is not allowed."""
    while (top := _top(path)) is not None and top.is_ours:
        if mountinfo.probe(path) is not Health.DEAD:
            return
        _unmount(path, lazy=True)


def remove(path: str, env: Mapping[str, str] = os.environ) -> None:
    """Unmount what is ours at `path`, and return when the mount and its supervisor are gone.

    Raises UserError where nothing of ours is mounted, it is in use, or that is not allowed.
    """
    top = _top(path)
    if top is None or not top.is_ours:
        what = f"a mount of {top.fstype}, not of chromafuse" if top else "not mounted"
        raise UserError(f"{printable(path)} is {what}; `chromafuse status` lists the mounts")
    supervisor = runtime.find(runtime.key_of(path), env, ask=False)
    with _handle(supervisor) as process:
        health = mountinfo.probe(path)
        if health is Health.LIVE:
            _unmount(path, lazy=False)
        elif health is Health.HUNG:
            _break(path, top, supervisor)
        clear(path)
        ended = process is None or _see_out(process)
    if supervisor is not None and not ended:
        raise UserError(
            f"{printable(path)} is unmounted, but its supervisor (process {supervisor.pid}) has not ended "
            f"within {GONE:g} s; see its log"
        )
    _wait(lambda: not mountinfo.is_mounted(top), GONE)


def _break(path: str, top: Mount, supervisor: runtime.Supervisor | None) -> None:
    """End a mount that does not answer: by its supervisor, else by aborting its connection."""
    if supervisor is not None:
        with contextlib.suppress(OSError):
            os.kill(supervisor.pid, signal.SIGTERM)
        if _wait(lambda: not mountinfo.is_mounted(top), GONE):
            return
    mountinfo.abort(top)
    if mountinfo.is_mounted(top):
        _unmount(path, lazy=True)


def _unmount(path: str, *, lazy: bool) -> None:
    shown = printable(path)
    try:
        mountinfo.unmount(path, lazy=lazy)
    except OSError as exc:
        if exc.errno == errno.EBUSY:
            raise UserError(
                f"{shown} is in use; end what uses it (`fuser -vm {quoted(path)}` lists it), or detach it with "
                f"`umount -l {quoted(path)}`"
            ) from exc
        raise UserError(
            f"cannot unmount {shown}: {exc.strerror}; only who mounted it and root may"
        ) from exc


@contextlib.contextmanager
def _handle(supervisor: runtime.Supervisor | None) -> Iterator[int | None]:
    """Give a descriptor of the process; None where it is gone, or of another pid namespace."""
    if supervisor is None:
        yield None
        return
    try:
        process = os.pidfd_open(supervisor.pid)
    except OSError:
        yield None
        return
    try:
        yield process
    finally:
        os.close(process)


def _see_out(process: int) -> bool:
    """Wait for the end of a supervisor whose mount is gone; say whether it came.

    A bind mount, or a sandbox's mount namespace, may hold the same file system: its view then learns nothing
    of an unmount here, and is told to end.
    """
    if _has_ended(process, UNTOLD):
        return True
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(process, signal.SIGTERM)
    return _has_ended(process, GONE - UNTOLD)


def _has_ended(process: int, timeout: float) -> bool:
    # A poll object: select() knows no descriptor over 1023.
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(timeout * 1000))


def _wait(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True
