"""The hub as a process: start-up, failures in one line, signals, ends, and what a restarted hub serves."""

from __future__ import annotations

import errno
import signal
import subprocess
from collections.abc import Iterator, Mapping
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
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreLocation]:
    """Give an embedded store with SITE in it, which no test changes."""
    location = parse_store(str(tmp_path_factory.mktemp("hub") / "store"))
    put(location, SITE)
    yield location


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
        greeting, snapshot = hub.client.greet()
        assert snapshot is not None
        assert [snapshot.path(inode) for inode in snapshot.pages()] == ["a.md", "b/c.md"]
        assert hub.client.read(1, 2) == b"alpha\n"
        assert hub.client.read(1, 4) == b"beta\n" * 3_000
        assert hub.client.store_states == [True]
        hub.send(ask="status")
        assert hub.event() == {
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
        }
        hub.process.terminate()
        assert hub.event() is None
        assert hub.process.wait(timeout=10) == 0
    assert hub.log.read_text() == ""
