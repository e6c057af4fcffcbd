"""Real mounts by a real view process over a scripted hub: what tools see, outages, the end of a mount."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.fake_hub import MTIME, FakeHub
from tests.support.modes import LOAD_FAST, MODE
from tests.support.session import mounts_below
from tests.support.view_process import ViewProcess, mounted
from tests.support.waiting import wait_for

pytestmark = pytest.mark.mount

BIG = random.Random(1).randbytes(5_000_001)
MANY = 10_000
SITE: dict[str, bytes] = {
    "index.md": b"# Home\r\n\xef\xbb\xbfno end",
    "api/auth.md": b"a" * 4095,
    "api/page.md": b"b" * 4096,
    "api/users.md": b"c" * 4097,
    "api/users/list.md": b"list\n",
    "big.bin": BIG,
    "empty.md": b"",
    "guides/Größe & Maß.md": "Maß\n".encode(),
    "guides/日本語/頁 一.md": "頁\n".encode(),
    "guides/" + "n" * 255: b"long name\n",
    "nul.txt": b"a\0b\n",
    **{f"many/{i:05}.md": b"" for i in range(MANY)},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewProcess]:
    """Mount SITE once for the tests that only look."""
    point = tmp_path_factory.mktemp("site") / "m"
    with mounted(FakeHub(SITE), point) as view:
        yield view


@pytest.fixture
def point(mount_root: Path) -> Path:
    """Give a mountpoint of one's own."""
    point = mount_root / "m"
    point.mkdir()
    return point


PAGES = {"a.md": b"first\n", "b.md": b"second\n", "c.md": b"third\n"}


def failure_of(path: Path) -> str:
    """Return the name of the errno that reading a page ends with."""
    with pytest.raises(OSError, match="Errno") as caught:
        path.read_bytes()
    assert caught.value.errno is not None
    return errno.errorcode[caught.value.errno]


def fresh_failure_of(path: Path) -> str:
    """Return the errno that `cat` in a process of its own reports."""
    done = subprocess.run(["cat", path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    return done.stderr.strip().rpartition(": ")[2]


# -- what tools see


def test_the_tree_and_every_byte_are_there(site: ViewProcess) -> None:
    """A walk finds exactly the pages, and reading gives exactly their bytes."""
    found = {
        str(path.relative_to(site.mountpoint)): path.read_bytes()
        for path in site.mountpoint.rglob("*")
        if path.is_file()
    }
    assert found == SITE


def test_sizes_and_times_are_exact(site: ViewProcess) -> None:
    """`find -printf` shows size, blocks, links, mode and time of every page as they are."""
    done = subprocess.run(
        ["find", ".", "-type", "f", "-printf", "%P\t%s\t%b\t%n\t%m\t%T@\n"],
        cwd=site.mountpoint,
        capture_output=True,
        text=True,
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
        check=True,
    )
    expected = []
    for path, data in SITE.items():
        ns = MTIME + len(path)
        time_text = f"{ns // 10**9}.{ns % 10**9:09}0"
        blocks = -(-len(data) // 512)
        expected.append(f"{path}\t{len(data)}\t{blocks}\t1\t444\t{time_text}")
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_a_large_directory_is_listed_whole(site: ViewProcess) -> None:
    """Ten thousand names, once each, in order, with the dots; the view answers in linear time."""
    many = site.mountpoint / "many"
    with os.scandir(many) as entries:
        assert [entry.name for entry in entries] == [f"{i:05}.md" for i in range(MANY)]
    listed = subprocess.run(["ls", "-fa", many], capture_output=True, text=True, check=True)
    assert listed.stdout.splitlines()[:3] == [".", "..", "00000.md"]


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 131072])
def test_reads_around_the_end(site: ViewProcess, size: int) -> None:
    """Reads of any size that touch the end of a page give what is left, and then nothing."""
    for name in ("big.bin", "api/auth.md", "api/page.md", "api/users.md", "empty.md"):
        data = SITE[name]
        descriptor = os.open(site.mountpoint / name, os.O_RDONLY)
        try:
            for offset in {0, max(0, len(data) - size), max(0, len(data) - 1), len(data)}:
                assert os.pread(descriptor, size, offset) == data[offset : offset + size]
            assert os.pread(descriptor, size, len(data) + 5000) == b""
        finally:
            os.close(descriptor)


def test_pages_can_be_mapped(site: ViewProcess) -> None:
    """mmap shows the same bytes."""
    # In a process of its own: a page fault holds the interpreter lock, which the fake hub's thread needs.
    code = (
        "import hashlib, mmap, sys\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "print(hashlib.sha256(mapped).hexdigest())\n"
    )
    command = [sys.executable, "-c", code, site.mountpoint / "big.bin"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == hashlib.sha256(BIG).hexdigest()


def test_random_reads_of_a_large_page(site: ViewProcess) -> None:
    """Pieces at random places, cold and warm, are the pieces of the page."""
    choose = random.Random(2)
    with open(site.mountpoint / "big.bin", "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(200):
            offset, size = choose.randrange(len(BIG)), choose.randrange(1, 200_000)
            assert os.pread(file.fileno(), size, offset) == BIG[offset : offset + size]


def test_the_control_files_are_there_and_hidden(site: ViewProcess) -> None:
    """`.chromafuse` is in no listing and can be read by name; its sizes are exact."""
    assert ".chromafuse" not in os.listdir(site.mountpoint)
    control = site.mountpoint / ".chromafuse"
    assert os.listdir(control) == ["README.md", "status"]
    status = (control / "status").read_bytes()
    assert status.startswith(b"digest: ")
    assert len(status) == 512 == (control / "status").stat().st_size
    lines = dict(line.split(": ") for line in status.decode().splitlines()[:-1])
    assert list(lines) == ["digest", "pages", "mode", "backend"]
    assert (lines["pages"], lines["mode"], lines["backend"]) == (str(len(SITE)), MODE, "ok")
    readme = (control / "README.md").read_bytes()
    assert len(readme) == (control / "README.md").stat().st_size
    assert not (site.mountpoint / "api" / ".chromafuse").exists()


def test_the_mount_is_what_it_should_be(site: ViewProcess) -> None:
    """Type, source and options in the mount table, and nothing else in them."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.split(" ")[4] == str(site.mountpoint)]
    before, _, after = line.partition(" - ")
    assert before.split(" ")[5] == "ro,nosuid,nodev,noexec,relatime"
    owner = f"user_id={os.getuid()},group_id={os.getgid()}"
    assert after == f"fuse.chromafuse chromafuse ro,{owner},default_permissions"


def test_repeated_metadata_costs_nothing(site: ViewProcess) -> None:
    """The kernel remembers names, attributes and absent names: the view is asked once."""
    paths = [site.mountpoint / "api" / "auth.md", site.mountpoint / "nope"]
    for path in paths:
        path.exists()
    before = site.counters()
    for _ in range(20):
        assert [path.exists() for path in paths] == [True, False]
    assert site.counters() == before


def test_pages_stay_in_the_page_cache(site: ViewProcess) -> None:
    """Reading again opens and closes, and asks for no bytes."""
    page = site.mountpoint / "api" / "auth.md"
    page.read_bytes()
    before = site.counters()["read"]
    for _ in range(5):
        page.read_bytes()
    assert site.counters()["read"] == before


# -- outages


def test_errors_of_the_hub_reach_the_reader(point: Path) -> None:
    """EIO, ETIMEDOUT and ESTALE come through as they are, page by page."""
    hub = FakeHub(PAGES, errors={"a.md": errno.EIO, "b.md": errno.ESTALE})
    with mounted(hub, point):
        assert fresh_failure_of(point / "a.md") == "Input/output error"
        assert fresh_failure_of(point / "b.md") == "Stale file handle"
        assert (point / "c.md").read_bytes() == PAGES["c.md"]
        hub.errors.clear()
        assert (point / "a.md").read_bytes() == PAGES["a.md"]


def test_a_reader_waits_through_a_restart_of_the_hub(point: Path) -> None:
    """A hub that dies under a waiting `cat` and comes back answers it; cached pages need no hub."""
    hub = FakeHub(PAGES, silent=True)
    with mounted(hub, point) as view:
        cat = subprocess.Popen(["cat", point / "a.md"], stdout=subprocess.PIPE)
        wait_for(lambda: hub.reads, what="the read at the hub")
        hub.die()
        wait_for(lambda: "backend: down" in status(point), what="the outage in the status file")
        hub.silent = False
        view.give(hub.connect())
        out, _ = cat.communicate(timeout=20)
        assert (cat.returncode, out) == (0, PAGES["a.md"])
        assert "backend: ok" in status(point)
        assert [hello.generation for hello in hub.hellos] == [0, hub.generation]
        hub.die()
        assert (point / "a.md").read_bytes() == PAGES["a.md"]


def status(point: Path) -> str:
    """Return the status file."""
    return (point / ".chromafuse" / "status").read_text(encoding="utf-8")


def test_the_state_of_the_store_is_shown(point: Path) -> None:
    """What the hub says of the store is in the status file, at once."""
    hub = FakeHub(PAGES, store_up=False)
    with mounted(hub, point):
        wait_for(lambda: "backend: down" in status(point), what="down")
        hub.tell_store_state(True)
        wait_for(lambda: "backend: ok" in status(point), what="ok")


def test_a_silent_hub_ends_in_a_timeout(point: Path) -> None:
    """A read without an answer is ETIMEDOUT at its deadline, once and not twice; metadata goes on."""
    hub = FakeHub(PAGES, silent=True)
    with mounted(hub, point, "--deadline", "2"):
        start = time.monotonic()
        assert failure_of(point / "a.md") == "ETIMEDOUT"
        assert 1.9 < time.monotonic() - start < 3.9
        assert sorted(os.listdir(point)) == sorted(PAGES)


def test_no_hub_at_all_ends_in_a_timeout(point: Path) -> None:
    """Without a link a read waits for one until its deadline."""
    hub = FakeHub(PAGES)
    with mounted(hub, point, "--deadline", "0.5"):
        hub.die()
        assert failure_of(point / "a.md") == "ETIMEDOUT"


def test_many_readers_wait_side_by_side(point: Path) -> None:
    """Two hundred slow readers share one link; metadata is answered meanwhile."""
    pages = {f"{i}.md": b"%d\n" % i for i in range(200)}
    hub = FakeHub(pages, delay=0.005)
    with mounted(hub, point):
        found: dict[str, bytes] = {}

        def read(name: str) -> None:
            found[name] = (point / name).read_bytes()

        threads = [threading.Thread(target=read, args=(name,)) for name in pages]
        for thread in threads:
            thread.start()
        assert len(os.listdir(point)) == 200
        for thread in threads:
            thread.join(30)
        assert found == pages


def test_metadata_never_waits_for_the_hub(point: Path) -> None:
    """With hundreds of readers stuck on a silent hub, names are answered at once; nobody is lost."""
    pages = {f"{i}.md": b"%d\n" % i for i in range(600)}
    hub = FakeHub(pages, silent=True)
    with mounted(hub, point, "--deadline", "60") as view, reading(point, list(pages)) as readers:
        wait_for(lambda: len(hub.reads) == 600, what="all reads at the hub", timeout=60)
        start = time.monotonic()
        assert os.stat(point).st_size == 4096
        assert not (point / "absent").exists()
        os.statvfs(point)
        assert time.monotonic() - start < 10  # the readers wait for 60
        hub.die()
        hub.silent = False
        view.give(hub.connect())
        out, _ = readers.communicate(timeout=60)
        assert (readers.returncode, sorted(out)) == (0, sorted(b"".join(pages.values())))


@contextmanager
def reading(point: Path, names: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Read many pages, each in a process of its own, all at once."""
    listed = point.with_name("names")
    listed.write_text("\n".join(names), encoding="utf-8")
    command = ["xargs", "-a", str(listed), "-P", "0", "-n", "1", "cat"]
    readers = subprocess.Popen(command, cwd=point, stdout=subprocess.PIPE, start_new_session=True)
    with readers:
        try:
            yield readers
        finally:
            with suppress(ProcessLookupError):
                os.killpg(readers.pid, signal.SIGKILL)


@pytest.mark.parametrize("answer", [b"\xff" * 64, b"\0" * 64], ids=["too long", "unknown type"])
def test_a_hub_that_breaks_the_rules_is_dropped(point: Path, answer: bytes) -> None:
    """Bytes that are no frames close the link and are logged; the mount lives, a good hub takes over."""
    hub = FakeHub(PAGES)
    with mounted(hub, point) as view:
        hub.say(answer)
        wait_for(lambda: "the link to the hub is closed" in view.said(), what="the log line")
        view.give(hub.connect())
        assert (point / "a.md").read_bytes() == PAGES["a.md"]


def test_a_hub_with_another_tree_does_not_mix(point: Path) -> None:
    """After a restart with another tree the mount keeps its names and sizes; its bytes are stale."""
    hub = FakeHub(PAGES)
    with mounted(hub, point) as view:
        hub.die()
        other = FakeHub({**PAGES, "a.md": b"changed\n", "0.md": b"new\n"}, generation=8)
        view.give(other.connect())
        wait_for(lambda: "another tree" in view.said(), what="the log line")
        assert sorted(os.listdir(point)) == sorted(PAGES)
        assert failure_of(point / "a.md") == "ESTALE"
        other.die()


def test_a_hub_with_the_same_tree_by_another_number_goes_on(point: Path) -> None:
    """A publication that changed nothing visible here changes nothing here."""
    hub = FakeHub(PAGES)
    with mounted(hub, point) as view:
        hub.die()
        later = FakeHub(PAGES, generation=8)
        view.give(later.connect())
        assert (point / "a.md").read_bytes() == PAGES["a.md"]
        assert [read.generation for read in later.reads] == [8]
        later.die()


def test_a_bug_in_a_handler_does_not_end_the_mount(point: Path) -> None:
    """A planted bug is EIO and a traceback; the next request is answered."""
    planted = (
        LOAD_FAST + "import chromafuse.view.process as process, chromafuse.view.ops as ops\n"
        "real = ops.attributes.of\n"
        "def of(owner, snapshot, inode):\n"
        "    if snapshot.name(inode) == b'b.md': raise ZeroDivisionError('planted')\n"
        "    return real(owner, snapshot, inode)\n"
        "ops.attributes.of = of\n"
        "sys.exit(process.main(fast=loaded))\n"
    )
    hub = FakeHub(PAGES)
    view = ViewProcess(point, program=(sys.executable, "-c", planted))
    try:
        view.give(hub.connect())
        assert view.event()["event"] == "mounted"
        with pytest.raises(OSError, match="Input/output error"):
            (point / "b.md").stat()
        assert (point / "a.md").read_bytes() == PAGES["a.md"]
        assert "ZeroDivisionError: planted" in view.said()
        assert view.counters()["bugs"] == 1
        assert view.terminate() == 0
    finally:
        view.clean()
        hub.die()


# -- the end of a mount


def test_the_end_of_the_supervisor_or_a_signal_unmounts(point: Path) -> None:
    """SIGTERM, SIGINT, SIGHUP, and a supervisor that is gone: unmounted, exit 0, nothing said."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, None):
        hub = FakeHub(PAGES)
        with mounted(hub, point) as view:
            if number is None:
                view.close_control()
            else:
                view.process.send_signal(number)
            assert (view.wait(), view.said()) == (0, "")
            assert mounts_below(point) == []


def test_an_unmount_from_outside_ends_the_view(point: Path) -> None:
    """`umount` by anybody who may: exit 0."""
    with mounted(FakeHub(PAGES), point) as view:
        subprocess.run(["umount", point], check=True)
        assert (view.wait(), view.said()) == (0, "")


def test_a_mount_in_use_is_taken_away_lazily(point: Path) -> None:
    """A shell that sits in the mount does not keep it: after a moment it is gone."""
    with mounted(FakeHub(PAGES), point) as view:
        descriptor = os.open(point, os.O_RDONLY)
        try:
            start = time.monotonic()
            assert view.terminate() == 0
            assert time.monotonic() - start > 0.9
            assert mounts_below(point) == []
        finally:
            os.close(descriptor)


def test_a_second_signal_does_not_wait(point: Path) -> None:
    """Who asks twice means it; readers that wait get an error, and do not hold the mount."""
    hub = FakeHub(PAGES, silent=True)
    with mounted(hub, point, "--grace", "60") as view:
        cat = subprocess.Popen(["cat", point / "a.md"], stderr=subprocess.PIPE)
        wait_for(lambda: hub.reads, what="the read at the hub")
        start = time.monotonic()
        view.process.send_signal(signal.SIGTERM)
        wait_for(lambda: view.process.poll() is not None or again(view), what="the end of the view")
        assert time.monotonic() - start < 30
        assert view.wait() == 0
        _, said = cat.communicate(timeout=10)
        assert cat.returncode == 1, said


def again(view: ViewProcess) -> bool:
    """Send one more signal; the view may be gone by now."""
    view.process.send_signal(signal.SIGTERM)
    return False


def test_a_failed_self_test_mounts_again_in_stock_mode(point: Path) -> None:
    """Where the fast mount does not answer right the view mounts once more, stock, and says why."""
    planted = (
        LOAD_FAST + "import chromafuse.view.process as process\n"
        "real, verdicts = process.self_test, ['planted']\n"
        "process.self_test = lambda *what: verdicts.pop() if verdicts else real(*what)\n"
        "sys.exit(process.main(fast=loaded))\n"
    )
    hub = FakeHub(PAGES)
    view = ViewProcess(point, program=(sys.executable, "-c", planted))
    try:
        view.give(hub.connect())
        if MODE == "stock":  # nothing is left to fall back to
            failed = view.event()
            assert failed["message"] == f"{point}: the mount does not answer: planted"
            assert view.wait() == 1
            return
        assert view.event() == {"event": "mounted", "mode": "stock"}
        assert "stock mode, slower: the self-test failed: planted" in view.said()
        assert mounts_below(point) == [str(point)]
        name = next(iter(PAGES))
        assert (point / name).read_bytes() == PAGES[name]
        assert view.counters()["open"] >= 1
        assert view.terminate() == 0
    finally:
        view.clean()
        hub.die()


def test_a_killed_view_leaves_a_dead_mount(point: Path) -> None:
    """After SIGKILL the mount answers ENOTCONN: never an empty directory."""
    with mounted(FakeHub(PAGES), point) as view:
        view.process.kill()
        assert view.wait() == -signal.SIGKILL
        assert mounts_below(point) == [str(point)]
        with pytest.raises(OSError, match="not connected") as caught:
            os.statvfs(point)  # never cached, as listings are in fast mode
        assert caught.value.errno == errno.ENOTCONN


def test_a_crashed_view_leaves_a_dead_mount(point: Path) -> None:
    """An exception outside the handlers is a traceback, exit 1, and ENOTCONN."""
    planted = (
        LOAD_FAST + "import trio, chromafuse.view.process as process\n"
        "async def crash(self, ops, mounted):\n"
        "    await ops.started.wait()\n"
        "    raise ZeroDivisionError('planted')\n"
        "process.Process._announce = crash\n"
        "sys.exit(process.main(fast=loaded))\n"
    )
    hub = FakeHub(PAGES)
    view = ViewProcess(point, program=(sys.executable, "-c", planted))
    try:
        view.give(hub.connect())
        assert view.wait() == 1
        assert "ZeroDivisionError: planted" in view.said()
        with pytest.raises(OSError, match="not connected"):
            os.statvfs(point)
    finally:
        view.clean()
        hub.die()


def test_an_aborted_connection_is_a_crash(point: Path) -> None:
    """Aborted by the kernel the mount is dead and stays: exit 1 and a line that says so."""
    with mounted(FakeHub(PAGES), point) as view:
        minor = os.minor(os.stat(point).st_dev)
        control = "/sys/fs/fuse/connections"
        script = f"mount -t fusectl none {control} && echo 1 > {control}/{minor}/abort"
        subprocess.run(["unshare", "-m", "sh", "-c", script], check=True)
        assert view.wait() == 1
        assert "the kernel ended the session; the mount is dead" in view.said()
        assert mounts_below(point) == [str(point)]
        with pytest.raises(OSError, match="not connected"):
            os.statvfs(point)
