"""The quota proxy enforces Chroma Cloud's limits, and the server store keeps within them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chromafuse.errors import StoreDenied, StoreRejected
from chromafuse.store.location import open_store, parse_store
from chromafuse.store.protocol import Row, Store
from tests.support.backends import ServerBackend, run
from tests.support.chroma_server import ChromaServer
from tests.support.quota_proxy import QuotaProxy, running_proxy

pytestmark = pytest.mark.chroma

COLLECTION = "quota-proxy"


@pytest.fixture
def proxy(chroma_server: ChromaServer) -> Iterator[QuotaProxy]:
    """Give a proxy with an empty log."""
    with running_proxy(chroma_server.url) as proxy:
        yield proxy


@pytest.fixture
def backend(
    chroma_server: ChromaServer, proxy: QuotaProxy, tmp_path: Path
) -> Iterator[ServerBackend]:
    """Give a store behind the proxy, over a collection that is removed afterwards."""
    token = tmp_path / "token"
    token.write_text(QuotaProxy.token)
    backend = ServerBackend(chroma_server, COLLECTION, proxy, token)
    run(backend, _nothing)
    yield backend
    backend.remove()


async def _nothing(store: Store) -> None:
    """Open and close."""


def ask(
    proxy: QuotaProxy,
    action: str,
    body: dict[str, Any],
    *,
    token: str | None = QuotaProxy.token,
    tenant: str = QuotaProxy.tenant,
    database: str = QuotaProxy.database,
) -> tuple[int, Any]:
    """Send one request to the collection and return status and decoded answer."""
    base = f"http://127.0.0.1:{proxy.port}/api/v2/tenants/{tenant}/databases/{database}/collections"
    headers = {"content-type": "application/json"} | ({"x-chroma-token": token} if token else {})

    def send(url: str, data: bytes | None) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data, headers), timeout=10
            ) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, json.load(exc)

    status, found = send(f"{base}/{COLLECTION}", None)
    if status != 200:
        return status, found
    return send(f"{base}/{found['id']}/{action}", json.dumps(body).encode())


def rows(
    count: int, *, document: str = "x", id_length: int = 5, metadata: Any = None
) -> dict[str, Any]:
    """Return the body of a write."""
    return {
        "ids": [f"{number:0{id_length}}" for number in range(count)],
        "embeddings": [[1.0]] * count,
        "documents": [document] * count,
        "metadatas": [metadata] * count,
    }


def either(count: int) -> dict[str, Any]:
    """Return a filter of `count` predicates."""
    return {"$or": [{"page": str(number)} for number in range(count)]}


LIMITS = {
    "rows of an add": ("add", rows(300), rows(301)),
    "rows of an upsert": ("upsert", rows(300), rows(301)),
    "rows of a delete": ("delete", {"ids": rows(300)["ids"]}, {"ids": rows(301)["ids"]}),
    "ids of a get": ("get", {"ids": rows(300)["ids"]}, {"ids": rows(301)["ids"]}),
    "limit of a get": ("get", {"limit": 300}, {"limit": 301}),
    "document": ("add", rows(1, document="ä" * 8_192), rows(1, document="ä" * 8_192 + "x")),
    "id": ("add", rows(1, id_length=128), rows(1, id_length=129)),
    "predicates": ("get", {"where": either(8)}, {"where": either(9)}),
    "metadata key": ("add", rows(1, metadata={"k" * 36: 1}), rows(1, metadata={"k" * 37: 1})),
    "metadata value": (
        "add",
        rows(1, metadata={"k": "v" * 4_096}),
        rows(1, metadata={"k": "v" * 4_097}),
    ),
    "metadata keys": (
        "add",
        rows(1, metadata={f"k{number}": 1 for number in range(32)}),
        rows(1, metadata={f"k{number}": 1 for number in range(33)}),
    ),
}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_is_enforced(limit: str, proxy: QuotaProxy) -> None:
    """A request at a limit passes to the server, one over it is a quota error."""
    action, within, over = LIMITS[limit]
    status, _ = ask(proxy, action, within)
    assert status in (200, 201)
    status, answer = ask(proxy, action, over)
    assert (status, answer["error"], answer["message"][:14]) == (
        422,
        "ChromaError",
        "Quota exceeded",
    )


@pytest.mark.usefixtures("backend")
def test_results_are_limited(proxy: QuotaProxy) -> None:
    """A read that names no limit gets at most 300 rows."""
    for start in ("a", "b"):
        body = rows(200)
        body["ids"] = [start + id for id in body["ids"]]
        ask(proxy, "add", body)
    assert len(ask(proxy, "get", {})[1]["ids"]) == 300


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"token": None}, 401),
        ({"token": "another"}, 401),
        ({"tenant": "another"}, 403),
        ({"database": "another"}, 404),
    ],
)
def test_only_the_right_account_passes(
    wrong: dict[str, str | None], status: int, proxy: QuotaProxy
) -> None:
    """Without the token header, or with another token, tenant or database, nothing passes."""
    assert ask(proxy, "get", {}, **wrong)[0] == status  # type: ignore[arg-type]


# -- the store within these limits --------------------------------------------------------------------


def row(number: int, document: str = "x") -> Row:
    """Return a row as writers make it."""
    return Row(f"{number:05}", document, {"n": number}, (1.0,))


def test_a_store_told_of_the_limit_is_never_refused(
    backend: ServerBackend, proxy: QuotaProxy
) -> None:
    """With 300 rows a request set, 301 rows pass in two requests each way, without a refusal."""
    written = [row(number) for number in range(301)]
    ids = [row.id for row in written]

    async def body(store: Store) -> None:
        await store.add(written)
        assert sorted(await store.list_ids()) == ids
        assert len(await store.get(ids)) == 301
        assert await store.existing(ids) == set(ids)
        await store.delete(ids)

    del proxy.log[:]
    run(backend, body, rows_per_call=300)
    assert {passed.status for passed in proxy.log} <= {200, 201}
    assert [passed.rows for passed in proxy.log if passed.rows] == [300, 1] * 4


def test_a_refusal_lowers_the_batch_once(backend: ServerBackend, proxy: QuotaProxy) -> None:
    """A server that says 1,000 and refuses 301 is refused once; from then on requests carry 300."""
    written = [row(number) for number in range(1_000)]

    async def body(store: Store) -> None:
        assert store.rows_per_call == 1_000
        await store.add(written)
        assert store.rows_per_call == 300
        assert len(await store.get([row.id for row in written])) == 1_000
        assert len(await store.list_ids()) == 1_000

    del proxy.log[:]
    run(backend, body)
    assert [passed.rows for passed in proxy.log if passed.rows] == [1_000] + [
        300,
        300,
        300,
        100,
    ] * 2
    assert [passed.status for passed in proxy.log if passed.status >= 400] == [422]


def test_one_row_that_is_too_large_is_refused(backend: ServerBackend) -> None:
    """A document over the limit is a refusal that names the limit, and does not lower the batch."""
    written = [row(0), row(1, "x" * 16_385), row(2)]

    async def body(store: Store) -> None:
        before = store.rows_per_call
        with pytest.raises(StoreRejected) as caught:
            await store.add(written)
        assert "'Document size' exceeded quota limit" in str(caught.value)
        assert store.rows_per_call == before

    run(backend, body)


@pytest.mark.parametrize("token", [None, "wrong-token"])
def test_a_wrong_token_is_denied(token: str | None, proxy: QuotaProxy, tmp_path: Path) -> None:
    """Without the right token opening fails at once, as denied, and the error does not show the token."""
    file = tmp_path / "token"
    file.write_text(token or "")
    location = parse_store(
        proxy.url, collection=COLLECTION, token_file=file if token else None, env={}
    )

    async def main() -> None:
        async with open_store(location):
            pass

    with pytest.raises(StoreDenied) as caught:
        trio.run(main)
    assert str(caught.value) == f"{location.url}: Unauthorized (status 401)"
    assert len(proxy.log) == 1


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("path", ["another/handbook", "acme/another"])
@pytest.mark.parametrize("create", [False, True])
def test_a_wrong_tenant_or_database_is_denied(
    path: str, create: bool, proxy: QuotaProxy, tmp_path: Path
) -> None:
    """Another tenant or database is denied, it is not taken for a missing collection."""
    url = f"http://127.0.0.1:{proxy.port}/{path}"
    location = parse_store(url, collection=COLLECTION, token_file=tmp_path / "token", env={})

    async def main() -> None:
        async with open_store(location, create=create):
            pass

    with pytest.raises(StoreDenied):
        trio.run(main)
