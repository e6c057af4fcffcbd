"""Mounts that share a Redis: the command line, `status`, the password, and a Redis that fails beneath readers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chromafuse.hub.redislocation import RedisSettings, parse_redis
from chromafuse.model.access import Identity, Kind
from chromafuse.store.location import StoreLocation, parse_store
from tests.support.hub import HubProcess, hub_process
from tests.support.ingesting import write_tree
from tests.support.mounts import PAGES, Running, foreground, is_live, small_store  # noqa: F401
from tests.support.program import chromafuse, ok, output
from tests.support.redis_server import RedisProcess, redis_fixture, redis_process  # noqa: F401
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.chroma]

OPERATOR = Identity(Kind.UNRESTRICTED)
SECRET = "correct-horse-battery"
PATIENT = "timeout = 20000\n"  # a busy machine must not look like a Redis that hangs
SHARED = ("redis", "redis_hits", "redis_misses", "redis_wrong", "store_calls")


@contextmanager
def mounted(
    home: Path, store: Path, point: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Mount in the foreground, without an index: its build reads pages, too, and these tests count calls."""
    place = home / "cache" / "chromafuse"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    (place / "index").touch()  # where its directory would be
    with foreground(home, store, point, *options, env=env, ready=False) as running:
        wait_for(
            lambda: is_live(point) and chromafuse(home, "status", point).returncode == 0,
            timeout=60,
            what="a mount that answers",
        )
        yield running


def facts(running: Running) -> tuple[Any, ...]:
    """Return what `status` counts of cache and store."""
    found = running.status()
    return tuple(found[name] for name in SHARED)


def configured(home: Path, redis: RedisProcess, more: str = "") -> tuple[str, str]:
    """Write a configuration file that names a Redis; return the option that names the file."""
    text = f"[redis]\nurl = '{redis.url}'\n{PATIENT}{more}"
    (home / "redis.toml").write_text(text)
    return "--config", str(home / "redis.toml")


def contents(point: Path) -> dict[str, bytes]:
    """Return every page below a mountpoint."""
    return {
        str(path.relative_to(point)): path.read_bytes()
        for path in sorted(point.rglob("*"))
        if path.is_file()
    }


# -- two hubs ------------------------------------------------------------------------------------------


@contextmanager
def hub(
    location: StoreLocation, tmp_path: Path, redis: RedisProcess, name: str, timeout: int = 20_000
) -> Iterator[HubProcess]:
    """Start a hub without caches on disk, as on a host of its own."""
    settings = RedisSettings(parse_redis(redis.url), timeout=timeout)
    place = tmp_path / name
    place.mkdir()
    with hub_process(
        location, place, OPERATOR, redis=settings.to_json(), cache_dir=None
    ) as started:
        event = started.event()
        assert event is not None
        assert event["event"] == "ready"
        yield started


def read_all(started: HubProcess) -> dict[str, bytes | int]:
    """Read every page of the snapshot."""
    greeting, snapshot = started.client.greet()
    assert snapshot is not None
    return {
        snapshot.path(inode): started.client.read(greeting.generation, inode)
        for inode in snapshot.pages()
    }


def status(started: HubProcess) -> dict[str, Any]:
    """Ask a hub for its status."""
    started.send(ask="status")
    event = started.event()
    assert event is not None
    return event


def test_the_second_hub_reads_everything_without_the_store(
    store: Path, tmp_path: Path, redis: RedisProcess
) -> None:
    """What one hub has read another gets from Redis: its cold read of all pages makes no store call."""
    location = parse_store(str(store))
    with hub(location, tmp_path, redis, "one") as one:
        assert read_all(one) == PAGES
        assert status(one)["store_calls"] > 0
        wait_for(lambda: len(redis.pages()) == 3, what="the pages that are not empty in Redis")
    with hub(location, tmp_path, redis, "two") as two:
        assert read_all(two) == PAGES
        told = status(two)
        assert {name: told[name] for name in told if name.startswith(("redis", "store_calls"))} == {
            "store_calls": 0,
            "redis": "up",
            "redis_server": redis.url,
            "redis_error": "",
            "redis_hits": 3,
            "redis_misses": 0,
            "redis_wrong": 0,
            "redis_written": 0,
        }


def test_a_hub_that_starts_and_ends_beside_a_hanging_redis(
    store: Path, tmp_path: Path, redis: RedisProcess
) -> None:
    """A stopped Redis delays neither the start nor the end of a hub for long, and no page is wrong."""
    redis.signal(signal.SIGSTOP)
    with hub(parse_store(str(store)), tmp_path, redis, "one", timeout=250) as one:
        assert read_all(one) == PAGES
        told = status(one)
        assert (told["redis"], told["redis_hits"], told["store_calls"] > 0) == ("down", 0, True)
        one.process.terminate()
        assert one.process.wait(timeout=10) == 0
    said = one.log.read_text()
    assert said.count("the shared cache does not answer") == said.count("\n") == 1


# -- mounts --------------------------------------------------------------------------------------------


def test_a_redis_that_goes_and_comes_beneath_a_mount(
    tmp_path: Path, mount_root: Path, store: Path, redis: RedisProcess
) -> None:
    """Killed beneath a mount: pages are right, `status` says so; back: pages lie in it again."""
    options = (*configured(tmp_path, redis), "--unrestricted")
    with mounted(tmp_path, store, mount_root / "one", *options) as one:
        redis.kill()
        assert contents(one.point) == PAGES
        assert facts(one)[:2] == ("down", 0)
        listed = ok(chromafuse(tmp_path, "status")).splitlines()
        (line,) = [line for line in listed if line.startswith(f"{one.point} ")]
        assert "live, redis down" in line
        redis.start()
        wait_for(lambda: facts(one)[0] == "up", what="it is taken up again")
        _, said = one.end()
        told = [line for line in said.splitlines() if "shared cache" in line]
        assert ["again" in line for line in told] == [False, True]
    with mounted(tmp_path, store, mount_root / "two", *options) as two:
        assert contents(two.point) == PAGES
        wait_for(lambda: len(redis.pages()) == 3, what="the pages in Redis")
        assert facts(two)[:4] == ("up", 0, 3, 0)
    with mounted(tmp_path, store, mount_root / "three", *options) as three:
        assert contents(three.point) == PAGES
        assert facts(three) == ("up", 3, 0, 0, 0)


def test_what_one_identity_put_in_redis_another_does_not_see(
    tmp_path: Path, mount_root: Path, store: Path, redis: RedisProcess
) -> None:
    """Redis full of all pages changes nothing for an anonymous mount: what is hidden is absent."""
    options = configured(tmp_path, redis)
    with mounted(tmp_path, store, mount_root / "all", *options, "--unrestricted") as one:
        assert contents(one.point) == PAGES
        wait_for(lambda: len(redis.pages()) == 3, what="the pages in Redis")
    with mounted(tmp_path, store, mount_root / "anonymous", *options) as other:
        seen = {path: PAGES[path] for path in ("open.md", "name with blanks ü.md")}
        assert contents(other.point) == seen
        assert not os.path.lexists(other.point / "deep")
        assert facts(other) == ("up", 1, 0, 0, 0)


@pytest.mark.parametrize("by", ["file", "variable", "configuration"])
def test_the_password_is_used_and_seen_nowhere(
    tmp_path: Path, mount_root: Path, store: Path, by: str
) -> None:
    """However it is given, the hub has it, and neither argv, `status`, the log nor the view's environment."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    env: Mapping[str, str] = {}
    with redis_process(password=SECRET) as redis:
        options = ["--redis", redis.url]
        if by == "file":
            options += ["--redis-password-file", str(tmp_path / "secret")]
        elif by == "variable":
            env = {"CHROMAFUSE_REDIS_PASSWORD": SECRET}
        else:
            options = list(configured(tmp_path, redis, "password_file = 'secret'\n"))
        with mounted(
            tmp_path, store, mount_root / "m", *options, "--unrestricted", env=env
        ) as running:
            assert contents(running.point) == PAGES
            wait_for(lambda: len(redis.pages()) == 3, what="the pages in Redis")
            found = running.status()
            assert found["redis"] == "up"
            assert SECRET not in json.dumps(found)
            assert SECRET not in ok(chromafuse(tmp_path, "status", running.point))
            pids = [running.process.pid, found["hub_pid"], found["view_pid"]]
            for pid in pids:
                assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            view = Path(f"/proc/{found['view_pid']}/environ").read_bytes()
            assert SECRET.encode() not in view
            assert b"REDIS" not in view
            _, said = running.end()
    assert SECRET not in said


def test_a_mount_with_hardly_any_memory(
    tmp_path: Path, mount_root: Path, redis: RedisProcess
) -> None:
    """With 64 kB for pages, an empty page, many small ones and two over the memory are read right, twice."""
    site = {
        f"dir{number % 7}/page{number}.md": b"page %d\n" % number * 700 for number in range(120)
    }
    site |= {
        "empty.md": b"",
        "large.md": b"0123456789abcde\n" * 100_000,
        "raw.bin": bytes(range(256)) * 999,
    }
    source = write_tree(tmp_path / "source", site)
    ok(chromafuse(tmp_path, "ingest", source, tmp_path / "store", "--default-access", "public"))
    options = configured(tmp_path, redis, "[hub]\nmemory = 65536\n")
    for name, calls in (("one", True), ("two", False)):
        point = mount_root / name
        with mounted(tmp_path, tmp_path / "store", point, *options) as running:
            for _ in range(2):
                assert contents(point) == site
            expected = output(["grep", "-rc", "page 1", "."], source, exits=(0, 1))
            found = output(["grep", "-rc", "page 1", "."], point, exits=(0, 1))
            assert sorted(found.splitlines()) == sorted(expected.splitlines())
            assert running.status()["cache_bytes"] <= 65536 + len(site["large.md"])
            assert (running.status()["store_calls"] > 0) == calls
            wait_for(lambda: len(redis.pages()) == len(site) - 1, what="the pages in Redis")


def test_two_processes_that_read_one_page_cause_one_call(tmp_path: Path, mount_root: Path) -> None:
    """Two processes read the same uncached page while the store stands still: one call, two right answers."""
    site = {"page.md": b"some line of text\n" * 5_000}
    source = write_tree(tmp_path / "source", site)
    ok(chromafuse(tmp_path, "ingest", source, tmp_path / "store", "--default-access", "public"))
    with mounted(tmp_path, tmp_path / "store", mount_root / "m") as running:
        before = running.status()
        command = ["head", "-c", "100000000", running.point / "page.md"]
        worker = _worker(before["hub_pid"])
        os.kill(worker, signal.SIGSTOP)
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE) as one,
            subprocess.Popen(command, stdout=subprocess.PIPE) as two,
        ):
            try:
                for pid in (one.pid, two.pid):
                    wait_for(partial(_reads, pid, running.point), what="a reader waits")
            finally:
                os.kill(worker, signal.SIGCONT)
            for reader in (one, two):
                assert reader.communicate(timeout=20)[0] == site["page.md"]
        assert running.status()["store_calls"] == before["store_calls"] + 1


def _worker(hub_pid: int) -> int:
    """Return the pid of a hub's store worker."""
    children = Path(f"/proc/{hub_pid}/task/{hub_pid}/children").read_text().split()
    (worker,) = [
        int(pid)
        for pid in children
        if b"chromafuse.store.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return worker


def _reads(pid: int, point: Path) -> bool:
    """Say whether a process sleeps with a page of this mount open: it waits in its read."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    opened = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    return state in "SD" and any(name.startswith(str(point)) for name in opened)


# -- the command line ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (
            ["--redis", f"redis://:{SECRET}@localhost"],
            2,
            "a Redis URL takes no password, it would show in process lists; put it into a file and name that "
            "with --redis-password-file, or set CHROMAFUSE_REDIS_PASSWORD",
        ),
        (["--redis", ""], 2, "--redis is empty; name one, or leave it out"),
        (
            ["--redis", "localhost"],
            2,
            "the Redis URL is malformed; it is redis[s]://[user@]host[:port][/database][?ca_file=F], or "
            "unix:///path[?db=N]",
        ),
        (
            ["--redis-password-file", "/secret"],
            2,
            "--redis-password-file goes with a Redis; name one with --redis",
        ),
        (
            ["--redis", "redis://localhost", "--redis-password-file", "/nowhere/secret"],
            1,
            "cannot read the Redis password file /nowhere/secret: No such file or directory",
        ),
    ],
)
def test_what_is_wrong_with_the_redis_is_one_line(
    tmp_path: Path, mount_root: Path, store: Path, options: list[str], code: int, says: str
) -> None:
    """A mistake about the Redis ends the command before anything is started, without the secret."""
    point = mount_root / "m"
    point.mkdir()
    done = chromafuse(tmp_path, "mount", store, point, *options)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"chromafuse: {says}\n")


def test_off_beats_the_configuration(
    tmp_path: Path, mount_root: Path, store: Path, redis: RedisProcess
) -> None:
    """`--redis off` mounts without the Redis that the configuration names."""
    options = (*configured(tmp_path, redis), "--redis", "off")
    with mounted(tmp_path, store, mount_root / "m", *options) as running:
        assert running.status()["redis"] == "off"
        with redis.client() as client:
            assert client.info("stats")["total_connections_received"] <= 3  # the test's own
