"""Pages pushed while nothing goes as it should: reads without an answer, wrong pushes, a view that is killed."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chromafuse import mountinfo, wire
from tests.support.cold import differences, publish
from tests.support.fake_hub import FakeHub
from tests.support.modes import FAST, LOAD_FAST
from tests.support.mounts import foreground, layers_at
from tests.support.program import chromafuse, ok, output
from tests.support.session import mounts_below
from tests.support.view_process import ViewProcess, mounted
from tests.support.waiting import wait_for

pytestmark = pytest.mark.mount

DEADLINE = ("--deadline", "3")
PAGES = {
    **{f"d/{i:02}.md": f"page {i} of d\n".encode() * (i + 1) for i in range(60)},
    **{f"e/{i:02}.md": f"page {i} of e\n".encode() * 99 for i in range(5)},
    "large.md": b"0123456789abcde\n" * 60_000,
}


@dataclass
class PushingHub(FakeHub):
    """Pushes a whole directory at each read of a page in it, that page too; to some reads it has no answer."""

    withheld: set[str] = field(default_factory=set)  # paths

    def inode(self, path: str) -> int:
        """Return the number of a page or a directory."""
        inode = 1
        for name in path.encode().split(b"/"):
            inode = self.view.snapshot.lookup(inode, name)
        return inode

    def push(self, *paths: str) -> bytes:
        """Return the frames that carry pages."""
        return b"".join(wire.push((self.inode(path), self.pages[path]) for path in paths))

    def _answer(self, request: int, read: wire.Read) -> list[bytes]:
        entry = self.view.entry(read.inode)
        assert entry is not None
        directory = entry.path.rpartition("/")[0]
        beside = [
            path
            for path in self.pages
            if path.rpartition("/")[0] == directory
            and (path == entry.path or path not in self.withheld)
        ]
        answer = [] if entry.path in self.withheld else super()._answer(request, read)
        return [self.push(*beside), *answer]


@pytest.fixture
def point(mount_root: Path) -> Path:
    """Give a mountpoint of one's own."""
    point = mount_root / "m"
    point.mkdir()
    return point


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Give the tree that is mounted, as files."""
    for path, data in PAGES.items():
        page = tmp_path / "source" / path
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_bytes(data)
    return tmp_path / "source"


@contextmanager
def reading(*pages: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Read pages, each in a process of its own, at once."""
    readers = [
        subprocess.Popen(["cat", page], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for page in pages
    ]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate(timeout=30)


def failures(readers: list[subprocess.Popen[bytes]]) -> set[str]:
    """Wait for readers that all fail; return what they said it was."""
    said = [reader.communicate(timeout=60)[1].decode() for reader in readers]
    assert [reader.returncode for reader in readers] == [1] * len(readers)
    return {text.strip().rpartition(": ")[2] for text in said}


def late(readers: list[subprocess.Popen[bytes]], path: str) -> bool:
    """Wait for readers of a page; say whether each got its bytes after all, or timed out."""
    outcomes = [(*reader.communicate(timeout=60), reader.returncode) for reader in readers]
    return all(
        (data, code) == (PAGES[path], 0)
        or (data, code, said.strip().endswith(b": Connection timed out")) == (b"", 1, True)
        for data, said, code in outcomes
    )


def blocked(pid: int) -> bool:
    """Say whether a thread of a process waits in the kernel and cannot be killed."""
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return "D" in states


# -- reads without an answer ---------------------------------------------------------------------------


def test_what_is_pushed_beside_an_unanswered_read_is_there(point: Path, source: Path) -> None:
    """The hub never answers for a page and pushes it and its neighbours: they are read, it ends in time.

    The kernel asks twice; the second time the page may be at hand.
    """
    hub = PushingHub(PAGES, withheld={"d/07.md"})
    with mounted(hub, point, *DEADLINE) as view, reading(point / "d/07.md") as readers:
        wait_for(lambda: hub.reads, what="the read at the hub")
        others = [path for path in PAGES if path != "d/07.md"]
        assert {path: (point / path).read_bytes() for path in others} == {
            path: PAGES[path] for path in others
        }
        assert len(output(["ls", "-lR", "."], point).splitlines()) > len(PAGES)
        assert late(readers, "d/07.md")
        hub.withheld.clear()
        wait_for(lambda: differences(source, point) == "", what="the page is forgiven")
        assert (view.terminate(), mounts_below(point)) == (0, [])


def test_forty_readers_of_twenty_unanswered_pages(point: Path, source: Path) -> None:
    """Each of them ends in time, everybody else reads on, and an unmount waits for none of those who wait."""
    withheld = {f"d/{i:02}.md" for i in range(0, 60, 3)}
    hub = PushingHub(PAGES, withheld=withheld)
    paths = sorted(withheld) * 2
    waited_for = [point / path for path in paths]
    with mounted(hub, point, *DEADLINE) as view:
        with reading(*waited_for) as readers:
            wait_for(lambda: len(hub.reads) >= len(withheld), what="the reads at the hub")
            others = [path for path in PAGES if path not in withheld]
            assert {path: (point / path).read_bytes() for path in others} == {
                path: PAGES[path] for path in others
            }
            assert all(late([reader], path) for reader, path in zip(readers, paths, strict=True))
        hub.withheld.clear()
        wait_for(lambda: differences(source, point) == "", what="the pages are forgiven")
        assert view.counters().get("bugs", 0) == 0
    hub = PushingHub(PAGES, withheld=withheld)
    with mounted(hub, point, "--deadline", "170") as view, reading(*waited_for) as readers:
        wait_for(lambda: len(hub.reads) >= len(withheld), what="the reads at the hub")
        assert (view.terminate(), mounts_below(point)) == (0, [])
        for reader in readers:
            reader.wait(timeout=30)


def test_what_is_written_while_a_read_is_unanswered(point: Path, source: Path) -> None:
    """Root writes to a page that is being read: refused, dropped when the read has ended, nothing waits for it."""
    hub = PushingHub(PAGES, withheld={"large.md"})
    with mounted(hub, point, *DEADLINE) as view, reading(point / "large.md") as readers:
        wait_for(lambda: hub.reads, what="the read at the hub")
        if not write(point, "large.md", 900_000):
            return
        wait_for(lambda: blocked(view.process.pid), what="it waits for the read to end")
        assert write(point, "e/01.md", 5)
        assert (point / "d/11.md").read_bytes() == PAGES["d/11.md"]
        assert sorted(os.listdir(point)) == ["d", "e", "large.md"]
        assert failures(readers) == {"Connection timed out"}
        hub.withheld.clear()
        wait_for(lambda: differences(source, point) == "", what="the page is forgiven")
        assert (view.terminate(), mounts_below(point)) == (0, [])


def write(point: Path, path: str, offset: int) -> bool:
    """As root, remount and try to write: always refused; say whether the write came as far as the view."""
    subprocess.run(["mount", "-i", "-o", "remount,rw", point], check=True)
    try:
        descriptor = os.open(point / path, os.O_WRONLY)
    except OSError as exc:
        assert (exc.errno, FAST) == (errno.EROFS, False)  # noqa: PT017 - both outcomes are right
        return False
    try:
        with pytest.raises(OSError, match="Read-only file system"):
            os.pwrite(descriptor, b"written", offset)
    finally:
        os.close(descriptor)
    return True


# -- a page that is handed over although it is being read ----------------------------------------------

# Without the rule that pages which are being read are left out, the kernel has the worker wait.
BLIND = (
    LOAD_FAST + "import chromafuse.view.process as process, chromafuse.view.push as push\n"
    "class Blind(dict):\n"
    "    def __contains__(self, inode): return False\n"
    "real = push.Pusher.__init__\n"
    "def init(self, *what):\n"
    "    real(self, *what)\n"
    "    self._reading = Blind()\n"
    "push.Pusher.__init__ = init\n"
    "sys.exit(process.main(fast=loaded))\n"
)


@contextmanager
def worker_waiting(
    point: Path, *options: str, withheld: Sequence[str] = ("d/07.md",)
) -> Iterator[tuple[ViewProcess, PushingHub, list[subprocess.Popen[bytes]]]]:
    """Mount with a view whose worker waits in the kernel, for reads that the hub does not answer."""
    hub = PushingHub(PAGES, withheld=set(withheld))
    view = ViewProcess(point, *options, program=(sys.executable, "-c", BLIND))
    try:
        view.give(hub.connect())
        assert view.event()["event"] == "mounted"
        os.listdir(point / "d")
        with reading(*(point / path for path in withheld)) as readers:
            wait_for(lambda: blocked(view.process.pid), what="the worker waits in the kernel")
            yield view, hub, readers
    finally:
        view.clean()
        hub.die()


def test_a_worker_that_waits_holds_up_nobody(point: Path, source: Path) -> None:
    """While the kernel keeps the worker, all other pages are read and listed, and the read ends in time."""
    with worker_waiting(point, *DEADLINE) as (view, hub, readers):
        assert (point / "e/01.md").read_bytes() == PAGES["e/01.md"]
        assert (point / "d/59.md").read_bytes() == PAGES["d/59.md"]
        assert len(os.listdir(point / "e")) == 5
        assert late(readers, "d/07.md")
        hub.withheld.clear()
        wait_for(lambda: differences(source, point) == "", what="the page is forgiven")
        assert (view.terminate(), mounts_below(point)) == (0, [])


def test_an_unmount_does_not_wait_for_a_worker_that_waits(point: Path) -> None:
    """SIGTERM ends the read, and so the worker: nothing stays mounted, long before the deadline."""
    with worker_waiting(point, "--deadline", "170") as (view, _, readers):
        assert (view.terminate(), mounts_below(point)) == (0, [])
        readers[0].wait(timeout=30)


def test_a_view_killed_while_its_worker_waits_can_be_buried(point: Path) -> None:
    """SIGKILL leaves a thread that holds the connection: aborted, the reader and the view end."""
    with worker_waiting(point, "--deadline", "170") as (view, _, readers):
        view.process.kill()
        (mount,) = mountinfo.layers(str(point))
        wait_for(lambda: state(view.process.pid) == "Z", what="only the worker is left")
        assert (view.process.poll(), readers[0].poll()) == (None, None)
        assert mountinfo.abort(mount)
        assert view.wait() == -signal.SIGKILL
        # What the worker was handing over may have got there.
        assert readers[0].communicate(timeout=30)[0] in (b"", PAGES["d/07.md"])
        assert mounts_below(point) == [str(point)]  # dead, never an empty directory
        assert mountinfo.probe(str(point)) is mountinfo.Health.DEAD


def state(pid: int) -> str:
    """Return the state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_view_that_ends_among_pushes_and_reads_is_gone(point: Path) -> None:
    """The worker hands over sixty pages that sixty readers read: SIGTERM leaves no process and no reader."""
    inside = [path for path in PAGES if path.startswith("d/")]
    for _ in range(5):
        with worker_waiting(point, "--deadline", "170", withheld=inside) as (view, _, readers):
            assert (view.terminate(), mounts_below(point), view.said()) == (0, [], "")
            for reader in readers:
                reader.wait(timeout=30)


@pytest.mark.chroma
def test_a_supervisor_buries_a_view_killed_in_a_notify_call(tmp_path: Path, point: Path) -> None:
    """Killed in the middle of one the mount does not hang: readers end, exit 1, and `umount` clears it."""
    site = publish(tmp_path, PAGES)
    with foreground(tmp_path, site.store, point) as running:
        told = running.status()
        os.kill(told["hub_pid"], signal.SIGSTOP)
        with reading(point / "large.md") as readers:
            wait_for(lambda: running.status()["counters"].get("read", 0) > 1, what="the read")
            if not write(point, "large.md", 900_000):
                os.kill(told["hub_pid"], signal.SIGCONT)
                return
            wait_for(lambda: blocked(told["view_pid"]), what="a thread of the view waits")
            os.kill(told["view_pid"], signal.SIGKILL)
            assert len(failures(readers)) == 1
        code, said = running.wait()
        assert code == 1
        assert "the view died in a call of the kernel; its connection is aborted" in said
        assert "the view died (signal 9); the mount is left dead on purpose" in said
        ok(chromafuse(tmp_path, "umount", point))
        assert layers_at(point) == []


@pytest.mark.chroma
def test_a_view_killed_in_the_middle_of_pushes(tmp_path: Path, point: Path) -> None:
    """Killed at the first page and later in a walk: the walk ends, `ls` returns, `umount` clears it each time."""
    pages = {f"{i:02}/{j}.md": b"%d %d\n" % (i, j) * 9_000 for i in range(40) for j in range(4)}
    site = publish(tmp_path, pages)
    for lines in (1, 9, 80):
        with foreground(tmp_path, site.store, point) as running:
            command = ["grep", "-rc", "--line-buffered", "1", "."]
            with subprocess.Popen(
                command, cwd=point, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as walk:
                assert walk.stdout is not None
                for _ in range(lines):
                    walk.stdout.readline()
                os.kill(running.status()["view_pid"], signal.SIGKILL)
                walk.communicate(timeout=60)
            assert running.wait()[0] == 1
            subprocess.run(["ls", point], capture_output=True, timeout=30, check=False)
            assert mountinfo.probe(str(point)) is mountinfo.Health.DEAD
            ok(chromafuse(tmp_path, "umount", point))
            assert layers_at(point) == []
    with foreground(tmp_path, site.store, point):
        assert differences(site.source, point) == ""


# -- wrong pushes --------------------------------------------------------------------------------------

HEAD, COUNT, ROW = wire.HEADER, struct.Struct("<I"), struct.Struct("<QI")


def frame(*rows: tuple[int, int], data: bytes = b"", count: int | None = None) -> bytes:
    """Return a PUSH frame of any table over any bytes."""
    table = b"".join(ROW.pack(*row) for row in rows)
    payload = COUNT.pack(len(rows) if count is None else count) + table + data
    return HEAD.pack(len(payload), wire.Type.PUSH, 0) + payload


OTHERS = b"bytes that no page has"
WRONG = {
    "unknown inode": frame((10_000, 22), data=OTHERS),
    "inode 0": frame((0, 22), data=OTHERS),
    "largest inode": frame((2**64 - 1, 22), data=OTHERS),
    "the root": frame((1, 22), data=OTHERS),
    "a directory": frame((2, 22), data=OTHERS),
    "too short": frame((3, 3), data=b"abc"),
    "too long": frame((3, 22), data=OTHERS),
    "no byte": frame((3, 0)),
    "no table": frame(count=5),
    "half a table": frame(count=1, data=bytes(7)),
    "more pages than bytes": frame((3, 14), (4, 28), data=b"page 0 of d\n"),
    "more bytes than pages": frame((3, 14), data=bytes(99)),
    "a right one, then a wrong one": frame((3, 12), (10_000, 22), data=b"page 0 of d\n" + OTHERS),
    "no count": HEAD.pack(2, wire.Type.PUSH, 0) + b"\0\0",
    "a whole frame of nothing": frame(count=0, data=bytes(wire.MAX_PAYLOAD - COUNT.size)),
    "a frame over the limit": HEAD.pack(wire.MAX_PAYLOAD + 1, wire.Type.PUSH, 0),
    "a control file": frame((2**63, 22), data=OTHERS),
}
HARMLESS = {
    "no page": frame(),
    "the same page many times": frame(*[(3, 12)] * 99, data=b"page 0 of d\n" * 99),
    "a request id": HEAD.pack(4, wire.Type.PUSH, 7) + COUNT.pack(0),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_push_closes_the_link(point: Path, source: Path, what: str) -> None:
    """Whatever is wrong with it: one line in the log, the mount lives, the next hub serves, no page is changed."""
    hub = PushingHub(PAGES)
    with mounted(hub, point) as view:
        os.listdir(point / "d")
        hub.say(WRONG[what])
        wait_for(lambda: "the link to the hub is closed" in view.said(), what="the log line")
        hub.die()
        view.give(hub.connect())
        assert differences(source, point) == ""
        assert view.said().count("\n") == 1, view.said()
        assert (view.terminate(), mounts_below(point)) == (0, [])


@pytest.mark.parametrize("what", HARMLESS)
def test_a_push_of_little_use_is_taken(point: Path, source: Path, what: str) -> None:
    """A push that breaks no rule leaves the link open, and the pages right."""
    hub = PushingHub(PAGES)
    with mounted(hub, point) as view:
        os.listdir(point / "d")
        hub.say(HARMLESS[what])
        assert differences(source, point) == ""
        assert (len(hub.hellos), view.said()) == (1, "")


def test_a_push_before_the_greeting(point: Path) -> None:
    """A hub that pushes first is refused, and what it pushed is nowhere; there is no mount by it."""
    first = PushingHub(PAGES)
    ours = EarlyHub(PAGES)
    view = ViewProcess(point)
    try:
        view.give(ours.connect())
        failed = view.event()
        assert failed["event"] == "failed"
        assert "a PUSH frame where GREETING belongs" in failed["message"]
        assert view.wait() == 1
        assert mounts_below(point) == []
    finally:
        view.clean()
        ours.die()
    with mounted(first, point) as view:
        first.die()
        view.give(ours.connect())
        wait_for(lambda: "the link to the hub is closed" in view.said(), what="the log line")
        ours.die()
        view.give(first.connect())
        assert (point / "d/00.md").read_bytes() == PAGES["d/00.md"]


@dataclass
class EarlyHub(PushingHub):
    """Pushes before it greets."""

    def _greet(self, link: object, hello: wire.Hello) -> None:
        link.sendall(self.push("d/00.md"))  # type: ignore[attr-defined]
        super()._greet(link, hello)  # type: ignore[arg-type]


def test_pushes_of_a_hub_with_another_tree_are_left_lying(point: Path, source: Path) -> None:
    """A hub of another tree pushes under the numbers of this one: nothing of it is ever read."""
    hub = PushingHub(PAGES)
    with mounted(hub, point) as view:
        os.listdir(point / "d")
        hub.die()
        other = PushingHub(
            {path: data.replace(b"page", b"fake") for path, data in PAGES.items()}, generation=8
        )
        other.view  # noqa: B018
        # The snapshots are alike: names and sizes are the same. Only the versions of the pages differ.
        other.digest = bytes(31) + b"\1"
        view.give(other.connect())
        wait_for(lambda: "serves another tree" in view.said(), what="the log line")
        other.say(other.push(*(path for path in PAGES if path.startswith("d/"))))
        with pytest.raises(OSError, match="Stale"):
            (point / "e/00.md").read_bytes()
        other.die()
        view.give(hub.connect())
        assert differences(source, point) == ""
