"""How a view starts, also where it cannot: one clear line, exit 1, and nothing mounted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromafuse.mounttable import parse
from chromafuse.view.mounting import explain
from chromafuse.view.process import deadline_under_kernel
from tests.support import reach
from tests.support.fake_hub import FakeHub
from tests.support.modes import LOAD_FAST, MODE
from tests.support.session import mounts_below
from tests.support.view_process import ViewProcess, mounted
from tests.support.waiting import wait_for

PAGES = {"a.md": b"first\n"}
NOBODY = "65534"
VIEW = (sys.executable, "-m", "chromafuse.view")


@pytest.fixture
def point(mount_root: Path) -> Path:
    """Give a mountpoint of one's own."""
    point = mount_root / "m"
    point.mkdir()
    return point


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """Give a hub of one page."""
    hub = FakeHub(PAGES)
    yield hub
    hub.die()


def failure(hub: FakeHub, point: Path, *options: str, program: tuple[str, ...] = VIEW) -> str:
    """Start a view that cannot mount; return its one line."""
    view = ViewProcess(point, *options, program=program)
    try:
        view.give(hub.connect())
        event = view.event()
        assert (event["event"], event["exit_code"]) == ("failed", 1)
        assert (view.wait(), view.said()) == (1, "")
        assert mounts_below(point) == []
        message = event["message"]
        assert isinstance(message, str)
        assert "\n" not in message
        return message
    finally:
        view.clean()


@pytest.mark.mount
def test_a_mountpoint_that_is_not_there(hub: FakeHub, point: Path) -> None:
    """A missing directory, or a file in its place, is named."""
    (point / "file").write_bytes(b"")
    assert [failure(hub, point / name) for name in ("absent", "file")] == [
        f"{point}/absent: cannot mount there: No such file or directory",
        f"{point}/file: cannot mount there: not a directory",
    ]


@pytest.mark.mount
def test_a_machine_without_the_device(hub: FakeHub, point: Path) -> None:
    """Without /dev/fuse the line says how to get it."""
    script = 'mount -t tmpfs none /dev && exec "$@"'
    program = ("unshare", "-m", "sh", "-c", script, "-", *VIEW)
    assert failure(hub, point, program=program) == (
        "there is no /dev/fuse: load the module (`modprobe fuse`), or start the container with"
        " `--device /dev/fuse --cap-add SYS_ADMIN`"
    )


def as_nobody(point: Path, node_mode: str, fuse_conf: str = "") -> tuple[str, ...]:
    """Return a program that runs a view as nobody, in a mount namespace with a /dev/fuse of that mode."""
    node, conf = point.parent / "fuse", point.parent / "fuse.conf"
    conf.write_text(fuse_conf, encoding="ascii")
    shutil.chown(point, int(NOBODY), int(NOBODY))
    script = (
        f"{reach.opened()} && mknod -m {node_mode} {node} c 10 229 && mount --bind {node} /dev/fuse"
        f' && mount --bind {conf} /etc/fuse.conf && exec "$@"'
    )
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    return ("unshare", "-m", "sh", "-c", script, "-", *user, *VIEW)


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="makes a device node for another user")


@pytest.mark.mount
@needs_root
def test_a_user_without_access_to_the_device(hub: FakeHub, point: Path) -> None:
    """A /dev/fuse that is root's alone: the line says so."""
    assert failure(hub, point, program=as_nobody(point, "0600")) == (
        "this user may not open /dev/fuse: run as root, or give access (`chmod 666 /dev/fuse`)"
    )


@pytest.mark.mount
@needs_root
def test_allow_other_needs_the_administrators_word(hub: FakeHub, point: Path) -> None:
    """Without `user_allow_other` a user cannot let others in."""
    message = failure(hub, point, "--allow-other", program=as_nobody(point, "0666"))
    assert message == "--allow-other needs a line `user_allow_other` in /etc/fuse.conf, or root"


@pytest.mark.mount
@needs_root
def test_a_mountpoint_that_is_not_the_users(hub: FakeHub, point: Path) -> None:
    """fusermount3 lets a user mount only where the user can write."""
    program = as_nobody(point, "0666")
    shutil.chown(point, 0, 0)
    assert failure(hub, point, program=program) == (
        f"{point}: a user can mount only on a directory that is theirs: choose one, or mount as root"
    )


@pytest.mark.mount
@needs_root
@pytest.mark.parametrize("options", [(), ("--allow-other",)], ids=["alone", "allow-other"])
def test_a_user_mounts_through_fusermount(
    hub: FakeHub, point: Path, options: tuple[str, ...]
) -> None:
    """A user who may open /dev/fuse mounts, reads, and unmounts, with the same options as root's mount."""
    view = ViewProcess(point, *options, program=as_nobody(point, "0666", "user_allow_other\n"))
    try:
        view.give(hub.connect())
        assert view.event() == {"event": "mounted", "mode": MODE}, view.said()
        inside = ("nsenter", "-m", "-t", str(view.process.pid))
        user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        look = ("sh", "-c", 'cat "$1/a.md"; stat -c %u:%A "$1/a.md"', "-", str(point))
        done = subprocess.run([*inside, *user, *look], capture_output=True, text=True, check=True)
        assert done.stdout == f"first\n{NOBODY}:-r--r--r--\n"
        table = Path(f"/proc/{view.process.pid}/mountinfo").read_text(encoding="utf-8")
        (line,) = [line for line in table.splitlines() if line.split(" ")[4] == str(point)]
        assert " ro,nosuid,nodev,noexec," in line
        assert view.terminate() == 0
        assert view.said() == ""
    finally:
        view.clean()


@pytest.mark.mount
def test_options_that_were_dropped_fail_the_mount(hub: FakeHub, point: Path) -> None:
    """What the kernel made is read back: a mount without `ro` is taken away again."""
    planted = (
        LOAD_FAST
        + "import chromafuse.view.mounting as mounting, chromafuse.view.process as process\n"
        "mounting.OPTIONS = mounting.OPTIONS - {'ro', 'noexec'}\n"
        "sys.exit(process.main(fast=loaded))\n"
    )
    message = failure(hub, point, program=(sys.executable, "-c", planted))
    assert message.startswith(f"{point}: mounted without noexec, ro, so unmounted again")


@pytest.mark.mount
def test_a_mountpoint_with_odd_letters(hub: FakeHub, mount_root: Path) -> None:
    """Spaces, line ends, backslashes and other alphabets in the mountpoint's own path."""
    with mounted(hub, mount_root / "a b\n\r\\c é") as view:
        assert os.listdir(view.mountpoint) == ["a.md"]
        assert view.terminate() == 0


@pytest.mark.mount
def test_a_mountpoint_through_a_symlink(hub: FakeHub, point: Path) -> None:
    """The mount is made, and found again, where the link leads."""
    link = point.with_name("link")
    link.symlink_to(point)
    with mounted(hub, link) as view:
        assert mounts_below(point) == [str(point)]
        assert view.terminate() == 0


@pytest.mark.parametrize("how", ["signal", "supervisor gone"])
def test_told_to_end_before_there_is_a_hub(point: Path, how: str) -> None:
    """A view that still waits for its tree ends without a mount, exit 0."""
    view = ViewProcess(point)
    try:
        if how == "signal":
            wait_for(lambda: catches_sigterm(view.process.pid), what="the signal handler")
            view.process.send_signal(signal.SIGTERM)
        else:
            view.close_control()
        assert (view.wait(), view.said()) == (0, "")
    finally:
        view.clean()


def catches_sigterm(pid: int) -> bool:
    """Say whether a process has a handler for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


def test_a_hub_of_another_version_is_no_mount(point: Path) -> None:
    """A tree that cannot be read fails the start with the reason."""
    hub = FakeHub(PAGES)
    hub.encoded = b"x" * len(hub.encoded)
    view = ViewProcess(point)
    try:
        view.give(hub.connect())
        assert view.event() == {
            "event": "failed",
            "message": "the hub's answer cannot be used: a snapshot whose length does not fit its head",
            "exit_code": 1,
        }
        assert view.wait() == 1
    finally:
        view.clean()
        hub.die()


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("fuse: device not found, try 'modprobe fuse' first\n", "there is no /dev/fuse: load"),
        ("fuse: failed to open /dev/fuse: Permission denied\n", "this user may not open /dev/fuse"),
        ("fuse: failed to exec fusermount3: No such file or directory\n", "fusermount3 is missing"),
        (
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in "
            "/etc/fuse.conf\n",
            "--allow-other needs a line",
        ),
        (
            "fusermount3: too many FUSE filesystems mounted; mount_max=N can be set in "
            "/etc/fuse.conf\n",
            "there are too many FUSE mounts",
        ),
        ("fusermount3: user has no write access to mountpoint /p\n", "/p: a user can mount only"),
        ("fusermount3: mount failed: Permission denied\n", "/p: the system refuses a FUSE mount"),
        ("fuse: mount failed: Operation not permitted\n", "/p: the system refuses a FUSE mount"),
        ("fusermount3: bad mount point /p: No such file\n", "/p: cannot mount there"),
        ("something new\nand more\n", "/p: cannot mount: and more"),
        ("", "/p: cannot mount: no reason given"),
    ],
)
def test_every_refusal_has_its_line(said: str, line: str) -> None:
    """What libfuse and fusermount3 print becomes one line that begins with the matter."""
    found = explain(said, "/p")
    assert found.startswith(line)
    assert "\n" not in found


def test_a_line_of_mountinfo() -> None:
    """Escapes are undone; options of the mount and of the superblock come together."""
    line = (
        r"36 35 0:51 / /mnt/a\040b\134 ro,nosuid shared:1 - fuse.chromafuse chromafuse ro,user_id=0"
    )
    (mount,) = parse(line.encode() + b"\n")
    assert (mount.path, mount.minor, mount.fstype) == ("/mnt/a b\\", 51, "fuse.chromafuse")
    assert mount.options | mount.super_options == {"ro", "nosuid", "user_id=0"}


@pytest.mark.parametrize(
    ("files", "deadline"),
    [
        ({}, 10.0),
        ({"default_request_timeout": "0\n", "max_request_timeout": "0\n"}, 10.0),
        ({"default_request_timeout": "60\n"}, 10.0),
        ({"default_request_timeout": "60\n", "max_request_timeout": "15\n"}, 7.5),
    ],
)
def test_the_deadline_stays_under_the_kernels(
    tmp_path: Path, files: dict[str, str], deadline: float
) -> None:
    """Where the kernel aborts a mount with an old request, reads give up well before."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    assert deadline_under_kernel(10.0, str(tmp_path)) == deadline


def test_a_view_loads_no_codec() -> None:
    """The process of a mount stays small: no JSON or compression library of the hub's side."""
    code = "import sys, chromafuse.view.process; print({'orjson', 'zstandard'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
