"""Reads that nothing has cached, on real mounts: how many calls and requests they cost, and every byte."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import hypothesis
import pytest

from chromafuse.hub.readahead import AHEAD_BYTES, WINDOW_BYTES, WINDOW_PAGES
from chromafuse.wire import PUSH_MAX
from tests.support.chroma_server import ChromaServer
from tests.support.cold import WALKS, Counts, Site, differences, publish, settled, walked
from tests.support.mounts import Running, foreground
from tests.support.program import output
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.chroma]

SECTIONS, IN_SECTION, WIDE, DEEP = 30, 12, 3, 12
QUIET = 4  # walks, one of which makes no request


def text(name: object, size: int) -> bytes:
    """Return `size` bytes of numbered lines that no other page has."""
    lines, have = [], 0
    for number in count():
        lines.append(f"{name}: needle {number}\n".encode())
        have += len(lines[-1])
        if have >= size:
            return b"".join(lines)[: size - 1] + b"\n" if size else b""
    raise AssertionError


def walk_pages() -> dict[str, bytes]:
    """Return a site of many directories: short ones, wide ones, a deep chain, and pages without a byte."""
    pages = {"top.md": text("top", 300), "empty.md": b""}
    for section in range(SECTIONS):
        for number in range(IN_SECTION):
            path = f"section {section:02}/{number:02}.md"
            pages[path] = text(path, 40 * (section * number % 97))
    for wide in range(WIDE):
        pages |= {f"wide {wide}/{i:03}.md": text((wide, i), 900) for i in range(200)}
    chain = "deep/"
    for level in range(DEEP):
        chain += f"level {level}/"
        pages |= {f"{chain}{i}.md": text((level, i), 4096 + level) for i in range(3)}
    return pages


@pytest.fixture(scope="module")
def walk_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Publish `walk_pages` in a directory."""
    return publish(tmp_path_factory.mktemp("walk"), walk_pages())


@pytest.fixture(scope="module")
def server_site(tmp_path_factory: pytest.TempPathFactory, chroma_server: ChromaServer) -> Site:
    """Publish `walk_pages` on a server."""
    home = tmp_path_factory.mktemp("server")
    return publish(home, walk_pages(), chroma_server.url, "--collection", "cold")


# -- walks ---------------------------------------------------------------------------------------------


def check_walk(tool: str, site: Site, running: Running) -> None:
    """Walk a fresh mount; compare what was found, what it cost, and every byte, then walk for nothing."""
    assert walked(tool, running.point) == walked(tool, site.source)
    first = settled(running)
    assert 0 < first.requests <= len(site.pages) // 8, first
    assert 0 < first.fetches <= len(site.pages) // 16, first
    assert first.cached == site.size
    costs = []
    for _ in range(QUIET):
        before = Counts.of(running).requests
        assert walked(tool, running.point) == walked(tool, site.source)
        costs.append(Counts.of(running).requests - before)
        if not costs[-1]:
            break
    assert costs[-1] == 0, costs
    assert differences(site.source, running.point) == ""
    assert settled(running).fetches == first.fetches


@pytest.mark.parametrize("tool", WALKS)
def test_a_cold_walk_takes_few_calls_and_the_next_none(
    tmp_path: Path, mount_root: Path, walk_site: Site, tool: str
) -> None:
    """A thousand pages in 46 directories: far fewer requests and calls than pages, then none; bytes right."""
    with foreground(tmp_path, walk_site.store, mount_root / "m") as running:
        check_walk(tool, walk_site, running)


def test_a_cold_walk_of_a_server(tmp_path: Path, mount_root: Path, server_site: Site) -> None:
    """The same with a store behind HTTP."""
    options = server_site.options
    with foreground(tmp_path, server_site.store, mount_root / "m", *options) as running:
        check_walk("grep", server_site, running)


@pytest.mark.parametrize("tool", ["grep", "rg"])
def test_a_walk_with_next_to_no_memory(
    tmp_path: Path, mount_root: Path, walk_site: Site, tool: str
) -> None:
    """A hub that keeps 64 kB of pages sends them all the same: every byte is right, calls stay bounded."""
    options = hub_memory(tmp_path, 65536)
    with foreground(tmp_path, walk_site.store, mount_root / "m", *options) as running:
        assert walked(tool, running.point) == walked(tool, walk_site.source)
        assert differences(walk_site.source, running.point) == ""
        found = settled(running)
        assert found.cached <= 65536
        assert found.fetches <= len(walk_site.pages) // 8, found


def test_many_readers_of_one_page_cost_one_call(
    tmp_path: Path, mount_root: Path, sized_site: Site
) -> None:
    """Processes that read the same page at once: one call brings it, another what is around it, at most."""
    with foreground(tmp_path, sized_site.store, mount_root / "m") as running:
        hub = running.status()["hub_pid"]
        os.kill(hub, signal.SIGSTOP)
        try:
            readers = [cat(running.point / "small/3.md") for _ in range(8)]
        finally:
            os.kill(hub, signal.SIGCONT)
        found = {reader.communicate(timeout=60)[0] for reader in readers}
        assert found == {sized_site.pages["small/3.md"]}
        assert settled(running).fetches <= 2


def cat(page: Path) -> subprocess.Popen[bytes]:
    """Start to read a page in a process of its own."""
    return subprocess.Popen(["cat", page], stdout=subprocess.PIPE)


# -- single pages --------------------------------------------------------------------------------------

SMALL, HEAVY = 600, 900_000
SIZED = {
    **{f"many/{i:04}.md": text(("many", i), SMALL) for i in range(1000)},
    **{f"heavy/{i}.md": text(("heavy", i), HEAVY) for i in range(5)},
    **{f"small/{i}.md": text(("small", i), SMALL) for i in range(10)},
}


@pytest.fixture(scope="module")
def sized_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Publish a wide directory, one of large pages and a small one."""
    return publish(tmp_path_factory.mktemp("sized"), SIZED)


@pytest.mark.parametrize(
    ("page", "brings"),
    [
        ("many/0000.md", WINDOW_PAGES * SMALL),
        ("many/0500.md", WINDOW_PAGES * SMALL),
        ("many/0999.md", WINDOW_PAGES * SMALL),
        ("heavy/2.md", HEAVY),
        ("heavy/4.md", HEAVY),
    ],
)
def test_one_cat_brings_one_window(
    tmp_path: Path, mount_root: Path, sized_site: Site, page: str, brings: int
) -> None:
    """One page read makes the hub fetch 64 pages or 1 MiB at most, in two calls, however wide the directory."""
    with foreground(tmp_path, sized_site.store, mount_root / "m") as running:
        assert output(["cat", page], running.point) == SIZED[page]
        found = settled(running)
        assert found.cached == brings <= WINDOW_BYTES
        assert found.fetches <= 2
        # What comes behind it in the same queues shows that nothing was still under way.
        assert output(["cat", "small/3.md"], running.point) == SIZED["small/3.md"]
        after = settled(running)
        assert after.cached == brings + 10 * SMALL
        assert after.fetches <= 4
        assert output(["cat", page, "small/9.md"], running.point) == (
            SIZED[page] + SIZED["small/9.md"]
        )
        assert after.fetches == settled(running).fetches


# -- metadata ------------------------------------------------------------------------------------------

LARGE = {f"part {i:02}/{j}.md": text((i, j), 150_000) for i in range(40) for j in range(3)}
LISTINGS = (
    ("ls", "-lR", "."),
    ("find", "."),
    ("find", ".", "-type", "f", "-printf", "%P %s %T@\n"),
    ("find", ".", "-exec", "stat", "-c", "%n %s", "{}", "+"),
    ("du", "-a", "--apparent-size", "."),
)


@pytest.fixture(scope="module")
def large_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Publish twice as many bytes as are ever sent ahead of a walk."""
    site = publish(tmp_path_factory.mktemp("large"), LARGE)
    assert site.size > 2 * AHEAD_BYTES
    return site


def test_metadata_fetches_nothing(tmp_path: Path, mount_root: Path, large_site: Site) -> None:
    """`ls -lR`, `find`, `stat`, `du` make no request to the hub, before any read and right after a walk."""
    with foreground(tmp_path, large_site.store, mount_root / "m") as running:
        for command in LISTINGS:
            assert len(output(command, running.point).splitlines()) >= len(LARGE)
        assert Counts.of(running) == Counts(0, 0, 0)
        some = [f"part {i:02}" for i in range(4)]
        for directory in some:  # a walk that stops
            output(["grep", "-rc", "needle", directory], running.point)
        walk = settled(running)
        assert walk.cached <= AHEAD_BYTES + (len(some) + 1) * WINDOW_BYTES < large_site.size
        for command in LISTINGS:
            output(command, running.point)
        assert settled(running) == walk
        assert differences(large_site.source, running.point) == ""


# -- pages of all sizes --------------------------------------------------------------------------------

READ = 128 << 10  # bytes; the largest read that the kernel makes
EDGES = (0, 1, 4095, 4096, 4097, READ - 1, READ, READ + 1, PUSH_MAX - 1, PUSH_MAX, PUSH_MAX + 1)
LONG = hypothesis.settings.get_current_profile_name() == "long"
HUGE = (64 if LONG else 16) << 20  # bytes; an embedded store takes a minute for 64 MiB


@pytest.fixture(scope="module")
def edge_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Publish pages of every size that is an edge, twice in one directory and once each on its own."""
    pages = {f"all/{size}{half}": text((size, half), size) for size in EDGES for half in "ab"}
    pages |= {f"own {size}/page": text(size, size) for size in EDGES}
    return publish(tmp_path_factory.mktemp("edges"), pages)


READERS = {
    "grep": ("grep", "-rc", "", "."),
    "cat": ("find", ".", "-type", "f", "-exec", "cat", "{}", "+"),
    "mapped": ("rg", "--no-config", "--mmap", "-c", "-a", "", "."),
}


def hub_memory(home: Path, size: int) -> tuple[str, str]:
    """Write a configuration file that lets a hub keep `size` bytes of pages; return the option that names it."""
    (home / "hub.toml").write_text(f"[hub]\nmemory = {size}\n")
    return "--config", str(home / "hub.toml")


@pytest.mark.parametrize("memory", [1 << 16, 1 << 28])
@pytest.mark.parametrize("reader", READERS)
def test_pages_of_every_size(
    tmp_path: Path, mount_root: Path, edge_site: Site, reader: str, memory: int
) -> None:
    """No byte to 1 MiB, around what one read and one push can carry: every byte is right, cold and warm."""
    options = hub_memory(tmp_path, memory)
    with foreground(tmp_path, edge_site.store, mount_root / "m", *options) as running:
        here, there = (
            sorted(output(READERS[reader], top).splitlines())
            for top in (running.point, edge_site.source)
        )
        assert here == there
        assert differences(edge_site.source, running.point) == ""
        assert settled(running).fetches <= 2 * len(edge_site.pages)


@pytest.fixture(scope="module")
def huge_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Publish a page of HUGE bytes, and a small one beside it."""
    home = tmp_path_factory.mktemp("huge")
    pages = {"huge": random.Random(1).randbytes(HUGE // 2).hex().encode(), "small": b"small\n"}
    # In pieces: on a busy machine the writer's signs of life must not wait behind all of it.
    config = home / "pieces.toml"
    config.write_text(f"[stores.huge]\nurl = '{home / 'store'}'\nrows_per_call = 200\n")
    site = publish(home, pages, "huge", "--config", str(config))
    return replace(site, store=str(home / "store"), options=())


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("memory", [1 << 16, 1 << 28])
def test_a_huge_page(tmp_path: Path, mount_root: Path, huge_site: Site, memory: int) -> None:
    """HUGE bytes in one page, hundreds of times the hub's memory or a part of it: one call, and every byte."""
    options = hub_memory(tmp_path, memory)
    with foreground(tmp_path, huge_site.store, mount_root / "m", *options) as running:
        assert output(["cmp", running.point / "huge", huge_site.source / "huge"], tmp_path) == b""
        assert output(["cat", "small"], running.point) == b"small\n"
        assert settled(running).fetches <= 3


# -- a hub that dies or hangs beneath a walk -----------------------------------------------------------


@contextmanager
def grepping(point: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a walk that tells every page as it comes to it."""
    command = ["grep", "-rc", "--line-buffered", "needle", "."]
    process = subprocess.Popen(
        command,
        bufsize=0,  # a line that was read ahead would be lost to communicate()
        cwd=point,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[bytes], number: int) -> list[bytes]:
    """Return the next lines of a walk."""
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(number)]


def rest_of(process: subprocess.Popen[bytes]) -> list[bytes]:
    """Return what a walk has still to say."""
    return process.communicate(timeout=120)[0].splitlines(keepends=True)


def expected_counts(site: Site) -> list[bytes]:
    """Return what `grepping` says of a tree that is whole."""
    return sorted(
        f"./{path}:{data.count(b'needle')}\n".encode() for path, data in site.pages.items()
    )


def new_hub(running: Running, old: int) -> int:
    """Wait until another hub serves; return its pid."""
    found = wait_for(
        lambda: (
            (told := running.status())["hub"] == "ok" and told["hub_pid"] != old and told["hub_pid"]
        ),
        timeout=30,
        what="another hub answers",
    )
    assert isinstance(found, int)
    return found


def test_a_hub_killed_again_and_again_in_a_walk(
    tmp_path: Path, mount_root: Path, large_site: Site
) -> None:
    """Killed before the first page, and in the middle, and while another walks: each page comes, and is right."""
    with foreground(tmp_path, large_site.store, mount_root / "m") as running:
        hub = running.status()["hub_pid"]
        os.kill(hub, signal.SIGKILL)
        with grepping(running.point) as walk:
            found = []
            for step in (1, 20, 40):
                found += lines_of(walk, step)
                hub = new_hub(running, hub)
                os.kill(hub, signal.SIGKILL)
            found += rest_of(walk)
        assert sorted(found) == expected_counts(large_site)
        assert differences(large_site.source, running.point) == ""


def test_a_hub_stopped_in_a_walk(tmp_path: Path, mount_root: Path, large_site: Site) -> None:
    """While the hub is stopped names are listed and pages that were read are there; let go, the walk goes on."""
    with foreground(tmp_path, large_site.store, mount_root / "m") as running:
        hub = running.status()["hub_pid"]
        with grepping(running.point) as walk:
            (first,) = lines_of(walk, 1)
            os.kill(hub, signal.SIGSTOP)
            try:
                output(["ls", "-lR", "."], running.point)
                read = first.decode().rpartition(":")[0].removeprefix("./")
                assert (running.point / read).read_bytes() == large_site.pages[read]
            finally:
                os.kill(hub, signal.SIGCONT)
            found = [first, *rest_of(walk)]
        assert sorted(found) == expected_counts(large_site)
        assert differences(large_site.source, running.point) == ""


@pytest.mark.parametrize("kept", [True, False], ids=["tree kept", "tree gone"])
def test_a_hub_of_another_tree_pushes_nothing_wrong(
    tmp_path: Path, mount_root: Path, kept: bool
) -> None:
    """Published anew and the hub killed in a walk: each page has its old bytes, or is ESTALE, never others."""
    old = {f"d{i:02}/{j}.md": text(("old", i, j), 30_000) for i in range(20) for j in range(4)}
    # The same inodes and sizes with other bytes, and every inode behind d04 another page.
    new = {path: data.replace(b"old", b"new") for path, data in old.items()} | {
        "d04/0a.md": text("more", 30_000)
    }
    site = publish(tmp_path, old)
    with foreground(tmp_path, site.store, mount_root / "m") as running:
        hub = running.status()["hub_pid"]
        for path in ("d00/0.md", "d01/1.md"):
            assert (running.point / path).read_bytes() == old[path]
        settled(running)
        publish(tmp_path, new)
        if not kept:
            shutil.rmtree(tmp_path / "cache")
        with grepping(running.point) as walk:
            os.kill(hub, signal.SIGKILL)
            rest_of(walk)
        new_hub(running, hub)
        found = {path: read_or_errno(running.point / path) for path in old}
        assert found == {
            path: errno.ESTALE if found[path] == errno.ESTALE else data
            for path, data in old.items()
        }
        assert found["d00/0.md"] == old["d00/0.md"]
        assert sorted(os.listdir(running.point / "d04")) == [f"{j}.md" for j in range(4)]


def read_or_errno(page: Path) -> bytes | int:
    """Return the bytes of a page, or the errno that reading it ends with."""
    try:
        return page.read_bytes()
    except OSError as exc:
        return exc.errno or 0


# -- a kernel that gives pages up ----------------------------------------------------------------------


def drop_caches(running: Running, site: Site) -> None:
    """Have the kernel give up every page, and where it is allowed every name."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:  # a container's is read-only
        for path in site.pages:
            drop_page(running.point / path)


def drop_page(page: Path) -> None:
    """Have the kernel give up one page."""
    with open(page, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_walk_after_the_kernel_dropped_everything(
    tmp_path: Path, mount_root: Path, walk_site: Site
) -> None:
    """The hub has every page: walks from an empty kernel make no call, few requests, and find every byte."""
    with foreground(tmp_path, walk_site.store, mount_root / "m") as running:
        expected = walked("grep", walk_site.source)
        assert walked("grep", running.point) == expected
        before = settled(running)
        for tool in WALKS:
            drop_caches(running, walk_site)
            assert walked(tool, running.point) == walked(tool, walk_site.source)
            after = settled(running)
            assert after.fetches == before.fetches
            assert after.requests - before.requests <= len(walk_site.pages) // 8, tool
            before = after
        assert differences(walk_site.source, running.point) == ""


def test_single_pages_that_the_kernel_gave_up(
    tmp_path: Path, mount_root: Path, walk_site: Site
) -> None:
    """Five pages dropped, far from one another: they are read again, one request each, and nothing else.

    In one of a few tries: this kernel gives up pages by itself as well.
    """
    lost = [f"section {i:02}/05.md" for i in (3, 9, 15, 21, 27)]
    with foreground(tmp_path, walk_site.store, mount_root / "m") as running:
        assert differences(walk_site.source, running.point) == ""
        for _ in range(QUIET):
            before = quiet(running, walk_site)
            for path in lost:
                drop_page(running.point / path)
            assert walked("grep", running.point) == walked("grep", walk_site.source)
            if settled(running) == replace(before, requests=before.requests + len(lost)):
                break
        else:
            raise AssertionError(f"in {QUIET} tries never {len(lost)} requests alone")


def quiet(running: Running, site: Site) -> Counts:
    """Walk until nothing is asked for any more."""
    for _ in range(QUIET):
        before = Counts.of(running)
        walked("grep", running.point)
        if settled(running) == before:
            return before
    raise AssertionError(f"{QUIET} walks of {len(site.pages)} pages, each with requests")
