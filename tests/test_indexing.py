"""Keeping an index of a tree: whole or none, built once, little at a time, and again when it is damaged."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from chromafuse.errors import RecordDamaged, StoreUnavailable
from chromafuse.hub import indexing as indexing_module
from chromafuse.hub.index import Index, IndexDamaged, sealed_files
from chromafuse.hub.indexing import BATCH_BYTES, BATCH_PAGES, Indexing, Remembered
from tests.support.indexed import KEY, Site, builders, indexing, numbered, reaches
from tests.support.logguard import LogGuard
from tests.support.needed import one
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon after a failure."""
    monkeypatch.setattr(indexing_module, "RETRY", 0.05)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Give a directory that is not there yet."""
    return tmp_path / "so?me #1 %41 \u00e9" / "cache"


async def built(site: Site, home: Path) -> int:
    """Index a site to the end; return how many loads that took."""
    before = len(site.loads)
    async with indexing(site, home) as found:
        await reaches(found, "ready")
        assert found.index is not None
        assert await trio.to_thread.run_sync(found.index.missing, site.versions.values()) == []
    return len(site.loads) - before


async def searched(index: Index | None, literal: str) -> set[bytes]:
    """Return what an index has for a literal."""
    assert index is not None
    rows = await trio.to_thread.run_sync(index.search, one(literal))
    assert rows is not None
    return set(index.versions_of(rows))


def test_a_tree_is_indexed_once_for_all(home: Path) -> None:
    """The first hub builds, without being asked; the next one, and one with a page less, load nothing at all."""
    site = numbered(300)
    smaller = Site({path: site._pages[path] for path in list(site._pages)[1:]})

    async def main() -> None:
        async with indexing(site, home) as found:
            await reaches(found, "ready")
            assert await searched(found.index, "0042") == {site.versions["page-0042.md"]}
        assert sorted(site.loaded) == sorted(site.versions)
        assert await built(site, home) == 0
        assert await built(smaller, home) == 0

    trio.run(main)
    assert builders() == []


def test_only_new_pages_are_loaded_for_a_new_tree(home: Path) -> None:
    """After a publication the builder is given the pages that it has not seen."""
    site = numbered(50)
    changed = Site({**site._pages, "page-0007.md": b"another text\n", "new.md": b"new\n"})

    async def main() -> None:
        await built(site, home)
        await built(changed, home)

    trio.run(main)
    assert changed.loads == [["new.md", "page-0007.md"]]


def test_a_build_asks_for_little_at_a_time(home: Path) -> None:
    """No load is over the bounds, none is half empty without reason, and no page is loaded twice."""
    small, large = numbered(600), numbered(30, size=200_000)

    async def main() -> None:
        assert await built(small, home) == -(-600 // BATCH_PAGES)
        assert await built(large, home) == 30 // (BATCH_BYTES // 200_000)

    trio.run(main)
    assert [len(small.loaded), len(large.loaded)] == [600, 30]


def test_two_hubs_build_one_index(home: Path) -> None:
    """Of two that start at once one builds, the other waits and loads nothing, and both have the index."""
    sites = [numbered(400), numbered(400)]

    async def main() -> None:
        async with indexing(sites[0], home) as first, indexing(sites[1], home) as second:
            for found in (first, second):
                await reaches(found, "ready")
                assert await searched(found.index, "0399") == {sites[0].versions["page-0399.md"]}

    trio.run(main)
    assert sorted(len(site.loaded) for site in sites) == [0, 400]
    assert len(sealed_files(home, KEY)) == 1


def test_two_hubs_of_two_trees_have_both_their_index(home: Path) -> None:
    """Hubs whose trees have nothing in common build after each other; each keeps an index of its own tree."""
    sites = [numbered(40), Site({f"other-{n}.md": b"other %d\n" % n for n in range(60)})]

    async def main() -> None:
        async with indexing(sites[0], home) as first, indexing(sites[1], home) as second:
            await reaches(first, "ready")
            await reaches(second, "ready")
            assert await searched(first.index, "0012") == {sites[0].versions["page-0012.md"]}
            assert await searched(second.index, "other 12") == {sites[1].versions["other-12.md"]}

    trio.run(main)
    assert [sorted(site.loaded) for site in sites] == [sorted(site.versions) for site in sites]


# -- ends in the middle ------------------------------------------------------------------------------------


@pytest.mark.expect_log("the index cannot be built: the process that builds it ended")
def test_a_builder_that_is_killed_is_started_again(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGKILL in the middle, twice: one warning, no index meanwhile, and then a whole one."""
    site = numbered(1_000)

    def kill(number: int) -> None:
        if number in (3, 6):
            for pid in builders():
                os.kill(pid, signal.SIGKILL)

    async def main() -> None:
        site.before = kill
        async with indexing(site, home) as found:
            await reaches(found, "failed")
            assert found.index is None
            await reaches(found, "ready")
            assert await searched(found.index, "0999") == {site.versions["page-0999.md"]}

    trio.run(main)
    assert len(caplog.records) == 1
    assert [path.suffix for path in sorted(home.iterdir())] == [".index", ".lock"]


def test_a_hub_that_ends_leaves_what_it_has_built(home: Path) -> None:
    """A build that is broken off is gone on with by the next hub: no page is loaded twice but those of a batch."""
    site = numbered(1_000)

    async def main() -> None:
        with trio.CancelScope() as scope:
            site.before = lambda number: scope.cancel() if number == 4 else None
            async with indexing(site, home) as found:
                await reaches(found, "ready")
        assert scope.cancelled_caught
        site.before = None
        await built(site, home)

    trio.run(main)
    assert builders() == []
    assert len(site.loaded) <= 1_000 + 3 * BATCH_PAGES
    assert set(site.loads[4]).isdisjoint(site.loads[0] + site.loads[1])


_KILLED_HUB = """
import sys, trio
from pathlib import Path
from tests.support.indexed import indexing, numbered
async def main():
    site = numbered(1_000)
    def stop(number):
        if number == 3:
            print("in the middle", flush=True)
            signal.pause()
    import signal
    site.before = stop
    async with indexing(site, Path(sys.argv[1])):
        await trio.sleep_forever()
trio.run(main)
"""


def test_a_hub_that_is_killed_takes_its_builder_along(home: Path) -> None:
    """SIGKILL of the hub: its builder seals what it has and ends, and the next hub goes on from there."""
    site = numbered(1_000)
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED_HUB, home], cwd=root, stdout=subprocess.PIPE
    ) as hub:
        try:
            assert hub.stdout is not None
            hub.stdout.readline()
            (builder,) = builders(hub.pid)
        finally:
            hub.kill()
    wait_for(lambda: not Path(f"/proc/{builder}/exe").exists(), what="the builder's end")
    trio.run(built, site, home)
    assert 0 < len(site.loaded) < 1_000


def test_a_killed_builder_loses_what_was_not_sealed_and_no_more(home: Path) -> None:
    """Pages that were sealed before a SIGKILL are not loaded again."""
    site = numbered(24, size=1 << 20)

    async def main() -> None:
        with trio.CancelScope() as scope:

            def kill(number: int) -> None:
                if number == 22:  # sealed after 16
                    os.kill(builders()[0], signal.SIGKILL)
                    scope.cancel()

            site.before = kill
            async with indexing(site, home) as found:
                await reaches(found, "ready")
        site.before = None
        site.loads.clear()
        await built(site, home)

    trio.run(main)
    assert site.loaded == sorted(site.versions)[16:]


# -- damage ------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 4
    path.write_bytes(data)


def overwrite(path: Path) -> None:
    """Fill a file with zeros, in place."""
    with open(path, "r+b") as stream:
        stream.write(bytes(path.stat().st_size))


@pytest.mark.parametrize("at", [20, 5_000, -1])
@pytest.mark.expect_log("the index is built again")
def test_an_index_that_is_damaged_is_built_again(
    home: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped bit at the next start: one warning, and a new index from all pages."""
    site = numbered(100)

    async def main() -> None:
        await built(site, home)
        flip(sealed_files(home, KEY)[0], at)
        assert await built(site, home) == 1

    trio.run(main)
    assert (len(caplog.records), len(site.loaded)) == (1, 200)


@pytest.mark.expect_log("cannot be read: ")
def test_an_index_that_breaks_while_it_is_used_is_built_again(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A search that finds the file broken reports it: there is none until another one is built."""
    site = numbered(3_000)

    async def main() -> None:
        async with indexing(site, home) as found:
            await reaches(found, "ready")
            index = found.index
            assert index is not None
            overwrite(index.path)
            with pytest.raises(IndexDamaged) as caught:
                await searched(index, "0042")
            found.damaged(index, caught.value)
            found.damaged(index, caught.value)  # by another search
            assert (found.index, found.state) == (None, "building")
            await reaches(found, "ready")
            assert await searched(found.index, "0042") == {site.versions["page-0042.md"]}

    trio.run(main)
    assert len(caplog.records) == 1


def test_an_index_with_many_dead_rows_is_used_until_there_is_another(home: Path) -> None:
    """Three rows in ten dead: what is there serves at once, and is replaced by one with the tree's rows alone."""
    site = numbered(100)
    smaller = Site({path: site._pages[path] for path in list(site._pages)[:70]})

    async def main() -> None:
        await built(site, home)
        (first,) = sealed_files(home, KEY)
        async with indexing(smaller, home) as found:
            await reaches(found, "ready")
            assert found.index is not None
            assert found.index.path == first
            with trio.fail_after(30):
                while found.index.path == first:  # noqa: ASYNC110 - its state stays "ready"
                    await trio.sleep(0.01)
            assert found.state == "ready"
            assert await searched(found.index, "page") == set(smaller.versions.values())

    trio.run(main)
    assert sorted(smaller.loaded) == sorted(smaller.versions)


# -- places ------------------------------------------------------------------------------------------------


def test_what_is_written_is_for_its_owner_alone(home: Path) -> None:
    """Under a umask of zero the directory is 0700 and every file 0600."""
    before = os.umask(0)
    try:
        trio.run(built, numbered(10), home)
    finally:
        os.umask(before)
    found = [stat.S_IMODE(path.stat().st_mode) for path in (home, *home.iterdir())]
    assert found == [0o700, 0o600, 0o600]


@pytest.fixture
def place(home: Path, request: pytest.FixtureRequest) -> Path | None:
    """Give a place that cannot be used."""
    match request.param:
        case "none":
            return None
        case "file":
            home.parent.mkdir()
            home.write_text("x")
        case "open":
            home.mkdir(parents=True)
            home.chmod(0o755)
    return home


@pytest.mark.parametrize("place", ["none", "file", "open"], indirect=True)
def test_a_place_that_is_not_for_us_means_no_index(
    place: Path | None, log_guard: LogGuard, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a directory of our own nothing is built and nothing loaded; one warning where one was named."""
    site = numbered(3)
    if place is not None:
        log_guard.expect("no index is kept: ")

    async def main() -> None:
        async with indexing(site, place) as found:
            await reaches(found, "off")
            assert found.index is None

    trio.run(main)
    assert (site.loads, len(caplog.records)) == ([], place is not None)


@pytest.fixture
def narrow(mount_root: Path) -> Iterator[Path]:
    """Give a directory on a file system of 128 kB."""
    place = mount_root / "narrow"
    place.mkdir()
    options = "size=128k,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.mount
@pytest.mark.expect_log("the index cannot be built: ")
def test_a_full_disk_means_no_index_until_there_is_room(
    narrow: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No space: one warning, nothing left behind, and an index as soon as it fits."""
    site = Site({f"{n}.md": b"%d " % n**9 * 2_000 for n in range(200)})

    async def main() -> None:
        async with indexing(site, narrow) as found:
            await reaches(found, "failed")
            await reaches(found, "building")
            await reaches(found, "failed")
            assert os.listdir(narrow) == [f"{KEY}.lock"]
            subprocess.run(["mount", "-o", "remount,size=64m", narrow], check=True)  # noqa: ASYNC221
            await reaches(found, "ready")

    trio.run(main)
    assert len(caplog.records) == 1


@pytest.mark.mount
@pytest.mark.expect_log("the index cannot be built: ", maybe=True)
def test_an_index_that_is_there_serves_from_a_read_only_place(narrow: Path) -> None:
    """A directory that cannot be written serves what is in it, and no other index is built."""
    site, more = numbered(20), numbered(21)

    async def main() -> None:
        await built(site, narrow)
        subprocess.run(["mount", "-o", "remount,ro", narrow], check=True)  # noqa: ASYNC221
        assert await built(site, narrow) == 0
        async with indexing(more, narrow) as found:
            await reaches(found, "failed")

    trio.run(main)


# -- the store ---------------------------------------------------------------------------------------------


def test_pages_that_cannot_be_had_are_candidates_for_everything(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged page and one that is too large hold nothing up: they are named, and the index is whole."""
    monkeypatch.setattr(indexing_module, "PAGE_MAX", 1_000)
    pages = {"a.md": b"fine\n", "damaged.md": b"x\n", "large.md": b"y" * 1_001}
    site = Site(pages)
    site.errors["damaged.md"] = RecordDamaged("damaged.md: no digest")

    async def main() -> None:
        async with indexing(site, home) as found:
            await reaches(found, "ready")
            assert found.unread == {site.versions["damaged.md"], site.versions["large.md"]}

    trio.run(main)
    assert site.loaded == ["a.md", "damaged.md"]


def test_a_store_that_does_not_answer_is_asked_again(home: Path) -> None:
    """An outage in the middle is nobody's warning here; the build goes on where it was."""
    site = numbered(600)

    def fail(number: int) -> None:
        if number == 3:
            raise StoreUnavailable("down")

    async def main() -> None:
        site.before = fail
        async with indexing(site, home) as found:
            await reaches(found, "failed")
            assert (found.index, found.error) == (None, "down")
            await reaches(found, "ready")

    trio.run(main)
    assert len(site.loaded) < 600 + 3 * BATCH_PAGES


class _Instant:
    """A builder that takes everything at once."""

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def answer(self) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        return {}


@pytest.mark.parametrize(("reading", "seconds"), [(False, 4), (True, 4 + 4 * 8)])
def test_building_gives_way_to_readers(reading: bool, seconds: int) -> None:
    """While somebody reads, a build rests eight times as long as it works; else it does not rest."""
    site = numbered(4 * BATCH_PAGES)
    reads = 0

    async def load(entries: Sequence[object]) -> dict[bytes, bytes]:
        nonlocal reads
        reads += reading
        await trio.sleep(1)
        return {}

    async def main() -> None:
        found = Indexing(None, KEY, site.entries, load, activity=lambda: reads)  # type: ignore[arg-type]
        await found._feed(_Instant(), site.entries)  # type: ignore[arg-type]
        assert trio.current_time() - started == pytest.approx(seconds)

    clock = MockClock(autojump_threshold=0)
    started = clock.current_time()
    trio.run(main, clock=clock)


def test_what_is_in_memory_is_not_loaded() -> None:
    """The cache in front of the store gives what the hub remembers, and keeps nothing."""
    site = numbered(3)
    first, *_ = site.versions.values()
    cache = Remembered({first: b"page"}.get)
    assert trio.run(cache.find, site.entries) == {first: b"page"}
    cache.keep({b"v": b"page"})
    assert trio.run(cache.find, site.entries) == {first: b"page"}


@pytest.mark.expect_log("no process can be started: ")
def test_a_process_that_cannot_be_started_is_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no process can be had there is no index for now, and the hub lives."""
    site = numbered(3)

    async def main() -> None:
        async with indexing(site, home) as found:
            with monkeypatch.context() as patch:
                patch.setattr(indexing_module.sys, "executable", "/nowhere/python3")
                await reaches(found, "failed")
                await reaches(found, "building")
                await reaches(found, "failed")
            await reaches(found, "ready")

    trio.run(main)
    assert len(caplog.records) == 1


@pytest.mark.expect_log("by a bug")
def test_a_bug_costs_the_index_and_nothing_else(home: Path) -> None:
    """An exception that nobody thought of is in the log; the build is tried again."""
    site = numbered(3)

    def fail(number: int) -> None:
        if number == 1:
            raise ZeroDivisionError

    async def main() -> None:
        site.before = fail
        async with indexing(site, home) as found:
            await reaches(found, "failed")
            await reaches(found, "ready")

    trio.run(main)
