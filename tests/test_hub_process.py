"""The hub as a process: start-up, failures in one line, signals, ends, and what a restarted hub serves."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from chromafuse.model.access import AUTHENTICATED, HIDDEN, PUBLIC, Access, Identity, Kind
from chromafuse.model.records import ROOT_ID
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.location import StoreLocation, open_store, parse_store
from chromafuse.store.protocol import Row
from chromafuse.store.publish import find_root, publish
from tests.support.chroma_server import ChromaServer, free_port
from tests.support.hub import hub_process, planned
from tests.support.waiting import wait_for

pytestmark = pytest.mark.chroma

Site = Mapping[str, tuple[Access, bytes]]
SITE: Site = {
    "a.md": (PUBLIC, b"alpha\n"),
    "b/c.md": (PUBLIC, b"beta\n" * 3_000),
    "b/secret.md": (AUTHENTICATED, b"secret\n"),
    "z/admin.md": (Access(groups=frozenset({"admin"})), b"admin\n"),
}


def put(location: StoreLocation, site: Site) -> None:
    """Publish a site over what is there."""

    async def main() -> None:
        async with open_store(location, create=True) as store:
            expected = await find_root(store)
            await publish(store, ConstantEmbedder(), planned(site), expected=expected)

    trio.run(main)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> StoreLocation:
    """Give an embedded store with SITE in it, which no test changes."""
    location = parse_store(str(tmp_path_factory.mktemp("hub") / "store"))
    put(location, SITE)
    return location


def test_it_serves_a_view_and_says_how_it_is(embedded: StoreLocation, tmp_path: Path) -> None:
    """A hub over a real store says ready, hands out the pruned tree, answers reads and its status."""
    with hub_process(embedded, tmp_path) as hub:
        ready = hub.event()
        assert ready is not None
        sha256 = ready.pop("sha256")
        assert ready == {
            "event": "ready",
            "generation": 1,
            "pages": 2,
            "visible_pages": 2,
            "tree_pages": 4,
            "warnings": [],
        }
        _greeting, snapshot = hub.client.greet()
        assert snapshot is not None
        assert [snapshot.path(inode) for inode in snapshot.pages()] == ["a.md", "b/c.md"]
        assert hub.client.read(1, 2) == b"alpha\n"
        assert hub.client.read(1, 4) == b"beta\n" * 3_000
        assert hub.client.store_states == [True]
        hub.send(ask="status")
        status = hub.event()
        assert status is not None
        assert status.pop("index") in ("starting", "building", "ready")
        assert status == {
            "event": "status",
            "generation": 1,
            "sha256": sha256,
            "tree_pages": 4,
            "visible_pages": 2,
            "identity": "anonymous",
            "store": embedded.path,
            "collection": "docs",
            "store_up": True,
            "store_error": "",
            "cache_bytes": 6 + 15_000,
            "requests": 2,
            "fetches": 2,
            "store_calls": 2,
            "index_error": "",
            "redis": "off",
        }
        hub.process.terminate()
        assert hub.event() is None
        assert hub.process.wait(timeout=10) == 0
    assert hub.log.read_text() == ""


def test_every_inode_but_the_visible_pages_is_stale(
    embedded: StoreLocation, tmp_path: Path
) -> None:
    """A view that asks for every number gets the pages of its own snapshot and ESTALE for all else."""
    identity = Identity(Kind.AUTHENTICATED, frozenset({"billing"}))
    with hub_process(embedded, tmp_path, identity) as hub:
        _, snapshot = hub.client.greet()
        assert snapshot is not None
        allowed = {path: SITE[path][1] for path in ("a.md", "b/c.md", "b/secret.md")}
        expected = {
            inode: allowed.get(snapshot.path(inode), errno.ESTALE)
            if snapshot.has(inode)
            else errno.ESTALE
            for inode in range(105)
        }
        assert {inode: hub.client.read(1, inode) for inode in expected} == expected
        assert {hub.client.read(1, 1 << 52), hub.client.read(2, 2), hub.client.read(0, 2)} == {
            errno.ESTALE
        }


def failed(location: StoreLocation, tmp_path: Path) -> str:
    """Return the one line of a hub that cannot start; it must have ended with exit code 1."""
    with hub_process(location, tmp_path) as hub:
        event = hub.event()
        assert event is not None
        message = event.pop("message")
        assert event == {"event": "failed", "exit_code": 1}
        assert hub.event() is None
        assert hub.process.wait(timeout=10) == 1
    assert "Traceback" not in hub.log.read_text()
    assert "\n" not in message
    return str(message)


def test_a_missing_directory_is_one_line(tmp_path: Path) -> None:
    """A store that is not there is named, with the way out, and is not made."""
    message = failed(parse_store(str(tmp_path / "none")), tmp_path)
    assert message.startswith(f"{tmp_path}/none, collection docs: ")
    assert message.endswith(f"`chromafuse ingest SRC {tmp_path}/none`")
    assert not (tmp_path / "none").exists()


def test_a_missing_collection_is_one_line(embedded: StoreLocation, tmp_path: Path) -> None:
    """A collection that is not there is named, with the way out."""
    message = failed(parse_store(embedded.path, collection="other"), tmp_path)
    assert message.startswith(f"{embedded.path}, collection other: ")
    assert message.endswith("; check --collection, or fill it with `chromafuse ingest`")


def test_a_server_that_is_down_is_one_line(tmp_path: Path) -> None:
    """A server that refuses the connection is named, with the way out."""
    message = failed(parse_store(f"http://127.0.0.1:{free_port()}"), tmp_path)
    assert message.startswith("http://127.0.0.1:")
    assert message.endswith("; check that the store is running and the address is right")


def spoiled(server: ChromaServer, collection: str, document: str | None) -> StoreLocation:
    """Return a collection whose root record has this document, or has none."""
    location = parse_store(server.url, collection=collection)

    async def main() -> None:
        async with open_store(location, create=True) as store:
            rows = [Row(ROOT_ID, document, {"x": 1}, (1.0,) * 3)] if document else []
            await store.upsert(rows)

    trio.run(main)
    return location


@pytest.mark.parametrize(
    ("name", "document", "end"),
    [
        (
            "hub-empty",
            None,
            "the collection has no record __path_tree__: nothing was published in it; fill it with "
            "`chromafuse ingest`",
        ),
        (
            "hub-format",
            '{"format": 99}',
            "the collection has format 99; this program reads format 1; give another --collection",
        ),
        (
            "hub-damaged",
            '{"format": 1, "embedding": {"name": "constant", "dimension": 3}, "generation": "x"}',
            "the record __path_tree__ has no int 'generation'; publish a new tree: "
            "`chromafuse ingest SRC {location} --max-delete 100%`",
        ),
    ],
)
def test_a_tree_that_cannot_be_read_is_one_line(
    chroma_server: ChromaServer, tmp_path: Path, name: str, document: str | None, end: str
) -> None:
    """Nothing published, an unknown format and a damaged root are each one line with the way out."""
    location = spoiled(chroma_server, name, document)
    expected = f"{location}, collection {name}: {end.format(location=location)}"
    assert failed(location, tmp_path) == expected


def test_a_token_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """A token file that cannot be read is a user's mistake, said in its own words."""
    location = parse_store("https://127.0.0.1:9", token_file=tmp_path / "token")
    expected = f"cannot read the token file {tmp_path}/token: No such file or directory"
    assert failed(location, tmp_path) == expected


def test_a_bug_is_one_line_and_a_traceback_in_the_log(
    embedded: StoreLocation, tmp_path: Path
) -> None:
    """What the hub did not foresee is an internal error to the supervisor, and a traceback in its log."""
    with hub_process(embedded, tmp_path, pin={"generation": [], "sha256": 7}) as hub:
        assert hub.event() == {
            "event": "failed",
            "message": "internal error in the hub; its log has the traceback",
            "exit_code": 1,
        }
        assert hub.process.wait(timeout=10) == 1
    assert "Traceback (most recent call last):" in hub.log.read_text()


def test_it_ends_with_its_supervisor(embedded: StoreLocation, tmp_path: Path) -> None:
    """The end of the control socket ends hub and worker, whatever the view does."""
    with hub_process(embedded, tmp_path) as hub:
        assert hub.event() is not None
        children = hub.children()
        hub.hang_up()
        assert hub.process.wait(timeout=10) == 0
        assert children
        assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_it_ends_at_sigterm_also_while_it_starts(embedded: StoreLocation, tmp_path: Path) -> None:
    """SIGTERM around the loading of the tree is a clean end: no failure, exit code 0, no worker left."""
    with hub_process(embedded, tmp_path) as hub:
        worker = wait_for(hub.worker, what="the hub has its worker")
        hub.process.terminate()
        assert hub.process.wait(timeout=10) == 0
        # On a busy machine the hub may have become ready before the signal came.
        told = [event["event"] for event in iter(hub.event, None)]
        assert told in ([], ["ready"])
        wait_for(lambda: not _runs(worker), what="no worker")
    assert hub.log.read_text() == ""


def test_a_killed_hub_takes_its_worker_along(embedded: StoreLocation, tmp_path: Path) -> None:
    """SIGKILL of the hub ends its worker too, for the worker sees the end of its socket."""
    with hub_process(embedded, tmp_path) as hub:
        assert hub.event() is not None
        children = hub.children()
        hub.process.kill()
        hub.process.wait(timeout=10)
        wait_for(lambda: not any(_runs(pid) for pid in children), what="the worker is gone")
    assert children


def _runs(pid: int) -> bool:
    """Say whether a process lives; a zombie that nobody reaps does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_sigint_is_the_supervisors(embedded: StoreLocation, tmp_path: Path) -> None:
    """A Ctrl-C in the terminal, which all processes get, does not take the hub from under the view."""
    with hub_process(embedded, tmp_path) as hub:
        assert hub.event() is not None
        hub.process.send_signal(signal.SIGINT)
        hub.client.greet()
        assert hub.client.read(1, 2) == b"alpha\n"


@pytest.mark.parametrize("how", ["garbage", "a hang-up"])
def test_a_link_that_broke_is_replaced_with_its_hub(
    embedded: StoreLocation, tmp_path: Path, how: str
) -> None:
    """Where the view lives on without its link the hub fails, so that the next one brings a fresh link."""
    with hub_process(embedded, tmp_path) as hub:
        assert hub.event() is not None
        if how == "garbage":
            hub.client.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert hub.client.frame() is None
        else:
            hub.client.close()
        hub.send(ask="status")
        status = hub.event()
        assert status is not None
        assert status["event"] == "status"
        assert hub.event() == {
            "event": "failed",
            "message": f"{embedded.path}, collection docs: the link between hub and view broke",
            "exit_code": 1,
        }
        assert hub.event() is None
        assert hub.process.wait(timeout=10) == 1
    lines = hub.log.read_text().splitlines()
    assert [line[:27] for line in lines] == ["hub: WARNING: link closed: "] * (how == "garbage")


def test_neither_chromadb_nor_pyfuse3_is_loaded(embedded: StoreLocation, tmp_path: Path) -> None:
    """The hub maps no library of Chroma's or FUSE's into its process."""
    with hub_process(embedded, tmp_path) as hub:
        assert hub.event() is not None
        maps = Path(f"/proc/{hub.process.pid}/maps").read_text()
        assert "trio" in maps or ".so" in maps
        # By the names of the libraries: the checkout's own path may well hold the word.
        assert not re.search(r"chromadb_rust|/chromadb/|pyfuse3|libfuse3", maps)


def test_no_secret_is_in_its_command_line(embedded: StoreLocation, tmp_path: Path) -> None:
    """The command line names a descriptor and nothing of store, identity or link."""
    with hub_process(embedded, tmp_path) as hub:
        assert hub.event() is not None
        words = Path(f"/proc/{hub.process.pid}/cmdline").read_bytes().split(b"\0")[1:-1]
        assert words[:3] == [b"-m", b"chromafuse.hub", b"--control-fd"]
        assert len(words) == 4


# -- restarts ------------------------------------------------------------------------------------------

BEFORE: Site = {
    "kept.md": (PUBLIC, b"kept\n"),
    "changed.md": (PUBLIC, b"old\n"),
    "removed.md": (PUBLIC, b"removed\n"),
    "withdrawn.md": (PUBLIC, b"withdrawn\n"),
}
AFTER: Site = {
    "kept.md": (PUBLIC, b"kept\n"),
    "changed.md": (PUBLIC, b"new\n"),
    "withdrawn.md": (HIDDEN, b"withdrawn\n"),
    "added.md": (PUBLIC, b"added\n"),
}


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "from parts"])
def test_a_restarted_hub_goes_on_with_the_tree_of_the_first(
    chroma_server: ChromaServer, tmp_path: Path, cached: bool
) -> None:
    """With a pin the view keeps its inodes; what the new tree no longer shows is ESTALE, as is all else."""
    location = parse_store(chroma_server.url, collection=f"hub-pin-{cached}")
    put(location, BEFORE)
    cache = tmp_path / "cache" if cached else None
    with hub_process(location, tmp_path, cache_dir=cache) as hub:
        ready = hub.event()
        assert ready is not None
        greeting, snapshot = hub.client.greet()
        hub.process.kill()
    assert snapshot is not None
    put(location, AFTER)
    pin = {"generation": ready["generation"], "sha256": ready["sha256"]}
    with hub_process(location, tmp_path, cache_dir=cache, pin=pin) as hub:
        again = hub.event()
        assert again is not None
        assert (again["generation"], again["sha256"]) == (1, ready["sha256"])
        resumed, sent = hub.client.greet(1, greeting.digest)
        assert (resumed.generation, resumed.length, sent) == (1, 0, None)
        found = {snapshot.path(inode): hub.client.read(1, inode) for inode in snapshot.pages()}
    assert found == {
        "changed.md": b"old\n",
        "kept.md": b"kept\n",
        "removed.md": errno.ESTALE,
        "withdrawn.md": errno.ESTALE,
    }


def test_a_tree_that_nobody_has_any_more_is_stale(
    chroma_server: ChromaServer, tmp_path: Path
) -> None:
    """Where the pinned tree is gone, every read of the old mount is ESTALE, also under the same generation."""
    location = parse_store(chroma_server.url, collection="hub-gone")
    put(location, BEFORE)
    pin = {"generation": 1, "sha256": "ab" * 32}
    with hub_process(location, tmp_path, pin=pin) as hub:
        assert hub.event() is not None
        greeting, snapshot = hub.client.greet(1, b"\1" * 32)
        assert greeting.length > 0
        assert snapshot is not None
        assert {hub.client.read(1, inode) for inode in range(8)} == {errno.ESTALE}
    assert "no longer served" in hub.log.read_text()


def test_a_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """An outage is EIO or ETIMEDOUT for what is not cached, is logged once, told the view, and ends by itself."""
    server = ChromaServer(tmp_path / "server")
    try:
        server.start()
        location = parse_store(server.url)
        put(location, SITE)
        with hub_process(location, tmp_path) as hub:
            assert hub.event() is not None
            hub.client.greet()
            assert hub.client.read(1, 2) == b"alpha\n"
            server.kill()
            assert hub.client.read(1, 4) in (errno.EIO, errno.ETIMEDOUT)
            assert hub.client.read(1, 2) == b"alpha\n"
            server.start()
            wait_for(lambda: hub.client.read(1, 4) == b"beta\n" * 3_000, what="the page is back")
            hub.send(ask="status")
            status = hub.event()
            assert status is not None
            assert status["store_up"] is True
            wait_for(
                lambda: hub.client.read(1, 2) and hub.client.store_states == [True, False, True],
                what="the view was told of the outage and of its end",
            )
        lines = hub.log.read_text().splitlines()
        assert [line.partition(":")[2].partition(": ")[2][:27] for line in lines] == [
            "the store does not answer: ",
            "the store answers again",
        ]
    finally:
        server.kill()
