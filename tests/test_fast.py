"""Fast mode: which requests reach a mount, counted in both modes, and that answers are the same in both.

The mounts are made by a small program of pyfuse3 and fast mode alone (tests/support/memory_mount.py).
The kernel may take cached pages back at any time, so "no request" is asked for in one of a few walks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chromafuse.view import fast
from tests.support.session import unmount_below
from tests.support.waiting import wait_for

CHECKOUT = Path(__file__).resolve().parents[1]
DIRECTORIES, FILES, SIZE = 6, 40, 3000
SITE = {"many": {f"d{number}": [FILES, SIZE] for number in range(DIRECTORIES)}}
PAGES = DIRECTORIES * FILES
WALKS = {
    "find": ("find", "."),
    "ls": ("ls", "-lR", "."),
    "grep": ("grep", "-r", "no such word", "."),
    "rg": ("rg", "no such word", "."),
    "tar": ("sh", "-c", "tar -c . | cat"),
}
NO_HANDLES = {"open", "release", "opendir", "releasedir"}


class Mount:
    """A mount by the program, and questions to it."""

    def __init__(self, point: Path, plan: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.point = point
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.memory_mount", str(point)],
            cwd=CHECKOUT,
            env={**os.environ, fast.VARIABLE: "1", **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.tell(plan)

    def tell(self, line: Mapping[str, Any]) -> None:
        """Write one line to the program."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def ask(self, ask: str, **more: Any) -> dict[str, Any]:
        """Ask the program and return what it answers."""
        self.tell({"ask": ask, **more})
        return self.line()

    def line(self) -> dict[str, Any]:
        """Return the program's next line."""
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def walk(self, name: str) -> dict[str, int]:
        """Let a tool walk the mount; return the requests that it made."""
        self.ask("counters")
        done = subprocess.run(WALKS[name], cwd=self.point, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (int(name in ("grep", "rg")), b"")
        return self.ask("counters")

    def read(self, path: str) -> bytes:
        """Return a file's bytes, as a reader gets them."""
        return (self.point / path).read_bytes()


@contextlib.contextmanager
def mounted(point: Path, plan: Mapping[str, Any], **env: str) -> Iterator[Mount]:
    """Mount a plan; leave neither process nor mount, whatever happened."""
    mount = Mount(point, plan, env)
    try:
        assert mount.line() == {"state": "mounted"}
        yield mount
    finally:
        assert mount.process.stdin is not None
        assert mount.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            mount.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            mount.process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(mount.process.pid, signal.SIGKILL)
        mount.process.wait()
        mount.process.stdout.close()
        unmount_below(point)


@pytest.fixture
def point(mount_root: Path) -> Path:
    """Give a mountpoint."""
    point = mount_root / "m"
    point.mkdir()
    return point


@pytest.fixture(params=["fast", "stock"])
def mode(request: pytest.FixtureRequest) -> str:
    """Run a test in both modes."""
    return str(request.param)


@pytest.fixture
def mount(point: Path, mode: str) -> Callable[..., contextlib.AbstractContextManager[Mount]]:
    """Give what mounts a plan in the mode of the test."""
    return lambda plan: mounted(point, plan, CHROMAFUSE_FAST="1" if mode == "fast" else "0")


# -- loading


def test_load_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched off, too late, not built, damaged: no exception, and a reason for each."""
    assert fast.load({"CHROMAFUSE_FAST": "0"}) == fast.Fast(None, "CHROMAFUSE_FAST=0")
    monkeypatch.setitem(sys.modules, "pyfuse3", sys)
    assert fast.load({}) == fast.Fast(None, "pyfuse3 was imported before it")
    monkeypatch.delitem(sys.modules, "pyfuse3")
    monkeypatch.setattr(fast, "_HERE", str(tmp_path))
    assert fast.load({}) == fast.Fast(None, fast.NOT_BUILT)
    (tmp_path / "_fast.abi3.so").write_bytes(b"\x7fELF, not")
    damaged = fast.load({})
    assert damaged.library is None
    assert damaged.why_not.startswith("the C part does not load: ")
    assert (damaged.mode, damaged.why_stock()) == ("stock", damaged.why_not)


@pytest.mark.mount
def test_the_mode_is_known_when_the_session_begins(point: Path) -> None:
    """Fast where nothing speaks against it, in the handler of init already; stock with a reason else."""
    found = []
    for env in ({}, {"CHROMAFUSE_FAST": "0"}, {"GIVE_UP": "1"}):
        with mounted(point, {}, **env) as mount:
            found.append(mount.ask("mode"))
    assert found == [
        {"mode": "fast", "why": "", "init": "fast"},
        {"mode": "stock", "why": "CHROMAFUSE_FAST=0", "init": "stock"},
        {"mode": "stock", "why": "a test says so", "init": "stock"},
    ]


@pytest.mark.mount
def test_a_mode_that_was_given_up_asks_for_handles(point: Path) -> None:
    """A session after `give_up` is a stock one for the kernel too, with the C part still loaded."""
    with mounted(point, SITE, GIVE_UP="1") as mount:
        assert mount.read("d0/00000.md")
        assert mount.ask("counters")["open"] == 1  # the release may come later


# -- requests


@pytest.mark.mount
@pytest.mark.parametrize("tool", WALKS)
def test_a_warm_walk_sends_nothing_in_fast_mode(point: Path, tool: str) -> None:
    """The second walk of every tool is answered by the kernel alone."""
    with mounted(point, SITE) as mount:
        mount.walk(tool)
        assert {} in [mount.walk(tool) for _ in range(4)]


@pytest.mark.mount
def test_a_cold_walk_reads_every_file_once(mount: Callable[..., Any], mode: str) -> None:
    """A first grep lists and reads, once each; in stock mode it opens and releases besides."""
    with mount(SITE) as here:
        requests = here.walk("grep")
    assert requests.pop("readdir") > DIRECTORIES  # how many a listing takes is the kernel's choice
    asked_once = {"getattr": 1, "flush": 1}
    handles = {name: requests.pop(name) for name in NO_HANDLES & requests.keys()}
    assert requests == asked_once | {"read": PAGES}
    if mode == "fast":
        assert handles == {}
    else:  # releases may come later
        assert handles["open"] == PAGES
        assert handles["opendir"] >= DIRECTORIES + 1


@pytest.mark.mount
def test_a_warm_walk_in_stock_mode_reads_nothing(point: Path) -> None:
    """Stock mode keeps the pages too; what it cannot keep the kernel from is opening."""
    with mounted(point, SITE, CHROMAFUSE_FAST="0") as mount:
        mount.walk("grep")
        walks = [mount.walk("grep") for _ in range(4)]
    assert any(walk.keys() <= NO_HANDLES | {"readdir"} for walk in walks)
    assert all(walk["open"] == PAGES for walk in walks)


@pytest.mark.mount
def test_pushed_pages_are_not_read(mount: Callable[..., Any]) -> None:
    """Pages pushed from a thread need no read; one that the kernel has not looked up cannot be pushed."""
    with mount(SITE) as here:
        assert here.ask("push", below="d0") == {"pushed": 0, "unknown": FILES}
        here.walk("find")
        for number in range(DIRECTORIES):
            assert here.ask("push", below=f"d{number}") == {"pushed": FILES, "unknown": 0}
        assert here.walk("grep").get("read", 0) < FILES  # none, but for what the kernel took back
        assert here.read("d3/00007.md") == b"d3/00007.md\n".ljust(SIZE, b"x")


@pytest.mark.mount
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts the kernel's control file system")
def test_the_kernel_may_ask_for_more_at_a_time(point: Path, tmp_path: Path) -> None:
    """Fast mode raises the limits on requests in the background, below which readahead works."""
    with mounted(point, {}):
        minor = os.minor(point.stat().st_dev)
        script = (
            'mount -t fusectl none "$1" && cd "$1/$2" && cat max_background congestion_threshold'
        )
        command = ["unshare", "-m", "sh", "-c", script, "-", str(tmp_path), str(minor)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["128", "96"]


# -- answers


@pytest.mark.mount
def test_reads_give_the_bytes_of_their_file(mount: Callable[..., Any]) -> None:
    """Whole, in pieces, at the ends and through a mapping, every file has its own bytes."""
    texts = {"a.md": "a" * 4097, "b.md": "b" * 131_073, "empty.md": "", "sub/a.md": "other\n"}
    with mount({"files": texts}) as here:
        assert {name: here.read(name).decode() for name in texts} == texts
        with open(here.point / "b.md", "rb") as file:
            assert os.pread(file.fileno(), 10, 131_070) == b"bbb"
            assert os.pread(file.fileno(), 10, 131_073) == b""
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                assert mapped[:].decode() == texts["b.md"]


@pytest.mark.mount
@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_a_failed_read_fails_the_reader_alone(mount: Callable[..., Any], number: int) -> None:
    """An error is the reader's error; nothing of it stays, so the next read gets the bytes."""
    with mount({"files": {"a.md": "right\n", "b.md": "right\n"}}) as here:
        here.ask("fail", path="a.md", errno=number)
        for _ in range(2):
            with pytest.raises(OSError) as caught:
                here.read("a.md")
            assert caught.value.errno == number
        assert here.read("b.md") == b"right\n"
        here.ask("fail", path="a.md", errno=0)
        assert here.read("a.md") == b"right\n"


@pytest.mark.mount
def test_a_page_that_fails_under_a_mapping_is_a_bus_error(mount: Callable[..., Any]) -> None:
    """Who maps a file (rg on one file) has no call that could fail: SIGBUS, in both modes."""
    look = (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[0]\n"
    )
    with mount({"files": {"a.md": "x"}}) as here:
        here.ask("fail", path="a.md", errno=errno.EIO)
        done = subprocess.run([sys.executable, "-c", look, here.point / "a.md"], check=False)
        assert done.returncode == -signal.SIGBUS
        here.ask("fail", path="a.md", errno=0)
        subprocess.run([sys.executable, "-c", look, here.point / "a.md"], check=True)


@pytest.mark.mount
def test_a_large_directory_is_listed_whole(mount: Callable[..., Any]) -> None:
    """10,000 names come in order and once, also for two who list at the same time."""
    names = [f"{number:05}.md" for number in range(10_000)]
    with mount({"many": {"d": [len(names), 10]}}) as here:
        with os.scandir(here.point / "d") as one, os.scandir(here.point / "d") as other:
            assert [(a.name, b.name) for a, b in zip(one, other, strict=True)] == list(
                zip(names, names, strict=True)
            )
        assert os.listdir(here.point / "d") == names


@pytest.mark.mount
def test_an_inode_is_forgotten_at_the_last_close(mount: Callable[..., Any]) -> None:
    """An open file keeps its inode, with no handle as with one, and can be read to its end."""
    with mount({"files": {"a.md": "text\n"}}) as here:
        with open(here.point / "a.md", "rb", buffering=0) as file:
            here.ask("invalidate", name="a.md")
            assert here.ask("forgotten") == {"forgotten": 0}
            assert file.read() == b"text\n"
        wait_for(lambda: here.ask("forgotten")["forgotten"], what="the kernel forgets the inode")


@pytest.mark.mount
def test_a_killed_program_leaves_a_dead_mount(mount: Callable[..., Any]) -> None:
    """What was not read yet is ENOTCONN; statvfs, which is never cached, says so at once."""
    with mount({"files": {"a.md": "text\n", "b.md": "text\n"}}) as here:
        here.walk("find")
        here.process.kill()
        here.process.wait()
        for attempt in (os.statvfs, lambda point: (point / "a.md").read_bytes()):
            with pytest.raises(OSError) as caught:
                attempt(here.point)
            assert caught.value.errno == errno.ENOTCONN


# -- writes


def flags(*more: int) -> Callable[[Path], None]:
    """Return an attempt that opens with flags and writes."""

    def attempt(path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | sum(more))
        try:
            os.write(descriptor, b"Z")
        finally:
            os.close(descriptor)

    return attempt


def mapping(path: Path) -> None:
    """Write through a shared mapping."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = ord("Z")
        mapped.flush()


def allocating(path: Path) -> None:
    """Ask for more space."""
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 1_000_000)


ATTEMPTS: dict[str, Callable[[Path], None]] = {
    "write": flags(),
    "append": flags(os.O_APPEND),
    "write past the cache": flags(os.O_DIRECT),
    "open and truncate": flags(os.O_TRUNC),
    "open for reading and truncate": lambda path: os.close(os.open(path, os.O_TRUNC)),
    "truncate": lambda path: os.truncate(path, 1),
    "map": mapping,
    "allocate": allocating,
}


def outcome(attempt: Callable[[Path], None], path: Path) -> str:
    """Return the name of the errno that an attempt ends with."""
    try:
        attempt(path)
    except OSError as exc:
        return errno.errorcode[exc.errno or 0]
    return "OK"


@pytest.mark.mount
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can remount")
def test_root_who_remounted_cannot_change_a_page(mount: Callable[..., Any], mode: str) -> None:
    """Opening for writing succeeds in fast mode; writing never does, and readers see the old bytes."""
    text = b"text\n" * 3000
    with mount({"files": {f"{name}.md": text.decode() for name in ATTEMPTS}}) as here:
        remount = ["mount", "-i", "-o", "remount,rw", str(here.point)]
        # With the kernel's newer calls (util-linux 2.39 on) FUSE takes no remount.
        subprocess.run(remount, env={**os.environ, "LIBMOUNT_FORCE_MOUNT2": "always"}, check=True)
        found = {}
        for name, attempt in ATTEMPTS.items():
            assert here.read(f"{name}.md") == text
            found[name] = outcome(attempt, here.point / f"{name}.md")
        opened = outcome(lambda path: os.close(os.open(path, os.O_WRONLY)), here.point / "map.md")
        for name in ATTEMPTS:
            wait_for(
                lambda name=name: here.read(f"{name}.md") == text, what=f"{name} left no trace"
            )
    assert found == dict.fromkeys(ATTEMPTS, "EROFS")
    assert opened == ("OK" if mode == "fast" else "EROFS")


# -- the self-test


def test_the_self_test_knows_wrong_answers(tmp_path: Path) -> None:
    """Other bytes, shorter ones, a name that is not listed, no answer: each has its own line."""
    right = {"README.md": b"read me\n", "status": b"mode: fast\n"}

    def verdict(files: Mapping[str, bytes]) -> str:
        for path in tmp_path.iterdir():
            path.unlink()
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        return fast.self_test(str(tmp_path), right)

    assert verdict(right) == ""
    assert verdict(right | {"status": right["README.md"]}) == "status came back with other bytes"
    assert verdict(right | {"status": b"mode"}) == "status came back with other bytes"
    assert verdict({"status": right["status"]}) == f"{tmp_path} does not list README.md"
    absent = str(tmp_path / "absent")
    assert fast.self_test(absent, right) == f"{absent}: No such file or directory"


@pytest.mark.mount
def test_the_self_test_takes_the_questions_that_come_once(mount: Callable[..., Any]) -> None:
    """It passes in both modes, and after it no reader sees a flush answered for the first time."""
    files = {"README.md": "read me\n", "status": "ok\n"}
    with mount({"files": {f"c/{name}": text for name, text in files.items()} | {"a": "x"}}) as here:
        assert here.ask("self-test", directory="c", files=files) == {"found": ""}
        assert here.ask("counters")["flush"] == 1
        assert here.read("a") == b"x"
        assert "flush" not in here.ask("counters")
