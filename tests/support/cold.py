"""Sites for reads that nothing has cached: what is in them, a mount's counters, and whole walks compared."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.ingesting import write_tree
from tests.support.mounts import Running
from tests.support.program import chromafuse, ok, output
from tests.support.waiting import wait_for

LOOK_FOR = "needle 7$"
WALKS: Mapping[str, Sequence[str]] = {
    "grep": ("grep", "-rn", LOOK_FOR, "."),
    "rg": ("rg", "--no-config", "-n", "-j4", LOOK_FOR, "."),
    "tar": ("tar", "cf", "-", "."),
    "find": ("find", ".", "-type", "f", "-exec", "cat", "{}", "+"),
}


@dataclass(frozen=True, slots=True)
class Site:
    """A published tree: its source, and the options that name its store."""

    pages: Mapping[str, bytes]
    source: Path
    store: str
    options: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all pages."""
        return sum(map(len, self.pages.values()))


@dataclass(frozen=True, slots=True)
class Counts:
    """What a hub has counted: requests of the view, calls for pages, bytes in its memory."""

    requests: int
    fetches: int
    cached: int

    @classmethod
    def of(cls, running: Running) -> Counts:
        """Ask a mount."""
        found = running.status()
        return cls(found["requests"], found["fetches"], found["cache_bytes"])


def publish(home: Path, pages: Mapping[str, bytes], store: str = "", *options: str) -> Site:
    """Ingest pages into `store`, else into a directory below `home`."""
    source = write_tree(home / "source", dict(pages))
    store = store or str(home / "store")
    ok(chromafuse(home, "ingest", source, store, "--default-access", "public", *options))
    return Site(pages, source, store, options)


def settled(running: Running) -> Counts:
    """Wait until a hub sends nothing any more; return its counters."""
    seen: list[Counts] = []

    def still() -> Counts | None:
        seen.append(Counts.of(running))
        return seen[-1] if seen[-1:] == seen[-2:-1] else None

    found = wait_for(still, timeout=30, what="the hub has nothing left to send")
    assert found is not None
    return found


def walked(tool: str, top: Path) -> object:
    """Walk a tree with a tool of WALKS; return what it found, in an order of its own."""
    found = output(WALKS[tool], top)
    if tool != "tar":
        return sorted(found.splitlines())
    with tarfile.open(fileobj=io.BytesIO(found)) as packed:
        files = [member for member in packed if member.isfile()]
        return {file.name: packed.extractfile(file).read() for file in files}  # type: ignore[union-attr]


def differences(source: Path, point: Path) -> str:
    """Return what `diff -r` says of a tree and its mount; nothing where every byte is the same."""
    command = ["diff", "-r", str(source), str(point)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr
