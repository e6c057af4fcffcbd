"""What happens when the store's process or server dies, hangs, lies or is not what it should be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chromafuse.errors import (
    StoreDenied,
    StoreError,
    StoreMissing,
    StoreRejected,
    StoreTimeout,
    StoreUnavailable,
    UserError,
)
from chromafuse.store import rest
from chromafuse.store.embedded import EmbeddedStore
from chromafuse.store.embedding import ConstantEmbedder, check_embedding, open_embedder
from chromafuse.store.location import open_store, parse_store
from chromafuse.store.protocol import CollectionInfo, Row, Store
from tests.support.backends import Body
from tests.support.chroma_server import ChromaServer, free_port
from tests.support.logguard import LogGuard
from tests.support.memory_store import Fault, FaultyStore, MemoryStore
from tests.support.quota_proxy import Answer, QuotaProxy, running_proxy
from tests.support.waiting import wait_for

ROWS = [Row(f"{number:03}", f"text {number}", {"n": number}, (1.0,)) for number in range(100)]
IDS = [row.id for row in ROWS]
STORED = {row.id: Row(row.id, row.document, row.metadata) for row in ROWS}


def use(
    store: str, body: Body, *, deadline: float = 10.0, create: bool = True, **options: object
) -> None:
    """Open the STORE and run `body` on it."""

    async def main() -> None:
        location = parse_store(store, env={}, **options)  # type: ignore[arg-type]
        async with open_store(location, create=create, deadline=deadline) as opened:
            await body(opened)

    trio.run(main)


async def fill(store: Store) -> None:
    """Write the rows."""
    await store.upsert(ROWS)


async def look(store: Store) -> None:
    """Read the rows and see that they are right."""
    assert await store.get(IDS) == STORED


# -- the embedded store's child -----------------------------------------------------------------------


def child_of(store: Store) -> int:
    """Return the process id of the running child."""
    assert isinstance(store, EmbeddedStore)
    assert store.worker_pid is not None
    return store.worker_pid


@pytest.mark.chroma
def test_a_killed_worker_is_replaced(tmp_path: Path, log_guard: LogGuard) -> None:
    """A worker killed between calls costs a warning, not an answer."""
    log_guard.expect("the worker was killed by SIGKILL")

    async def body(store: Store) -> None:
        await fill(store)
        before = child_of(store)
        os.kill(before, signal.SIGKILL)
        await look(store)
        assert child_of(store) != before

    use(f"{tmp_path}/s", body)


@pytest.mark.chroma
def test_a_worker_killed_in_a_call_is_replaced(tmp_path: Path, log_guard: LogGuard) -> None:
    """A call under way when the worker dies is made again by the next worker; a read and a write."""
    log_guard.expect("the worker was killed by SIGKILL")

    async def body(store: Store) -> None:
        for call in (fill, look):
            pid = child_of(store)
            os.kill(pid, signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, store)
                await trio.testing.wait_all_tasks_blocked(0.05)
                os.kill(pid, signal.SIGKILL)

    use(f"{tmp_path}/s", body)


@pytest.mark.chroma
def test_a_worker_that_always_dies_is_unavailable(tmp_path: Path, log_guard: LogGuard) -> None:
    """A request whose worker dies three times ends as unavailable, long before its deadline."""
    log_guard.expect("the worker was killed by SIGKILL")

    async def body(store: Store) -> None:
        async def kill_all() -> None:
            while True:
                if isinstance(store, EmbeddedStore) and store.worker_pid is not None:
                    os.kill(store.worker_pid, signal.SIGKILL)
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_all)
            with pytest.raises(StoreUnavailable) as caught:
                await store.get(IDS)
            nursery.cancel_scope.cancel()
        assert str(caught.value) == f"{tmp_path}/s: the worker process was killed by SIGKILL"
        await store.get(IDS)

    use(f"{tmp_path}/s", body)


@pytest.mark.chroma
def test_a_hung_worker_is_killed_at_the_deadline(tmp_path: Path, log_guard: LogGuard) -> None:
    """A worker that does not answer costs its caller the deadline; it is killed and the next call works."""
    log_guard.expect("the worker was killed, no answer within 1 s")

    async def body(store: Store) -> None:
        await fill(store)
        hung = child_of(store)
        os.kill(hung, signal.SIGSTOP)
        began = trio.current_time()
        with pytest.raises(StoreTimeout) as caught:
            await store.get(IDS)
        assert 0.9 <= trio.current_time() - began < 3
        assert str(caught.value) == f"{tmp_path}/s: no answer within 1 s"
        await look(store)
        with pytest.raises(ProcessLookupError):
            os.kill(hung, 0)

    use(f"{tmp_path}/s", body, deadline=1.0)


HOLDER = """
import sys, trio
from chromafuse.store.location import open_store, parse_store
async def main():
    async with open_store(parse_store(sys.argv[1]), create=True) as store:
        print(store.worker_pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


def holder(store: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a process that opens the STORE and prints its worker's id."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )


def running(pid: int) -> bool:
    """Tell whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.chroma
@pytest.mark.parametrize("stopped", [False, True])
def test_the_worker_dies_with_its_parent(tmp_path: Path, stopped: bool) -> None:
    """When the parent is killed the worker goes as well, also one that hangs."""
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with holder(tmp_path / "s", environment) as parent:
        assert parent.stdout is not None
        try:
            pid = int(parent.stdout.readline())
            if stopped:
                os.kill(pid, signal.SIGSTOP)
        finally:
            parent.kill()
        wait_for(lambda: not running(pid), what="the worker is gone")


@pytest.mark.chroma
def test_the_worker_ignores_its_surroundings(tmp_path: Path) -> None:
    """A .env, modules and CHROMA_* settings where the program was started do not reach the worker."""
    (tmp_path / ".env").write_text("is_persistent=notabool\n")
    (tmp_path / "orjson.py").write_text("raise SystemExit('the wrong orjson')\n")
    hostile = {
        "CHROMA_SERVER_HOST": "nowhere",
        "CHROMA_API_KEY": "secret",
        "IS_PERSISTENT": "notabool",
    }
    probe = HOLDER.replace("import sys, trio", "import sys; sys.path.remove('')\nimport trio")
    with subprocess.Popen(
        [sys.executable, "-c", probe, str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | hostile | {"PYTHONPATH": os.getcwd()},
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        try:
            pid = int(parent.stdout.readline())
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        finally:
            parent.kill()
    names = {entry.partition(b"=")[0] for entry in environment.split(b"\0")}
    assert not names & {name.encode() for name in hostile}


# -- places that are no store -------------------------------------------------------------------------


@pytest.mark.chroma
@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir], ids=["absent", "empty"])
def test_a_place_without_a_store_stays_as_it_is(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Opening a directory that is no store, or is not there, says so and makes nothing."""
    place = tmp_path / "s"
    make(place)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreMissing) as caught:
        use(str(place), look, create=False)
    assert str(caught.value) == f"{place}: it is not a Chroma directory (no chroma.sqlite3 in it)"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.chroma
def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    """A chroma.sqlite3 that holds something else is an error that says so."""
    (tmp_path / "chroma.sqlite3").write_bytes(b"not a database at all" * 1_000)
    with pytest.raises(StoreError) as caught:
        use(str(tmp_path), look, create=False)
    assert str(caught.value).startswith(f"{tmp_path}: chroma.sqlite3 is not a SQLite database")


@pytest.mark.chroma
def test_a_damaged_database_is_an_error(tmp_path: Path, log_guard: LogGuard) -> None:
    """A database with overwritten pages is an error, whatever the engine makes of it; never fewer rows."""
    log_guard.expect("store worker", maybe=True)
    log_guard.expect("the worker", maybe=True)
    use(f"{tmp_path}/s", fill)
    with open(tmp_path / "s" / "chroma.sqlite3", "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for offset in range(8_192, size, 4_096):
            file.seek(offset)
            file.write(b"\xa5" * 512)
    with pytest.raises(StoreError):
        use(f"{tmp_path}/s", look, create=False)


def alter(store: Path, *statements: str) -> None:
    """Change the store's database behind the engine's back."""
    database = sqlite3.connect(store / "chroma.sqlite3")
    with database:
        for statement in statements:
            database.execute(statement)
    database.close()


def layout(store: Path) -> list[object]:
    """Return the tables and the migrations of the store's database."""
    database = sqlite3.connect(store / "chroma.sqlite3")
    found: list[object] = database.execute("SELECT sql FROM sqlite_master").fetchall()
    found += database.execute("SELECT dir, version, hash FROM migrations").fetchall()
    database.close()
    return found


@pytest.mark.chroma
def test_a_store_of_a_newer_chroma_is_an_error(tmp_path: Path) -> None:
    """A database whose tables this engine does not know is an error that says why."""
    use(f"{tmp_path}/s", fill)
    alter(tmp_path / "s", "ALTER TABLE embeddings RENAME COLUMN embedding_id TO row_id")
    with pytest.raises(StoreError) as caught:
        use(f"{tmp_path}/s", look, create=False)
    assert str(caught.value).startswith(
        f"{tmp_path}/s: it was written by another version of Chroma"
    )


@pytest.mark.chroma
def test_a_reader_does_not_upgrade_a_store(tmp_path: Path) -> None:
    """An older Chroma's store is refused by a reader and left as it is; a writer upgrades it."""
    store = tmp_path / "s"
    use(str(store), fill)
    alter(
        store,
        "DELETE FROM migrations WHERE filename LIKE '00006-metadata-array%'",
        "DROP TABLE embedding_metadata_array",
    )
    before = layout(store)
    with pytest.raises(StoreError) as caught:
        use(str(store), look, create=False)
    assert str(caught.value).startswith(
        f"{store}: an older version of Chroma wrote it; an ingest upgrades it"
    )
    assert layout(store) == before
    use(str(store), look, create=True)
    use(str(store), look, create=False)


@pytest.mark.chroma
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a read-only bind mount")
def test_a_read_only_store_is_denied(tmp_path: Path) -> None:
    """A store on a read-only file system is refused with the reason: Chroma writes when it reads."""
    use(f"{tmp_path}/s", fill)
    script = (
        'mount --make-rprivate / && mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && '
        'exec "$2" -c "$3" "$1"'
    )
    probe = HOLDER.replace("create=True", "create=False")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path / "s"), sys.executable, probe],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"chromafuse.errors.StoreDenied: {tmp_path}/s: it cannot be written, "
        "and Chroma writes even when it only reads"
    )


# -- servers ------------------------------------------------------------------------------------------


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ChromaServer]:
    """Give a server of the test's own, which it may kill."""
    server = ChromaServer(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def test_no_server_is_unavailable_soon() -> None:
    """A refused connection is tried for a second and a half, not until the deadline."""
    url = f"http://127.0.0.1:{free_port()}"

    async def main() -> None:
        began = trio.current_time()
        with pytest.raises(StoreUnavailable) as caught:
            async with open_store(parse_store(url, env={})):
                pass
        assert 1.0 <= trio.current_time() - began < 5
        assert str(caught.value).startswith(f"{url}: ")
        assert str(caught.value).endswith("Connection refused")

    trio.run(main)


@pytest.mark.chroma
def test_a_server_that_comes_back_serves_on(own_server: ChromaServer) -> None:
    """While the server is away calls fail as unavailable; when it is back, the same store works."""

    async def body(store: Store) -> None:
        await fill(store)
        own_server.kill()
        with pytest.raises(StoreUnavailable):
            await store.get(IDS)
        await trio.to_thread.run_sync(own_server.start)
        await look(store)

    use(own_server.url, body)


@pytest.mark.chroma
def test_a_short_restart_is_not_noticed(chroma_server: ChromaServer, token: Path) -> None:
    """A server that refuses connections for a third of a second costs no error."""
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        proxy = first.enter_context(running_proxy(chroma_server.url))

        async def body(store: Store) -> None:
            await fill(store)
            await trio.to_thread.run_sync(first.close)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(look, store)
                await trio.sleep(0.3)  # the length of the outage, not a wait for a state
                again = running_proxy(chroma_server.url, proxy.port)
                await trio.to_thread.run_sync(second.enter_context, again)

        use(proxy.url, body, token_file=token, collection="short-restart")


@pytest.mark.chroma
def test_a_hung_server_times_out(own_server: ChromaServer) -> None:
    """A server that is stopped in its tracks costs the deadline, and works again when it goes on."""

    async def body(store: Store) -> None:
        await fill(store)
        own_server.signal(signal.SIGSTOP)
        began = trio.current_time()
        with pytest.raises(StoreTimeout) as caught:
            await store.get(IDS)
        assert 0.9 <= trio.current_time() - began < 3
        assert str(caught.value) == f"{own_server.url}: no answer within 1 s"
        own_server.signal(signal.SIGCONT)
        await look(store)

    use(own_server.url, body, deadline=1.0)


@pytest.fixture
def proxy(chroma_server: ChromaServer) -> Iterator[QuotaProxy]:
    """Give a proxy that can distort answers, with the collection filled."""
    with running_proxy(chroma_server.url) as proxy:
        yield proxy


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """Give a file with the proxy's token."""
    path = tmp_path / "token"
    path.write_text(QuotaProxy.token)
    return path


def edit(change: Callable[[Any], object]) -> Callable[[Answer], Answer]:
    """Return a distortion that changes the decoded answer in place."""

    def apply(answer: Answer) -> Answer:
        body: Any = json.loads(answer[1])
        change(body)
        return answer[0], json.dumps(body).encode()

    return apply


def drop_last(name: str) -> Callable[[Any], object]:
    """Return a change that takes the last element off a list."""
    return lambda body: body[name].pop()


def repeat_first(body: Any) -> None:
    """Give the first row of an answer once more at its end."""
    for name in ("ids", "documents", "metadatas"):
        body[name].append(body[name][0])


LIES: dict[str, Callable[[Answer], Answer]] = {
    "no JSON": lambda answer: (200, b"<html>welcome</html>"),
    "half of the JSON": lambda answer: (200, answer[1][: len(answer[1]) // 2]),
    "another shape": lambda answer: (200, b"[]"),
    "null": lambda answer: (200, b"null"),
    "fewer documents": edit(drop_last("documents")),
    "fewer metadata": edit(drop_last("metadatas")),
    "no documents": edit(lambda body: body.update(documents=None)),
    "an id that was not asked for": edit(lambda body: body["ids"].__setitem__(0, "other")),
    "a row twice": edit(repeat_first),
    "a document that is a number": edit(lambda body: body["documents"].__setitem__(0, 1)),
    "a redirect": lambda answer: (302, b""),
    "version 0": lambda answer: (410, b'{"error":"Gone","message":"The v1 API is deprecated"}'),
    "always broken": lambda answer: (500, b"oops"),
}


@pytest.mark.chroma
@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_is_an_error(lie: str, proxy: QuotaProxy, token: Path) -> None:
    """An answer that makes no sense is an error, never rows and never "nothing there"."""

    async def body(store: Store) -> None:
        await fill(store)
        proxy.distort = lambda action, answer: LIES[lie](answer) if action == "get" else answer
        with pytest.raises(StoreError):
            await store.get(IDS)

    use(proxy.url, body, token_file=token)


@pytest.mark.chroma
def test_a_shortened_answer_is_completed(proxy: QuotaProxy, token: Path) -> None:
    """A server that silently returns at most ten rows is asked again until nothing is missing."""

    def cut(action: str, answer: Answer) -> Answer:
        if action != "get":
            return answer
        body = json.loads(answer[1])
        rows = ("ids", "documents", "metadatas")
        short = {key: value[:10] if key in rows and value else value for key, value in body.items()}
        return answer[0], json.dumps(short).encode()

    async def body(store: Store) -> None:
        await fill(store)
        proxy.distort = cut
        await look(store)
        assert await store.existing([*IDS, "absent"]) == set(IDS)
        assert sorted(await store.list_ids()) == IDS

    use(proxy.url, body, token_file=token, collection="shortened")


@pytest.mark.chroma
def test_a_listing_that_is_short_of_the_count_is_an_error(proxy: QuotaProxy, token: Path) -> None:
    """A list of ids that never reaches the collection's count is an error, not a short list."""

    async def body(store: Store) -> None:
        await fill(store)
        proxy.distort = lambda action, answer: (200, b"101") if action == "count" else answer
        with pytest.raises(StoreError) as caught:
            await store.list_ids()
        assert "incomplete" in str(caught.value)

    use(proxy.url, body, token_file=token, collection="short-listing")


@pytest.mark.chroma
@pytest.mark.parametrize("status", [429, 503, 500, 502])
def test_later_means_later(status: int, proxy: QuotaProxy, token: Path) -> None:
    """A server that is busy or broken for three requests is asked a fourth time."""
    left = [3]

    def busy(action: str, answer: Answer) -> Answer:
        if action == "get" and left[0]:
            left[0] -= 1
            return status, b'{"error":"Busy","message":"later"}'
        return answer

    async def body(store: Store) -> None:
        await fill(store)
        proxy.distort = busy
        await look(store)
        assert left == [0]

    use(proxy.url, body, token_file=token)


@pytest.mark.chroma
def test_always_later_times_out(proxy: QuotaProxy, token: Path) -> None:
    """A server that is busy for ever costs the deadline and no more."""

    async def body(store: Store) -> None:
        proxy.distort = lambda action, answer: (429, b"{}")
        with pytest.raises(StoreTimeout):
            await store.get(IDS)

    use(proxy.url, body, token_file=token, deadline=1.0)


@pytest.mark.chroma
def test_an_endless_answer_is_cut_off(
    proxy: QuotaProxy, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer over the bound is an error; it is not read to its end."""
    monkeypatch.setattr(rest, "ANSWER_MAX", 1 << 20)

    async def body(store: Store) -> None:
        proxy.distort = lambda action, answer: (200, b" " * (2 << 20))
        with pytest.raises(StoreError) as caught:
            await store.get(IDS)
        assert str(caught.value).endswith("an answer of over 1 MiB")

    use(proxy.url, body, token_file=token)


# -- secrets ------------------------------------------------------------------------------------------


class Listener:
    """A TCP server that keeps what it is sent and answers with fixed bytes, over TLS where asked."""

    def __init__(self, answer: bytes, context: ssl.SSLContext | None = None) -> None:
        self.received = b""
        self._answer = answer
        self._context = context
        self._stopped = False
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopped:
            connection, _ = self._socket.accept()
            with connection, contextlib.suppress(OSError):  # a client may hang up at any point
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        with connection:
            self.received += connection.recv(65_536)
            connection.sendall(self._answer)

    def stop(self) -> None:
        """End the server."""
        self._stopped = True
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    """Give a server's TLS settings with a certificate that nobody signed."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def test_a_server_with_a_wrong_certificate_gets_nothing(
    certificate: ssl.SSLContext, token: Path
) -> None:
    """TLS is verified before the token is sent; the error says what is wrong and comes at once."""
    listener = Listener(b"", certificate)
    try:
        with pytest.raises(StoreUnavailable) as caught:
            use(f"https://localhost:{listener.port}", look, token_file=token, create=False)
    finally:
        listener.stop()
    assert str(caught.value) == (
        f"https://localhost:{listener.port}: its TLS certificate is not valid (self-signed certificate)"
    )
    assert listener.received == b""


def test_a_redirect_is_not_followed(token: Path) -> None:
    """A redirect to another server is an error, and the token does not go there."""
    other = Listener(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    first = Listener(
        b"HTTP/1.1 307 Temporary Redirect\r\n"
        b"location: http://127.0.0.1:%d/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        % other.port
    )
    try:
        with pytest.raises(StoreError):
            use(f"http://127.0.0.1:{first.port}", look, token_file=token, create=False)
    finally:
        first.stop()
        other.stop()
    assert (QuotaProxy.token.encode() in first.received, other.received) == (True, b"")


def test_proxies_from_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch, token: Path
) -> None:
    """A proxy variable does not send the token through somebody else's server."""
    proxy = Listener(b"HTTP/1.1 502 no\r\ncontent-length: 0\r\n\r\n")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    try:
        with pytest.raises(StoreUnavailable):
            use(f"http://127.0.0.1:{free_port()}", look, token_file=token, create=False)
    finally:
        proxy.stop()
    assert proxy.received == b""


# -- embeddings ---------------------------------------------------------------------------------------

POISON = {
    "type": "known",
    "name": "sentence_transformer",
    "config": {"model_name": "evil", "trust_remote_code": True},
}


@pytest.mark.chroma
@pytest.mark.parametrize("through", ["embedded", "server"])
def test_a_stored_function_is_read_and_never_built(
    through: str, chroma_server: ChromaServer
) -> None:
    """A collection with another's embedding function is read, its function is named, and ingest refuses it."""
    name = f"poisoned-{through}"
    request = urllib.request.Request(
        f"{chroma_server.url}/api/v2/tenants/default_tenant/databases/default_database/collections",
        json.dumps({"name": name, "configuration": {"embedding_function": POISON}}).encode(),
        {"content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()
    store = chroma_server.url if through == "server" else str(chroma_server.directory / "data")

    async def body(opened: Store) -> None:
        await opened.upsert(ROWS)
        await look(opened)
        info = await opened.info()
        with pytest.raises(UserError) as caught:
            check_embedding(info, None, ConstantEmbedder())
        assert str(caught.value) == (
            f"the collection {name!r} has the embedding function 'sentence_transformer', "
            "so another program made it; choose another --collection"
        )

    use(store, body, collection=name)


@pytest.mark.parametrize(
    ("function", "stored", "dimension", "fine"),
    [
        (None, None, None, True),
        ("default", None, None, True),
        (None, "none", 1, True),
        ("default", "none", 1, True),
        ("legacy", None, None, False),
        ("unreadable", None, None, False),
        (None, "default", None, False),
        (None, None, 384, False),
    ],
)
def test_which_collections_are_written(
    function: str | None, stored: str | None, dimension: int | None, fine: bool
) -> None:
    """Only a collection with no function or the default one, and with our vectors, is written to."""
    info = CollectionInfo("id", "docs", function, dimension)
    if fine:
        check_embedding(info, stored, ConstantEmbedder())
        return
    with pytest.raises(UserError):
        check_embedding(info, stored, ConstantEmbedder())


@pytest.mark.slow
@pytest.mark.chroma
def test_a_model_that_cannot_be_had_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log_guard: LogGuard
) -> None:
    """Without the model and without a way to fetch it, the default embedding fails with the way out."""
    log_guard.expect("store worker", maybe=True)  # the download's progress
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")

    async def main() -> None:
        async with open_embedder("default") as embedder:
            with pytest.raises(UserError) as caught:
                await embedder.embed(["text"])
        message = str(caught.value)
        assert message.startswith(
            "the default embedding's model all-MiniLM-L6-v2 is not in ~/.cache/"
        )
        assert message.endswith("put its files there, or ingest without --embed default")
        assert "\n" not in message

    trio.run(main)


# -- the fault script ---------------------------------------------------------------------------------


def test_the_fault_script_hits_the_calls_it_names() -> None:
    """fail, lose and hang hit the n-th call of the methods named; all other calls pass."""
    refused = StoreRejected("scripted")
    script = [
        Fault("fail", at=2, methods=frozenset({"get"}), error=refused),
        Fault("lose", at=1, methods=frozenset({"add"})),
        Fault("hang", at=1, methods=frozenset({"list_ids"})),
    ]

    async def main() -> None:
        memory = MemoryStore()
        store = FaultyStore(memory, script)
        with pytest.raises(StoreUnavailable):
            await store.add(ROWS)
        await look(store)
        with pytest.raises(StoreRejected):
            await store.get(IDS)
        await look(store)
        with trio.move_on_after(0.01) as scope:
            await store.list_ids()
        assert scope.cancelled_caught
        assert await store.existing(["000", "x"]) == {"000"}
        assert [name for name, _ in store.calls] == [
            "add",
            "get",
            "get",
            "get",
            "list_ids",
            "existing",
        ]

    trio.run(main)


def test_denied_is_not_retried() -> None:
    """A refusal of the credentials is a StoreDenied, which callers tell from an outage."""
    assert not issubclass(StoreDenied, StoreUnavailable)
