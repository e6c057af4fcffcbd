"""The shared cache over a real Redis: what is kept, what is served, and every way in which a Redis fails."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio
import zstandard

from chromafuse.errors import CacheError, StoreUnavailable
from chromafuse.hub.health import PROBE
from chromafuse.hub.redislocation import RedisLocation, RedisSettings, parse_redis
from chromafuse.hub.shared import BATCH_BYTES, BATCH_PAGES, PAUSE, PREFIX, WAITING, SharedCache
from chromafuse.model.entry import TreeEntry
from tests.support.logguard import LogGuard
from tests.support.memory_store import Fault
from tests.support.redis_server import (
    Certificate,
    RedisProcess,
    redis_fixture,  # noqa: F401
    redis_process,
    tls_process,
)
from tests.support.shared import Site, run, turn_clock, until

PAGES = {f"page {number}": b"line of page %d\n" % number * 20 for number in range(10)}
DOWN = "the shared cache does not answer: CacheError: "
AGAIN = "the shared cache answers again"
WRONG = "the shared cache has wrong bytes under a key of ours"


def key(entry: TreeEntry) -> str:
    """Return where a page lies in Redis."""
    return f"chromafuse:1:{entry.version.hex()}"


async def fill(site: Site, redis: RedisProcess) -> None:
    """Have one loader put the whole site into Redis."""
    async with site.loader(redis.url) as first:
        assert await first.bytes_of(site.entries) == site.pages
        await until(lambda: first.cache.written == len(site.entries), "all pages written")


# -- what is kept and served ---------------------------------------------------------------------------


def test_what_one_hub_read_another_gets_without_the_store(redis: RedisProcess) -> None:
    """Two loaders share a Redis: the second asks the store nothing, and Redis once for all pages."""
    site = Site(PAGES)

    async def body() -> None:
        await fill(site, redis)
        assert redis.pages() == sorted(map(key, site.entries))
        assert redis.calls("set") == len(PAGES)
        with redis.client() as client:
            client.config_resetstat()
        async with site.loader(redis.url) as second:
            assert await second.bytes_of(site.entries) == site.pages
            assert (second.from_store.calls, second.store.calls) == (0, [])
            assert (second.cache.hits, second.cache.misses, second.cache.calls) == (10, 0, 1)
            assert redis.calls("mget") == 2  # the first look, and the pages
            assert redis.calls("set") == 0

    run(site, body)


def test_pages_stay_for_their_time(redis: RedisProcess) -> None:
    """Every key has the time to live that was asked for, so what nobody reads goes away."""
    site = Site(PAGES)

    async def body() -> None:
        async with site.loader(redis.url, ttl=500) as loader:
            await loader.bytes_of(site.entries)
            await until(lambda: loader.cache.written == 10, "all pages written")
        with redis.client() as client:
            times = {client.ttl(name) for name in redis.pages()}
        assert times <= set(range(480, 501))

    run(site, body)


def test_an_empty_page_and_one_over_the_limit_stay_out(redis: RedisProcess) -> None:
    """A page over the limit for one value, and an empty one, are neither written nor asked for."""
    site = Site({"empty": b"", "at the limit": b"x" * 1000, "over it": b"y" * 1001})

    async def body() -> None:
        for calls in (1, 2):
            async with site.loader(redis.url, value_max=1000) as loader:
                assert await loader.bytes_of(site.entries) == site.pages
                await until(lambda: redis.pages(), "the page at the limit")
                assert loader.from_store.calls == 1
                assert loader.cache.hits + loader.cache.misses == 1
            assert redis.pages() == [key(site.entries[1])]
            assert calls

    run(site, body)


def test_empty_pages_alone_ask_nobody(redis: RedisProcess) -> None:
    """An empty page is served without a call to Redis or to the store."""
    site = Site({"empty": b""})

    async def body() -> None:
        async with site.loader(redis.url) as loader:
            assert await loader.bytes_of(site.entries) == site.pages
            assert (loader.store.calls, loader.from_store.calls, loader.cache.calls) == (
                [("get", 0)],
                0,
                0,
            )

    run(site, body)


def test_pages_over_a_batch_go_in_more_calls(redis: RedisProcess) -> None:
    """More bytes and more pages than one call carries are several calls, a page over the bound its own."""
    large = bytes(range(256)) * (BATCH_BYTES // 256) + b"and more"
    pages = {f"{number:04}": b"%d" % number for number in range(BATCH_PAGES + 3)}
    site = Site({**pages, "large": large, "z": b"last"})

    async def body() -> None:
        await fill(site, redis)
        async with site.loader(redis.url) as loader:
            found = await loader.cache.find(site.entries)
            assert [found[entry.version] for entry in site.entries] == list(site.pages.values())
            assert loader.cache.calls == 4

    run(site, body)


def test_a_page_of_64_mb_in_a_hub_with_hardly_any_memory(redis: RedisProcess) -> None:
    """A huge page, and small ones, in a hub that may keep 64 kB, through Redis where the limit allows."""
    huge = bytes(range(251)) * ((64 << 20) // 251)
    small = {f"small {number}": b"%d" % number * 9_000 for number in range(20)}
    site = Site({"huge": huge, **small})

    async def body() -> None:
        for cold in (True, False):
            async with site.loader(redis.url, value_max=100 << 20, memory=64 << 10) as loader:
                for _ in range(2):
                    for entry in site.entries:
                        assert await loader.pages.get(entry) == site.pages[entry.path]
                assert loader.pages.cache.size <= len(huge) + (64 << 10)
                await until(lambda: len(redis.pages()) == 21, "all pages written")
                assert (loader.from_store.calls > 0) == cold

    run(site, body)


# -- what is wrong in it -------------------------------------------------------------------------------


def truncated(value: bytes, _: bytes) -> bytes:
    return value[:-3]


def anothers(_: bytes, other: bytes) -> bytes:
    return other


def empty(_: bytes, __: bytes) -> bytes:
    return b""


def text(_: bytes, __: bytes) -> bytes:
    return b"not a page at all"


def flipped(value: bytes, _: bytes) -> bytes:
    page = bytearray(zstandard.ZstdDecompressor().decompress(value))
    page[7] ^= 1
    return zstandard.ZstdCompressor().compress(bytes(page))


def bomb(_: bytes, __: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(64 << 20))


def boast(_: bytes, __: bytes) -> bytes:
    """A frame that says of itself that it holds 2^60 bytes."""
    return b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + b"\x01\x00\x00"


def no_size(value: bytes, _: bytes) -> bytes:
    page = zstandard.ZstdDecompressor().decompress(value)
    return zstandard.ZstdCompressor(write_content_size=False).compress(page)


@pytest.mark.parametrize("spoil", [truncated, anothers, empty, text, flipped, bomb, boast, no_size])
def test_garbage_under_our_keys_is_a_miss_and_is_written_over(
    redis: RedisProcess, log_guard: LogGuard, spoil: Callable[[bytes, bytes], bytes]
) -> None:
    """Whatever bytes lie under a key, the page's own are served, from the store, and are there the next time."""
    log_guard.expect(WRONG)
    site = Site(PAGES)
    bad = site.entries[:3]

    async def body() -> None:
        await fill(site, redis)
        with redis.client() as client:
            values = [client.get(key(entry)) for entry in bad]
            other = client.get(key(site.entries[9]))
            for entry, value in zip(bad, values, strict=True):
                client.set(key(entry), spoil(value, other))
        async with site.loader(redis.url) as loader:
            assert await loader.bytes_of(site.entries) == site.pages
            assert (loader.cache.hits, loader.cache.misses, loader.cache.wrong) == (7, 3, 3)
            assert loader.from_store.calls == 1
            await until(lambda: loader.cache.written == 3, "the right bytes written")
            with redis.client() as client:
                assert [client.get(key(entry)) for entry in bad] == values
            assert await loader.bytes_of(site.entries) == site.pages
            assert (loader.from_store.calls, loader.cache.wrong) == (1, 3)

    run(site, body)
    assert len(log_guard.handler.records) == 1


def test_another_type_under_our_key_is_a_miss_and_is_written_over(redis: RedisProcess) -> None:
    """A list, a hash and a set under our keys are no pages, and give way to them."""
    site = Site(PAGES)

    async def body() -> None:
        with redis.client() as client:
            client.rpush(key(site.entries[0]), "a", "b")
            client.hset(key(site.entries[1]), "a", "b")
            client.sadd(key(site.entries[2]), "a")
        await fill(site, redis)
        async with site.loader(redis.url) as loader:
            assert await loader.bytes_of(site.entries) == site.pages
            assert loader.from_store.calls == 0

    run(site, body)


def test_garbage_everywhere_is_told_once(redis: RedisProcess, log_guard: LogGuard) -> None:
    """A Redis full of wrong values is one line in the log, however often they come."""
    log_guard.expect(WRONG)
    site = Site(PAGES)

    async def body() -> None:
        async with site.loader(redis.url) as loader:
            for _ in range(5):
                with redis.client() as client:
                    for entry in site.entries:
                        client.set(key(entry), b"x")
                loader.cache.written = 0
                assert await loader.bytes_of(site.entries) == site.pages
                await until(lambda: loader.cache.written == 10, "written")
            assert (loader.cache.wrong, loader.cache.hits) == (50, 0)

    run(site, body)
    assert len(log_guard.handler.records) == 1


# -- a Redis that fails --------------------------------------------------------------------------------


def test_a_redis_that_is_killed_is_bypassed_and_taken_up_again(
    redis: RedisProcess, log_guard: LogGuard
) -> None:
    """Killed: one warning, pages come from the store, nothing is asked of it. Back: pages go in and out again."""
    log_guard.expect(DOWN)
    log_guard.expect(AGAIN)
    site = Site(PAGES)

    async def body() -> None:
        await fill(site, redis)
        async with site.loader(redis.url) as loader:
            assert await loader.bytes_of(site.entries) == site.pages
            redis.kill()
            for _ in range(5):
                assert await loader.bytes_of(site.entries) == site.pages
            assert (loader.from_store.calls, loader.cache.calls) == (5, 2)
            redis.start()
            turn_clock(PROBE)
            await until(lambda: loader.cache.health.up, "it is taken up again")
            assert await loader.bytes_of(site.entries) == site.pages
            assert loader.from_store.calls == 6  # it came back empty
            await until(lambda: loader.cache.written == 10, "written")
            assert await loader.bytes_of(site.entries) == site.pages
            assert loader.from_store.calls == 6

    run(site, body)
    assert len(log_guard.handler.records) == 2


def test_a_restart_between_two_reads_is_not_even_seen(redis: RedisProcess) -> None:
    """Connections that ended while nobody used them are made anew, without a warning."""
    site = Site(PAGES)

    async def body() -> None:
        async with site.loader(redis.url) as loader:
            await loader.bytes_of(site.entries)
            await until(lambda: loader.cache.written == 10, "written")
            redis.kill()
            redis.start()
            assert await loader.bytes_of(site.entries) == site.pages
            assert loader.cache.health.up

    run(site, body)


def test_a_redis_that_hangs_costs_its_deadline_once(
    redis: RedisProcess, log_guard: LogGuard
) -> None:
    """Stopped: the reads under way wait for one short deadline, later ones not. Continued: it is used again."""
    log_guard.expect(DOWN)
    log_guard.expect(AGAIN)
    site = Site(PAGES)

    async def body() -> None:
        await fill(site, redis)
        async with site.loader(redis.url, timeout_ms=250) as loader:
            await until(lambda: loader.cache._looked.is_set(), "the first look")
            redis.signal(signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                for entry in site.entries[:6]:
                    nursery.start_soon(loader.cache.find, [entry])
            # The shorter of the two deadlines.
            assert "no whole answer" not in loader.cache.health.error
            asked = loader.cache.calls
            assert asked == 6
            for _ in range(20):
                assert await loader.bytes_of(site.entries) == site.pages
            assert loader.cache.calls == asked
            assert loader.from_store.calls == 20
            redis.signal(signal.SIGCONT)
            turn_clock(PROBE)
            await until(lambda: loader.cache.health.up, "it is taken up again")
            assert await loader.bytes_of(site.entries) == site.pages

    run(site, body)
    assert len(log_guard.handler.records) == 2


@pytest.mark.expect_log(DOWN)
def test_a_hub_that_starts_beside_a_hanging_redis_serves(redis: RedisProcess) -> None:
    """The first look at a stopped server ends in time, and the pages come from the store."""
    site = Site(PAGES)

    async def body() -> None:
        redis.signal(signal.SIGSTOP)
        async with site.loader(redis.url, timeout_ms=250) as loader:
            assert await loader.bytes_of(site.entries) == site.pages
            assert (loader.cache.calls, loader.from_store.calls) == (0, 1)

    run(site, body)


def test_a_full_redis_takes_no_pages_and_still_gives_them(log_guard: LogGuard) -> None:
    """At its memory's limit without eviction: one warning, what it has is served; given room it takes more."""
    log_guard.expect("the shared cache takes no pages: OutOfMemoryError")
    log_guard.expect("the shared cache takes pages again")
    site = Site(PAGES)

    async def body() -> None:
        with redis_process("--maxmemory-policy", "noeviction") as redis:
            async with site.loader(redis.url) as loader:
                first, rest = site.entries[:5], site.entries[5:]
                await loader.bytes_of(first)
                await until(lambda: loader.cache.written == 5, "written")
                with redis.client() as client:
                    client.config_set("maxmemory", "1")
                await loader.bytes_of(rest)
                await until(lambda: loader.cache.refusal, "the refusal")
                sets = redis.calls("set")
                for _ in range(3):
                    assert await loader.bytes_of(site.entries) == site.pages
                assert loader.cache.health.up
                assert loader.cache.hits == 15
                assert redis.calls("set") == sets
                with redis.client() as client:
                    client.config_set("maxmemory", "0")
                turn_clock(PAUSE)
                await loader.bytes_of(rest)
                await until(lambda: loader.cache.written == 10, "taken again")
                assert loader.cache.refusal == ""

    run(site, body)
    assert len(log_guard.handler.records) == 2


def test_a_wrong_password_is_told_once_and_a_right_one_found(
    tmp_path: Path, log_guard: LogGuard
) -> None:
    """A refused password means bypass; one that is put into the file later is taken, without a new mount."""
    log_guard.expect(DOWN)
    log_guard.expect(AGAIN)
    site = Site(PAGES)
    secret = tmp_path / "password"
    secret.write_text("wrong horse\n")

    async def body() -> None:
        with redis_process(password="right horse ü") as redis:
            location = parse_redis(redis.url, password_file=str(secret))
            async with site.loader(location) as loader:
                assert await loader.bytes_of(site.entries) == site.pages
                assert "invalid username-password pair" in loader.cache.health.error
                assert "horse" not in loader.cache.health.error
                turn_clock(PROBE)
                secret.write_text("right horse ü\n")
                turn_clock(PROBE)
                await until(lambda: loader.cache.health.up, "it is taken up again")
                await loader.bytes_of(site.entries)
                await until(lambda: loader.cache.written == 10, "written")
                secret.unlink()  # connections that are there go on
                assert await loader.bytes_of(site.entries) == site.pages
                assert loader.from_store.calls == 2

    run(site, body)
    assert len(log_guard.handler.records) == 2


def test_no_password_where_one_is_wanted(log_guard: LogGuard) -> None:
    """A server that wants a password and gets none is bypassed with its own words."""
    log_guard.expect(f"{DOWN}unix://")
    site = Site(PAGES)

    async def body() -> None:
        with redis_process(password="secret") as redis:
            async with site.loader(redis.url) as loader:
                assert await loader.bytes_of(site.entries) == site.pages
                assert "Authentication required" in loader.cache.health.error
            async with site.loader(
                redis.url, env={"CHROMAFUSE_REDIS_PASSWORD": "secret"}
            ) as loader:
                assert await loader.bytes_of(site.entries) == site.pages
                assert loader.cache.health.up

    run(site, body)


RIGHTS = "ACL SETUSER chromafuse on >secret ~chromafuse:* +mget +set"


def test_the_rights_that_the_documentation_names_suffice(redis: RedisProcess) -> None:
    """A user with MGET and SET on our keys alone can be used; the page on security names just these."""
    documented = (Path(__file__).parents[1] / "docs" / "SECURITY.md").read_text()
    assert RIGHTS in documented
    site = Site(PAGES)

    async def body() -> None:
        with redis.client() as client:
            client.execute_command(*RIGHTS.split())
        where = redis.url.replace("unix://", "unix://chromafuse@")
        env = {"CHROMAFUSE_REDIS_PASSWORD": "secret"}
        async with site.loader(where, env=env) as loader:
            await loader.bytes_of(site.entries)
            await until(lambda: loader.cache.written == 10, "written")
            assert await loader.bytes_of(site.entries) == site.pages
            assert (loader.from_store.calls, loader.cache.hits) == (1, 10)

    run(site, body)


@pytest.mark.parametrize(
    ("rights", "error", "refusal"),
    [
        ("~chromafuse:* +set", "NoPermissionError", ""),
        ("~other:* +mget +set", "NoPermissionError", ""),
        ("~chromafuse:* +mget", "", "NoPermissionError"),
    ],
)
def test_missing_rights_are_told_once(
    redis: RedisProcess, log_guard: LogGuard, rights: str, error: str, refusal: str
) -> None:
    """Without the right to read Redis is bypassed for good, without the one to write it is only read."""
    log_guard.expect(DOWN if error else "the shared cache takes no pages")
    site = Site(PAGES)

    async def body() -> None:
        with redis.client() as client:
            client.execute_command("ACL", "SETUSER", "u", "on", "nopass", *rights.split())
        async with site.loader(redis.url.replace("unix://", "unix://u@")) as loader:
            for _ in range(3):
                assert await loader.bytes_of(site.entries) == site.pages
                turn_clock(PROBE)
            await until(lambda: loader.cache.refusal or not loader.cache.health.up, "the state")
            assert error in loader.cache.health.error
            assert refusal in loader.cache.refusal

    run(site, body)
    assert len(log_guard.handler.records) == 1


def test_a_cluster_is_not_taken_for_a_server_that_answers(log_guard: LogGuard) -> None:
    """A node of a cluster refuses many keys in one call: it stays bypassed, with one line in the log."""
    log_guard.expect(DOWN)
    site = Site(PAGES)

    async def body() -> None:
        with redis_process("--cluster-enabled", "yes") as redis:
            with redis.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
                await until(
                    lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"),
                    "one key can be asked for",
                )
            async with site.loader(redis.url) as loader:
                for _ in range(4):
                    assert await loader.bytes_of(site.entries) == site.pages
                    turn_clock(PROBE)
                    await trio.sleep(0.05)
                assert loader.cache.calls == 0

    run(site, body)
    assert len(log_guard.handler.records) == 1


# -- what is no Redis ----------------------------------------------------------------------------------


class Impostor:
    """A server at a port of the loopback that answers a command +OK, and MGET with bytes of the test's choice.

    After them it sends `drip` again and again until the client ends the connection: then `ended` is set.
    """

    def __init__(self, answer: bytes, drip: bytes) -> None:
        self._answer, self._drip = answer, drip
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.ended = threading.Event()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End it, and wait for its threads."""
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            while asked := connection.recv(4096):
                if b"MGET" not in asked:
                    connection.sendall(b"+OK\r\n")
                    continue
                connection.sendall(self._answer)
                if not self._drip:
                    return
                while not self._closing.wait(0.05):
                    connection.sendall(self._drip)
                return
        self.ended.set()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "InvalidResponse"),
        (b"", "ConnectionError"),
        (b"\x00\xff\x00\xff" * 100, "CacheError"),
        (b"*1\r\n$1\r\nx\r\n", "an answer that is not Redis's"),
        (b"+OK\r\n", "an answer that is not Redis's"),
        (b"$nonsense\r\n", "ValueError"),
        (b"-BUSY a script runs\r\n", "BUSY a script runs"),
    ],
    ids=["http", "closed", "noise", "count", "type", "number", "busy"],
)
def test_what_is_no_redis_is_bypassed(log_guard: LogGuard, answer: bytes, says: str) -> None:
    """Whatever answers there, pages come from the store, and the log has one line; nothing escapes."""
    log_guard.expect(DOWN)
    site = Site(PAGES)

    async def body() -> None:
        with closing(Impostor(answer, b"")) as server:
            async with site.loader(f"redis://127.0.0.1:{server.port}") as loader:
                for _ in range(2):
                    assert await loader.bytes_of(site.entries) == site.pages
                assert says in loader.cache.health.error
                assert (loader.cache.hits, loader.from_store.calls) == (0, 2)

    run(site, body)
    assert len(log_guard.handler.records) == 1


def test_values_that_are_no_strings_are_misses() -> None:
    """Numbers and nothing in the place of pages are no pages."""
    site = Site({"one": b"1", "two": b"2"})

    async def body() -> None:
        with closing(Impostor(b"*2\r\n:1\r\n*-1\r\n", b"")) as server:
            async with site.loader(f"redis://127.0.0.1:{server.port}") as loader:
                assert await loader.bytes_of(site.entries) == site.pages
                assert loader.cache.misses == 2

    run(site, body)


def test_an_answer_that_never_ends_is_ended(log_guard: LogGuard) -> None:
    """A server that sends a byte now and then is bypassed when its time is up, and its connection closed."""
    log_guard.expect("the shared cache does not answer: CacheError: no whole answer within")
    site = Site(PAGES)

    async def body() -> None:
        with closing(Impostor(b"*2\r\n$1000000\r\n", b"x")) as server:
            async with site.loader(f"redis://127.0.0.1:{server.port}", timeout_ms=250) as loader:
                assert await loader.bytes_of(site.entries) == site.pages
                assert loader.from_store.calls == 1
                await until(server.ended.is_set, "the connection's end")

    run(site, body)


# -- TCP and TLS ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Give a certificate for localhost."""
    return Certificate(tmp_path_factory.mktemp("certificate"))


def test_by_tls(certificate: Certificate) -> None:
    """With the authority named, pages go in and out encrypted, into the database that the URL says."""
    site = Site(PAGES)

    async def body() -> None:
        with tls_process(certificate) as (redis, port):
            url = f"rediss://localhost:{port}/3?ca_file={certificate.file}"
            for calls in (1, 0):
                async with site.loader(url) as loader:
                    assert await loader.bytes_of(site.entries) == site.pages
                    assert loader.from_store.calls == calls
                    if calls:
                        await until(lambda: loader.cache.written == 10, "written")
            with redis.client() as client:
                assert set(client.info("keyspace")) == {"db3"}

    run(site, body)


@pytest.mark.parametrize(
    "url", ["rediss://localhost:{port}", "rediss://127.0.0.2:{port}?ca_file={file}"]
)
def test_a_certificate_that_does_not_fit_is_refused(
    certificate: Certificate, log_guard: LogGuard, url: str
) -> None:
    """Without its authority, or under another name, a server gets neither password nor page."""
    log_guard.expect(DOWN)
    site = Site(PAGES)

    async def body() -> None:
        with tls_process(certificate) as (redis, port):
            where = url.format(port=port, file=certificate.file)
            env = {"CHROMAFUSE_REDIS_PASSWORD": "secret"}
            async with site.loader(where, env=env) as loader:
                assert await loader.bytes_of(site.entries) == site.pages
                assert "certificate verify failed" in loader.cache.health.error
            assert (redis.calls("auth"), redis.pages()) == (0, [])

    run(site, body)


# -- bounds, with a server of the test's own -----------------------------------------------------------


class FakeServer:
    """Answers every look, keeps every page, and holds up writing until it is told."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.open = threading.Event()
        self.dropped = 0

    def prepare(self) -> None: ...

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.values.get(name) for name in keys]

    def put(self, values: Mapping[str, bytes], ttl: int) -> str:
        if not self.open.wait(20):
            raise CacheError("not opened")
        self.values |= values
        return ""

    def drop(self) -> None:
        self.dropped += 1


def test_what_waits_to_be_written_is_bounded() -> None:
    """While Redis takes a write slowly no more than the bound waits; the rest is left out."""
    server = FakeServer()
    location = RedisLocation("unix", path="/nowhere")
    cache = SharedCache(server, RedisSettings(location, timeout=60_000))
    page = bytes(1 << 20)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.run)
            await until(lambda: cache._looked.is_set(), "the first look")
            cache.keep({b"first": page})
            await until(lambda: not cache._waiting, "the first is being written")
            for number in range(100):
                cache.keep({b"%d" % number: page})
            assert cache._waiting == WAITING
            server.open.set()
            await until(lambda: not cache._waiting, "all of it written")
            await until(lambda: len(server.values) == 33, "all of it written")
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert cache.written == 33


# -- beside a store that fails -------------------------------------------------------------------------


def test_what_redis_has_is_served_while_the_store_is_down(
    redis: RedisProcess, log_guard: LogGuard
) -> None:
    """In an outage of the store pages in Redis are served; only the others fail, with the store's error."""
    log_guard.expect("the store does not answer")
    site = Site(PAGES)
    known, unknown = site.entries[:8], site.entries[8:]

    async def body() -> None:
        async with site.loader(redis.url) as loader:
            await loader.bytes_of(known)
            await until(lambda: loader.cache.written == 8, "written")
        async with site.loader(redis.url) as loader:
            loader.store.script.append(Fault("fail", times=99))
            assert await loader.bytes_of(known) == {
                entry.path: site.pages[entry.path] for entry in known
            }
            mixed = await loader.bytes_of(site.entries)
            assert [path for path, page in mixed.items() if page == site.pages[path]] == [
                entry.path for entry in known
            ]
            assert {type(mixed[entry.path]) for entry in unknown} == {StoreUnavailable}

    run(site, body)


def test_what_redis_has_does_not_wait_for_the_store(redis: RedisProcess) -> None:
    """Of pages that are asked for together those in Redis are handed out while the store hangs with the others."""
    site = Site(PAGES)
    known, unknown = site.entries[:8], site.entries[8:]

    async def body() -> None:
        async with site.loader(redis.url) as loader:
            await loader.bytes_of(known)
            await until(lambda: loader.cache.written == 8, "written")
        async with site.loader(redis.url) as loader:
            loader.store.script.append(Fault("hang", times=99))
            found: dict[str, bytes] = {}

            async def read(entry: TreeEntry) -> None:
                found[entry.path] = await loader.pages.get(entry)

            async with trio.open_nursery() as nursery:
                for entry in site.entries:
                    nursery.start_soon(read, entry)
                await until(lambda: loader.store.calls and len(found) == 8, "the pages in Redis")
                assert found == {entry.path: site.pages[entry.path] for entry in known}
                assert (loader.cache.calls, loader.from_store.calls) == (1, 1)
                assert loader.store.calls == [("get", len(unknown))]
                nursery.cancel_scope.cancel()

    run(site, body)


def test_the_keys_are_the_documented_ones() -> None:
    """The prefix is what operators see, and what rights are given for."""
    assert PREFIX == "chromafuse:1:"
