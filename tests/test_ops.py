"""The handlers of a mount, called as the kernel would call them, without a kernel."""

from __future__ import annotations

import errno
import inspect
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyfuse3
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.errors import PageGone, RecordDamaged, StoreTimeout, StoreUnavailable
from chromafuse.view import control, guard
from chromafuse.view.attributes import Owner
from chromafuse.view.control import ControlFiles, Facts
from chromafuse.view.link import Refused
from chromafuse.view.ops import Operations
from tests.support.fake_hub import MTIME, make_view
from tests.support.logguard import LogGuard

PAGES = {
    "a.md": b"x" * 513,
    "dir/empty.md": b"",
    "dir/ä ö.md": b"umlauts",
    "dir/sub/deep.md": b"deep",
}
OWNER = Owner(uid=1000, gid=100)
ROOT = 1
FOREVER = float("inf")
CONTEXT: Any = None
ABSENT_INODE = 999
Entry = tuple[bytes, int, int, int]  # name, inode, mode, cookie


@dataclass
class Pages:
    """Answers reads from memory; `answer` replaces what it says."""

    pages: Mapping[str, bytes]
    answer: bytes | Exception | None = None
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    listings: list[int] = field(default_factory=list)

    async def read(self, inode: int, offset: int, size: int) -> bytes:
        self.asked.append((inode, offset, size))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        entry = make_view(self.pages).entry(inode)
        assert entry is not None
        return self.pages[entry.path][offset : offset + size]

    def listed(self, directory: int) -> None:
        self.listings.append(directory)


@dataclass
class Mount:
    """Handlers over pages, and what they hang on."""

    ops: Operations
    pages: Pages
    backend: list[bool]

    def call(self, name: str, *arguments: Any) -> Any:
        """Run one handler to its end."""
        handler: Callable[..., Awaitable[Any]] = getattr(self.ops, name)
        return trio.run(handler, *arguments)

    def code(self, name: str, *arguments: Any) -> str:
        """Return the name of the errno that a handler raises."""
        with pytest.raises(pyfuse3.FUSEError) as caught:
            self.call(name, *arguments)
        return errno.errorcode[caught.value.errno]

    def inode(self, path: str) -> int:
        """Walk to a path by lookups."""
        found = ROOT
        for name in path.split("/"):
            found = self.call("lookup", found, name.encode(), CONTEXT).st_ino
        return found


def make(pages: Mapping[str, bytes] = PAGES, generation: int = 7) -> Mount:
    """Build handlers over pages."""
    snapshot = make_view(pages, generation).snapshot
    backend = [True]
    facts = Facts(b"\xab" * 32, len(pages), "stock")
    files = ControlFiles(facts, lambda: backend[0], OWNER, snapshot.mtime_ns(ROOT))
    reader = Pages(pages)
    return Mount(Operations(snapshot, files, reader, OWNER), reader, backend)


@pytest.fixture
def mount() -> Mount:
    """Give handlers over PAGES."""
    return make()


@pytest.fixture(scope="module")
def listing() -> Iterator[Callable[..., list[Entry]]]:
    """Give a function that lists a directory from a cookie on, at most `room` entries a call."""
    taken: list[Entry] = []
    limit = [0]

    def reply(token: Any, name: bytes, entry: pyfuse3.EntryAttributes, cookie: int) -> bool:
        if len(taken) >= limit[0]:
            return False
        taken.append((name, entry.st_ino, entry.st_mode, cookie))
        return True

    def read(mount: Mount, inode: int, start: int = 0, room: int = 1 << 30) -> list[Entry]:
        taken.clear()
        limit[0] = room
        mount.call("readdir", mount.call("opendir", inode, CONTEXT), start, None)
        return list(taken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyfuse3, "readdir_reply", reply)
        yield read


# -- attributes and names


def test_a_page_has_its_exact_attributes(mount: Mount) -> None:
    """Size, blocks, times, mode, owner and endless timeouts, all of them."""
    entry = mount.call("lookup", ROOT, b"a.md", CONTEXT)
    mtime = MTIME + len("a.md")
    assert entry.__getstate__() == {
        "st_ino": 2,
        "generation": 0,
        "entry_timeout": FOREVER,
        "attr_timeout": FOREVER,
        "st_mode": stat.S_IFREG | 0o444,
        "st_nlink": 1,
        "st_uid": 1000,
        "st_gid": 100,
        "st_rdev": 0,
        "st_size": 513,
        "st_blksize": 131072,
        "st_blocks": 2,
        "st_atime_ns": mtime,
        "st_ctime_ns": mtime,
        "st_mtime_ns": mtime,
        "st_birthtime_ns": 0,
    }
    assert mount.call("getattr", 2, CONTEXT).__getstate__() == entry.__getstate__()


def test_a_directory_has_its_exact_attributes(mount: Mount) -> None:
    """A directory has one link, 4096 bytes and the time of its newest page."""
    entry = mount.call("getattr", mount.inode("dir"), CONTEXT)
    assert (entry.st_mode, entry.st_nlink, entry.st_size, entry.st_blocks) == (
        stat.S_IFDIR | 0o555,
        1,
        4096,
        8,
    )
    assert entry.st_mtime_ns == MTIME + len("dir/sub/deep.md")


def test_an_absent_name_is_absent_for_ever(mount: Mount) -> None:
    """The kernel is told to remember that a name is not there."""
    entry = mount.call("lookup", ROOT, b"nope", CONTEXT)
    assert (entry.st_ino, entry.entry_timeout) == (0, FOREVER)


@pytest.mark.parametrize(
    ("handler", "arguments", "code"),
    [
        ("lookup", (ABSENT_INODE, b"a"), "ESTALE"),
        ("lookup", (2, b"a"), "ENOTDIR"),
        ("lookup", (ROOT, b"n" * 256), "ENAMETOOLONG"),
        ("lookup", (control.README, b"a"), "ENOTDIR"),
        ("lookup", (1 << 60, b"a"), "ESTALE"),
        ("getattr", (0,), "ESTALE"),
        ("getattr", (ABSENT_INODE,), "ESTALE"),
        ("getattr", (1 << 60,), "ESTALE"),
        ("opendir", (2,), "ENOTDIR"),
        ("opendir", (ABSENT_INODE,), "ESTALE"),
        ("opendir", (control.README,), "ENOTDIR"),
        ("open", (ROOT, os.O_RDONLY), "EISDIR"),
        ("open", (ABSENT_INODE, os.O_RDONLY), "ESTALE"),
        ("open", (2, os.O_WRONLY), "EROFS"),
        ("open", (2, os.O_RDWR), "EROFS"),
        ("open", (2, os.O_RDONLY | os.O_TRUNC), "EROFS"),
        ("open", (control.README, os.O_WRONLY), "EROFS"),
        ("access", (2, os.W_OK), "EROFS"),
        ("access", (ABSENT_INODE, os.X_OK), "ESTALE"),
        ("readlink", (2,), "EINVAL"),
        ("getxattr", (2, b"user.x"), "ENOSYS"),
        ("listxattr", (2,), "ENOSYS"),
    ],
)
def test_what_cannot_be_done_says_why(
    mount: Mount, handler: str, arguments: tuple[Any, ...], code: str
) -> None:
    """Every handler that can be asked something wrong answers with the errno that Linux would."""
    assert mount.code(handler, *arguments, CONTEXT) == code


def test_access_goes_by_the_modes(mount: Mount) -> None:
    """Everybody may read, and enter directories; no page can be executed."""
    asked = [(2, os.R_OK), (2, os.X_OK), (ROOT, os.R_OK | os.X_OK), (2, os.F_OK)]
    assert [mount.call("access", *what, CONTEXT) for what in asked] == [True, False, True, True]


def test_statfs_counts_what_is_visible(mount: Mount) -> None:
    """Blocks of the pages, nodes of the tree, nothing free."""
    assert mount.call("statfs", CONTEXT).__getstate__() == {
        "f_bsize": 4096,
        "f_frsize": 4096,
        "f_blocks": 1,
        "f_bfree": 0,
        "f_bavail": 0,
        "f_files": 7,
        "f_ffree": 0,
        "f_favail": 0,
        "f_namemax": 255,
    }
    assert make({}).call("statfs", CONTEXT).f_blocks == 1


# -- listings


def test_a_listing_is_complete_and_in_order(mount: Mount, listing: Any) -> None:
    """Dots first, then the names in byte order; cookies count up; control files are not shown."""
    directory, page = stat.S_IFDIR | 0o555, stat.S_IFREG | 0o444
    assert listing(mount, ROOT) == [
        (b".", 1, directory, 1),
        (b"..", 1, directory, 2),
        (b"a.md", 2, page, 3),
        (b"dir", 3, directory, 4),
    ]
    assert listing(mount, 3) == [
        (b".", 3, directory, 1),
        (b"..", 1, directory, 2),
        (b"empty.md", 4, page, 3),
        (b"sub", 5, directory, 4),
        ("ä ö.md".encode(), 7, page, 5),
    ]


@given(names=st.sets(st.text("abcÄ", min_size=1, max_size=3), max_size=30), room=st.integers(1, 7))
def test_a_listing_goes_on_at_any_cookie(listing: Any, names: set[str], room: int) -> None:
    """Read in pieces of any size, a directory shows every name once, as read in one piece."""
    mount = make(dict.fromkeys(names, b""))
    whole = listing(mount, ROOT)
    pieces: list[Entry] = []
    while piece := listing(mount, ROOT, pieces[-1][3] if pieces else 0, room):
        pieces += piece
    assert pieces == whole
    assert [name for name, *_ in whole[2:]] == sorted(name.encode() for name in names)
    for position, entry in enumerate(whole):
        assert listing(mount, ROOT, entry[3]) == whole[position + 1 :]


# -- bytes


@pytest.mark.parametrize(
    ("offset", "size", "asked"),
    [
        (0, 4096, [(2, 0, 513)]),
        (500, 10, [(2, 500, 10)]),
        (500, 4096, [(2, 500, 13)]),
        (512, 1, [(2, 512, 1)]),
        (513, 1, []),
        (4096, 4096, []),
        (0, 0, []),
    ],
)
def test_reads_end_exactly_at_the_end(
    mount: Mount, offset: int, size: int, asked: list[tuple[int, int, int]]
) -> None:
    """The hub is asked for exactly the bytes that exist, and not at all behind the end."""
    data = mount.call("read", 2, offset, size)
    assert data == PAGES["a.md"][offset : offset + size]
    assert mount.pages.asked == asked


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreTimeout(), "ETIMEDOUT"),
        (StoreUnavailable(), "EIO"),
        (PageGone(), "ESTALE"),
        (RecordDamaged(), "EIO"),
        (Refused(errno.ETIMEDOUT), "ETIMEDOUT"),
        (Refused(errno.ESTALE), "ESTALE"),
        (Refused(errno.EIO), "EIO"),
        (Refused(errno.EINTR), "EIO"),
        (Refused(errno.ENOSYS), "EIO"),
        (Refused(512), "EIO"),
    ],
)
def test_a_failed_read_says_which_kind(mount: Mount, failure: Exception, code: str) -> None:
    """Outages are told apart; what the kernel would misunderstand becomes EIO."""
    mount.pages.answer = failure
    assert mount.code("read", 2, 0, 4096) == code


@pytest.mark.parametrize("answer", [b"", b"x" * 512, b"x" * 514])
def test_an_answer_of_the_wrong_length_is_no_answer(
    mount: Mount, log_guard: LogGuard, answer: bytes
) -> None:
    """A page is never shown shorter or longer than it is."""
    log_guard.expect(f"the hub sent {len(answer)} bytes where 513 belong")
    mount.pages.answer = answer
    assert mount.code("read", 2, 0, 4096) == "EIO"


def test_a_directory_has_no_bytes(mount: Mount) -> None:
    """Reading a directory is EISDIR, reading a number of nobody ESTALE; the hub is not asked."""
    assert [mount.code("read", inode, 0, 10) for inode in (ROOT, control.DIRECTORY)] == [
        "EISDIR"
    ] * 2
    assert mount.code("read", ABSENT_INODE, 0, 10) == "ESTALE"
    assert mount.pages.asked == []


def test_an_open_page_stays_in_the_page_cache(mount: Mount) -> None:
    """The handle is the inode, and opening again keeps what the kernel has."""
    info = mount.call("open", 2, os.O_RDONLY | os.O_NOFOLLOW, CONTEXT)
    assert (info.fh, info.keep_cache, info.direct_io, info.nonseekable) == (2, True, False, False)
    assert (mount.call("release", 2), mount.call("releasedir", 3)) == (None, None)


# -- writes


WRITES: dict[str, tuple[Any, ...]] = {
    "setattr": (2, None, None, None, CONTEXT),
    "mknod": (ROOT, b"new", 0o644, 0, CONTEXT),
    "mkdir": (ROOT, b"new", 0o755, CONTEXT),
    "unlink": (ROOT, b"a.md", CONTEXT),
    "rmdir": (ROOT, b"dir", CONTEXT),
    "symlink": (ROOT, b"new", b"target", CONTEXT),
    "rename": (ROOT, b"a.md", ROOT, b"new", 0, CONTEXT),
    "link": (2, ROOT, b"new", CONTEXT),
    "create": (ROOT, b"new", 0o644, os.O_WRONLY, CONTEXT),
    "write": (2, 0, b"x"),
    "setxattr": (2, b"user.x", b"x", CONTEXT),
    "removexattr": (2, b"user.x", CONTEXT),
}
ONCE = {
    "flush": (2,),
    "fsync": (2, False),
    "fsyncdir": (ROOT, False),
    "poll": (2, 2, None, CONTEXT),
}


@pytest.mark.parametrize("handler", WRITES)
def test_every_write_handler_refuses(mount: Mount, handler: str) -> None:
    """Each handler that could change something answers EROFS by itself."""
    assert mount.code(handler, *WRITES[handler]) == "EROFS"


@pytest.mark.parametrize("handler", ONCE)
def test_what_has_nothing_to_do_is_asked_once(mount: Mount, handler: str) -> None:
    """ENOSYS makes the kernel answer these itself from then on."""
    assert mount.code(handler, *ONCE[handler]) == "ENOSYS"


def test_no_handler_of_the_library_is_left_to_chance() -> None:
    """Each handler that pyfuse3 knows is guarded, and is either ours or one that stays ENOSYS."""
    known = {
        name for name, value in inspect.getmembers(pyfuse3.Operations, inspect.iscoroutinefunction)
    }
    assert known == set(guard.HANDLERS)
    assert all(hasattr(vars(Operations)[name], "__wrapped__") for name in known)
    inherited = {
        name
        for name in known
        if inspect.unwrap(getattr(Operations, name)) is getattr(pyfuse3.Operations, name)
    }
    assert inherited == set(ONCE) | {"getxattr", "listxattr", "forget"}


# -- the guard


class Broken(Operations):
    """Handlers with a bug each."""

    async def _bug(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    getattr = forget = _bug


guard.guarded(Broken)


def test_a_bug_is_eio_and_a_traceback(mount: Mount, log_guard: LogGuard) -> None:
    """An unexpected exception is EIO for the caller, one traceback in the log, and counted each time."""
    log_guard.expect("ZeroDivisionError: planted")
    mount.ops.__class__ = Broken
    assert [mount.code("getattr", 2, CONTEXT) for _ in range(3)] == ["EIO"] * 3
    assert mount.ops.counters.bugs == 3
    assert len(log_guard.handler.records) == 1


def test_forget_never_raises(mount: Mount, log_guard: LogGuard) -> None:
    """FORGET has no answer, and an exception there would end the mount."""
    log_guard.expect("a bug in forget")
    mount.ops.__class__ = Broken
    assert mount.call("forget", [(2, 1)]) is None


def test_cancellation_is_no_bug(mount: Mount) -> None:
    """The guard lets trio's cancellation through."""

    async def cancelled(*_: Any) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def run() -> bool:
        mount.pages.read = cancelled  # type: ignore[method-assign]
        with trio.move_on_after(0.01) as scope:
            await mount.ops.read(pyfuse3.FileHandleT(2), 0, 10)
        return scope.cancelled_caught

    assert trio.run(run)
    assert mount.ops.counters.bugs == 0


def test_requests_are_counted_by_handler(mount: Mount) -> None:
    """Every request that reaches a handler is counted, the refused ones too."""
    mount.call("lookup", ROOT, b"a.md", CONTEXT)
    mount.code("getattr", ABSENT_INODE, CONTEXT)
    counted = {name: count for name, count in mount.ops.counters.requests.items() if count}
    assert counted == {"lookup": 1, "getattr": 1}


# -- control files


def test_the_status_file_says_what_it_says(mount: Mount) -> None:
    """Four facts, padded to 512 bytes."""
    inode = mount.inode(".chromafuse/status")
    expected = f"digest: {'ab' * 32}\npages: 4\nmode: stock\nbackend: ok\n".encode()
    assert mount.call("read", inode, 0, 4096) == expected.ljust(511) + b"\n"
    assert mount.call("getattr", inode, CONTEXT).st_size == 512
    assert mount.call("read", inode, 8, 2) == b"ab"


def test_a_changed_status_has_a_new_inode(mount: Mount) -> None:
    """What changes gets a new number; the old text stays under the old one."""
    before = mount.inode(".chromafuse/status")
    assert mount.inode(".chromafuse/status") == before
    mount.backend[0] = False
    after = mount.inode(".chromafuse/status")
    assert after == before + 1
    assert b"backend: down\n" in mount.call("read", after, 0, 512)
    assert b"backend: ok\n" in mount.call("read", before, 0, 512)


def test_old_status_texts_are_bounded(mount: Mount) -> None:
    """A store that comes and goes for ever does not fill the memory."""
    first = mount.inode(".chromafuse/status")
    for _ in range(control.KEPT):
        mount.backend[0] = not mount.backend[0]
        mount.inode(".chromafuse/status")
    assert mount.code("getattr", first, CONTEXT) == "ESTALE"


def test_control_files_are_found_and_not_shown(mount: Mount, listing: Any) -> None:
    """The directory resolves in the root alone, is in no listing, and lists its two files."""
    found = mount.call("lookup", ROOT, b".chromafuse", CONTEXT)
    assert (found.st_ino, found.entry_timeout, found.attr_timeout) == (1 << 52, 0, 0)
    assert mount.call("lookup", 3, b".chromafuse", CONTEXT).st_ino == 0
    assert [(name, inode) for name, inode, *_ in listing(mount, found.st_ino)] == [
        (b".", 1 << 52),
        (b"..", 1),
        (b"README.md", (1 << 52) + 1),
        (b"status", (1 << 52) + 2),
    ]
    assert [name for name, *_ in listing(mount, found.st_ino, 3)] == [b"status"]
    absent = mount.call("lookup", found.st_ino, b"nope", CONTEXT)
    assert (absent.st_ino, absent.entry_timeout) == (0, 0)
    page = mount.call("lookup", found.st_ino, b"README.md", CONTEXT)
    text = mount.call("read", page.st_ino, 0, 1 << 20)
    assert (page.st_size, page.st_blocks) == (len(text), -(-len(text) // 512))


def test_the_generation_is_nowhere(listing: Any) -> None:
    """Two trees of one content are the same to a reader, whatever their generations."""

    def seen(generation: int) -> Any:
        mount = make(generation=generation)
        status = mount.inode(".chromafuse/status")
        entries = [mount.call("getattr", inode, CONTEXT).__getstate__() for inode in range(1, 8)]
        return listing(mount, ROOT), mount.call("read", status, 0, 512), status, entries

    assert seen(1) == seen(123_456)
