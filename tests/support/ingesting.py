"""Running `ingest` in the test's own process: its arguments as typed, its report as a person reads it.

`Shelf` stands for the place that STORE names; it holds a collection in memory, or nothing yet.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import trio
from rich.console import Console

from chromafuse.errors import StoreMissing
from chromafuse.ingest import command
from chromafuse.ingest.command import IngestResult, add_arguments, ingest, options_of
from chromafuse.store.location import StoreLocation
from chromafuse.store.protocol import Row
from tests.support.memory_store import MemoryStore
from tests.support.publishing import Call, Steered, published_source

NOBODY = 65534


@dataclass(slots=True)
class Shelf:
    """A place for one collection. `before` sees every call of the store; `calls` are those of the last run."""

    store: MemoryStore | None = None
    before: Callable[[Call], Awaitable[None]] | None = None
    calls: list[Call] = field(default_factory=list)

    @asynccontextmanager
    async def open(
        self, location: StoreLocation, *, create: bool = False
    ) -> AsyncIterator[Steered]:
        """Stand in for `open_store`."""
        if self.store is None:
            if not create:
                raise StoreMissing(f"{location}: nothing is there")
            self.store = MemoryStore()
        steered = Steered(self.store, self.before)
        self.calls = steered.calls
        yield steered

    def put_on(self, monkeypatch: pytest.MonkeyPatch) -> Shelf:
        """Make `ingest` open this shelf, whatever the location."""
        monkeypatch.setattr(command, "open_store", self.open)
        return self

    @property
    def rows(self) -> dict[str, Row]:
        """A copy of what is stored."""
        return dict(self.store.rows or {}) if self.store else {}

    def pages(self) -> dict[str, bytes]:
        """Return what is published, read back and checked."""
        assert self.store is not None
        return trio.run(published_source, self.store)


def parse(*arguments: str) -> argparse.Namespace:
    """Read the arguments that `ingest` takes behind SRC and STORE."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser.parse_args(arguments)


def run_ingest(
    source: Path, *arguments: str, store: Path = Path("/nowhere/store")
) -> tuple[IngestResult, str]:
    """Run ingest to its end; return its result and what it wrote to a pipe. Lets its exception out."""
    output = io.StringIO()
    result = trio.run(partial(start_ingest, source, *arguments, store=store, output=output))
    return result, output.getvalue()


async def start_ingest(
    source: Path,
    *arguments: str,
    store: Path = Path("/nowhere/store"),
    output: io.StringIO | None = None,
) -> IngestResult:
    """Run ingest inside a trio task."""
    return await ingest(
        StoreLocation("embedded", path=str(store)),
        source,
        options_of(parse(*arguments)),
        console=Console(file=output or io.StringIO()),
        progress_console=Console(file=io.StringIO()),
    )


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    """Make a directory that holds `files`, and return it."""
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@contextmanager
def as_nobody() -> Iterator[None]:
    """Open files as an ordinary user: root could read them all."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def git(directory: Path, *arguments: str, at: int = 0) -> None:
    """Run git with a fixed author and time."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_COMMITTER_DATE": f"{at} +0000",
        "GIT_AUTHOR_DATE": f"{at} +0000",
    }
    words = [
        "git",
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "-c",
        "commit.gpgsign=false",
        *arguments,
    ]
    subprocess.run(words, cwd=directory, env=environment, check=True, capture_output=True)


def make_checkout(root: Path) -> Path:
    """Make a checkout with three commits in which `site` is the source."""
    write_tree(root, {"site/a.md": b"1", "site/b c/ü\n.md": b"1", "other.md": b"1"})
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one", at=1_000_000_000)
    write_tree(root, {"site/a.md": b"2"})
    git(root, "commit", "-qam", "two", at=1_100_000_000)
    write_tree(root, {"other.md": b"2"})
    git(root, "commit", "-qam", "three", at=1_200_000_000)
    return root / "site"
