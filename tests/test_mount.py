"""Where and how one mounts: any path, any kind of daemon's log, a trigger of the automounter beneath."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.mounts import foreground, layers_at, small_store  # noqa: F401
from tests.support.program import PROGRAM, chromafuse, environment, mounted, ok
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.chroma]
FUSE = ["fuse.chromafuse"]


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a\nb",
        "é",
        "a\\040b",
        "-o",
        "$(x)'\"",
        pytest.param(os.fsdecode(b"\xff"), id="no UTF-8"),
    ],
)
def test_any_name_can_be_a_mountpoint(
    tmp_path: Path, store: Path, mount_root: Path, name: str
) -> None:
    """Mounting, status and unmounting work by whatever bytes a path has; every line stays one line."""
    point = mount_root / name
    point.mkdir()
    done = chromafuse(tmp_path, "mount", store, point, "--daemon", "--log-file", tmp_path / "log")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1), done.stderr
    assert (point / "open.md").read_bytes() == b"for everyone\n"
    status = json.loads(ok(chromafuse(tmp_path, "status", point, "--json")))
    assert (status["mountpoint"], status["state"]) == (str(point), "live")
    ok(chromafuse(tmp_path, "umount", point))
    assert layers_at(point) == []


@pytest.mark.parametrize("how", ["docs", "./docs/", "../{name}/docs", "link", "link/"])
def test_a_mountpoint_has_many_names(
    tmp_path: Path, store: Path, mount_root: Path, how: str
) -> None:
    """A relative path, a trailing slash and a link to a directory all mean the directory itself."""
    (mount_root / "docs").mkdir()
    (mount_root / "link").symlink_to("docs")
    word = how.format(name=mount_root.name)
    for command in (["mount", str(store), word, "--daemon", "--log-file", "log"], ["umount", word]):
        subprocess.run(
            [*PROGRAM, *command], cwd=mount_root, env=environment(tmp_path), check=True, capture_output=True
        )  # fmt: skip
        assert layers_at(mount_root / "docs") == (FUSE if command[0] == "mount" else [])
    assert (mount_root / "link").is_symlink()


@pytest.mark.parametrize("words", ["mount {store}", "umount", "status", "export {store}"])
def test_an_empty_path_is_an_error(tmp_path: Path, store: Path, words: str) -> None:
    """A path that is empty, as by an unset shell variable, never means the current directory."""
    done = chromafuse(tmp_path, *words.format(store=store).split(), "")
    assert (done.returncode, done.stdout) == (2, "")
    what = "DIR" if words.startswith("export") else "MOUNTPOINT"
    assert done.stderr.startswith(f"chromafuse: {what} is empty; name a directory")


@contextmanager
def trigger(point: Path) -> Iterator[int]:
    """Put a trigger of the automounter on a directory; give the pipe on which it asks for a mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    reading, writing = os.pipe()
    # Another process group than ours is its automounter's: ours is asked to wait.
    options = f"fd={writing},pgrp=1,minproto=5,maxproto=5,direct".encode()
    if libc.mount(b"test", os.fsencode(point), b"autofs", 0, options):
        pytest.skip(f"no autofs here: {os.strerror(ctypes.get_errno())}")
    try:
        yield reading
    finally:
        libc.umount2(os.fsencode(point), 2)
        os.close(reading)
        os.close(writing)


def test_a_trigger_of_the_automounter_is_mounted_upon(
    tmp_path: Path, store: Path, mount_root: Path
) -> None:
    """An autofs trigger is no mount: we go over it, without setting it off."""
    point = mount_root / "docs"
    point.mkdir()
    with trigger(point) as asked:
        with mounted(tmp_path, store, point):
            assert layers_at(point) == ["autofs", *FUSE]
            assert (point / "open.md").read_bytes() == b"for everyone\n"
            assert chromafuse(tmp_path, "mount", store, point).returncode == 1
        assert layers_at(point) == ["autofs"]
        assert select.select([asked], [], [], 0)[0] == []


def test_a_bind_of_the_mount_is_served(tmp_path: Path, store: Path, mount_root: Path) -> None:
    """A bind mount of ours elsewhere works, and unmounting the first leaves it to its user."""
    bound = mount_root / "bound"
    bound.mkdir()
    with foreground(tmp_path, store, mount_root / "docs") as running:
        subprocess.run(["mount", "--bind", running.point, bound], check=True)
        assert (bound / "open.md").read_bytes() == b"for everyone\n"
        subprocess.run(["umount", bound], check=True)
        ok(chromafuse(tmp_path, "umount", running.point))
        assert running.wait()[0] == 0


@pytest.mark.parametrize("kept_by", ["bind", "namespace"])
def test_umount_ends_a_mount_that_a_sandbox_holds(
    tmp_path: Path, store: Path, mount_root: Path, kept_by: str
) -> None:
    """A bind, or another mount namespace, keeps the file system, not the mount's processes: umount ends them."""
    with ExitStack() as cleanup, foreground(tmp_path, store, mount_root / "docs") as running:
        if kept_by == "bind":
            (bound := mount_root / "bound").mkdir()
            subprocess.run(["mount", "--bind", running.point, bound], check=True)
            cleanup.callback(lambda: subprocess.run(["umount", bound], check=True))
        else:
            sandbox = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", "echo; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            cleanup.enter_context(sandbox)
            cleanup.callback(sandbox.kill)
            assert sandbox.stdout is not None
            sandbox.stdout.readline()
        assert ok(chromafuse(tmp_path, "umount", running.point)) == ""
        assert running.wait()[0] == 0


# -- the daemon's log

DAEMON = (
    "import sys\nfrom chromafuse import cli, daemon\n"
    "daemon.SYSLOG = sys.argv[1]\nsys.exit(cli.main(sys.argv[2:]))"
)


def daemon_with_syslog(home: Path, syslog: Path, store: Path, point: Path) -> str:
    """Mount with --daemon and no log file; return what the command wrote."""
    point.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", DAEMON, str(syslog), "mount", str(store), str(point), "--daemon"],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout + done.stderr


def test_a_daemon_logs_to_syslog(tmp_path: Path, store: Path, mount_root: Path) -> None:
    """Without --log-file, the daemon and its children write to the system's log."""
    point, said = mount_root / "docs", []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(tmp_path / "syslog"))
        syslog.settimeout(30)
        line = f"{point} is mounted: 2 pages for anonymous, generation 1"
        try:
            assert daemon_with_syslog(tmp_path, tmp_path / "syslog", store, point) == (
                f"chromafuse: {line}\n"
            )
            status = json.loads(ok(chromafuse(tmp_path, "status", point, "--json")))
            os.kill(status["hub_pid"], signal.SIGABRT)
            for _ in range(2):
                said.append(syslog.recv(4096).rstrip(b"\0").decode())
        finally:
            ok(chromafuse(tmp_path, "umount", point))
    start = f"chromafuse[{status['supervisor_pid']}]: "
    assert [text.partition(">")[2] for text in said] == [
        f"{start}INFO: {line}",
        f"{start}WARNING: {point}: the hub died (signal 6); it is started again",
    ]


def test_without_syslog_the_log_is_beside_the_socket(
    tmp_path: Path, store: Path, mount_root: Path
) -> None:
    """Where there is no system log, as in a container, the daemon's log is a file in the runtime directory."""
    point = mount_root / "docs"
    try:
        daemon_with_syslog(tmp_path, tmp_path / "none", store, point)
        (log,) = (tmp_path / "run" / "chromafuse").glob("*.log")
        assert f"{point} is mounted" in log.read_text()
    finally:
        ok(chromafuse(tmp_path, "umount", point))


def test_ctrl_c_at_a_waiting_daemon_ends_both(
    tmp_path: Path, store: Path, mount_root: Path
) -> None:
    """Who waits for a daemon and gives up has none: nothing is mounted and nothing runs."""
    point = mount_root / "docs"
    point.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [*PROGRAM, "mount", url, str(point), "--daemon", "--log-file", tmp_path / "log"]
        waiting = subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE)
        silent.accept()[0].close()
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=30)
    assert (waiting.returncode, said) == (130, b"")
    wait_for(
        lambda: not list((tmp_path / "run" / "chromafuse").iterdir()), what="the daemon has ended"
    )
    assert layers_at(point) == []
