"""A proxy before a real Chroma server that answers within Chroma Cloud's limits and refuses as Cloud does.

It knows one token, one tenant and one database, which stand for the server's default ones. `log` tells what
passed; `distort` may change an answer, to stand for a server that is broken.

Concurrency: a thread a connection; the log is appended to only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ROWS = 300
DOCUMENT_BYTES = 16_384
ID_BYTES = 128
PREDICATES = 8
KEY_BYTES = 36
VALUE_BYTES = 4_096
KEYS = 32

Answer = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Passed:
    """One request: its method, the last word of its path, how many rows it named, the status it got."""

    method: str
    action: str
    rows: int
    status: int


class QuotaProxy:
    """The proxy's settings and log."""

    token = "ck-quota-proxy-token"
    tenant = "acme"
    database = "handbook"

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.port = 0
        self.log: list[Passed] = []
        self.distort: Callable[[str, Answer], Answer] = lambda action, answer: answer

    @property
    def url(self) -> str:
        """The STORE of the proxy."""
        return f"http://127.0.0.1:{self.port}/{self.tenant}/{self.database}"

    def refusal(self, action: str, body: dict[str, Any]) -> str | None:
        """Return which limit the request is over, None where it is within all."""
        checks: dict[str, list[tuple[str, int, int]]] = {
            "Number of records": [(action, len(body.get("ids") or ()), ROWS)],
            "Limit": [(action, body.get("limit") or 0, ROWS)],
            "ID size": [(action, _longest(body.get("ids")), ID_BYTES)],
            "Document size": [(action, _longest(body.get("documents")), DOCUMENT_BYTES)],
            "Number of where predicates": [(action, _predicates(body.get("where")), PREDICATES)],
            **_metadata_checks(action, body.get("metadatas") or []),
        }
        for what, measured in checks.items():
            for name, usage, limit in measured:
                if usage > limit:
                    return (
                        f"Quota exceeded: '{what}' exceeded quota limit for action '{name}': "
                        f"current usage of {usage} exceeds limit of {limit}"
                    )
        return None


def _metadata_checks(action: str, metadatas: list[Any]) -> dict[str, list[tuple[str, int, int]]]:
    rows = [row for row in metadatas if row]
    return {
        "Metadata key size": [(action, max(map(_longest, rows), default=0), KEY_BYTES)],
        "Metadata value size": [
            (action, max((_longest(row.values()) for row in rows), default=0), VALUE_BYTES)
        ],
        "Number of metadata keys": [(action, max(map(len, rows), default=0), KEYS)],
    }


def _longest(texts: Any) -> int:
    return max((len(text.encode()) for text in texts or () if isinstance(text, str)), default=0)


def _predicates(where: Any) -> int:
    if not isinstance(where, dict):
        return 0
    return sum(
        sum(map(_predicates, value)) if key in ("$and", "$or") else 1
        for key, value in where.items()
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one segment
    proxy: QuotaProxy

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output clean; `QuotaProxy.log` is the log."""

    def finish(self) -> None:
        """Close; what is left in the buffer of a client that is gone does not matter."""
        with contextlib.suppress(ConnectionError):
            super().finish()

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["content-length"])))

    def _serve(self, data: bytes | None) -> None:
        body = json.loads(data) if data else {}
        action = self.path.rpartition("/")[2]
        status, answer = self.proxy.distort(action, self._answer(action, body, data))
        self.proxy.log.append(Passed(self.command, action, len(body.get("ids") or ()), status))
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a client may give up
            self.wfile.write(answer)
            self.wfile.flush()

    def _answer(self, action: str, body: dict[str, Any], data: bytes | None) -> Answer:
        proxy = self.proxy
        if self.headers["x-chroma-token"] != proxy.token:
            return _error(401, "AuthError", "Unauthorized")
        if action == "pre-flight-checks":  # Cloud says 1000 and refuses 301
            return 200, b'{"max_batch_size":1000,"supports_base64_encoding":true}'
        steps = self.path.split("/")  # "", api, v2, tenants, T, databases, D, …
        if steps[4:5] != [proxy.tenant]:
            return _error(403, "AuthError", "Permission denied.")
        if steps[6:7] != [proxy.database]:
            return _error(404, "NotFoundError", "Database not found")
        refused = proxy.refusal(action, body)
        if refused:
            return _error(422, "ChromaError", refused)
        if action == "get" and not body.get("limit"):
            data = json.dumps({**body, "limit": ROWS}).encode()
        steps[4], steps[6] = "default_tenant", "default_database"
        return self._forward("/".join(steps), data)

    def _forward(self, path: str, data: bytes | None) -> Answer:
        host = urlsplit(self.proxy.upstream)
        connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=30)
        try:
            connection.request(self.command, path, data, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError as exc:
            return _error(502, "BadGateway", str(exc))
        finally:
            connection.close()


def _error(status: int, name: str, message: str) -> Answer:
    return status, json.dumps({"error": name, "message": message}).encode()


class _Server(ThreadingHTTPServer):
    """Ends its connections when it ends: it stands for a server that can be gone."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may give up at any point; anything else is the test's own fault and is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextmanager
def running_proxy(upstream: str, port: int = 0) -> Iterator[QuotaProxy]:
    """Run a proxy before the server `upstream`, on a port of its own or on `port`."""
    proxy = QuotaProxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with _Server(("127.0.0.1", port), handler) as server:
        proxy.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
