"""What the questions share in one run: the corpus, stores that hold it, mounts of them.

All is made when it is first asked for, and ends with the run; copy and stores may be kept for the next one.

Concurrency: one thread.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from . import corpus, mounted, server
from .contenders import Program, Work, program, python_host
from .corpus import Corpus
from .measure import Run, run
from .mounted import Mount
from .server import Server

COLLECTION = "docs"  # what ingest and mount take where none is named


class Lab:
    """One corpus in one directory, and everything over it."""

    def __init__(
        self, root: Path, stack: ExitStack, pages: int, rounds: int, kept: Path | None = None
    ) -> None:
        self.root, self.rounds = root, rounds
        self._stack, self._pages = stack, pages
        self._home = root if kept is None else kept.resolve() / str(pages)
        self._places = 0

    @cached_property
    def corpus(self) -> Corpus:
        """The pages on disk: the copy that everything is compared with."""
        copy = self._home / "copy"
        with _making(copy) as new:
            made = corpus.make(copy, self._pages) if new else corpus.describe(copy, self._pages)
        say(f"{made.files:,} files, {made.size >> 20} MB, {made.what}")
        return made

    @property
    def copy(self) -> str:
        """The directory of the copy."""
        return str(self.corpus.root)

    @cached_property
    def embedded(self) -> str:
        """An embedded store with the corpus in it."""
        store, source = self._home / "store", self.corpus.root
        with _making(store) as new:
            if new:
                say(f"ingest into a directory: {mounted.ingest(source, str(store)):.1f} s")
        return str(store)

    @cached_property
    def server(self) -> Server:
        """A Chroma server with the corpus in it."""
        home, source = self._home / "server", self.corpus.root
        with _making(home) as new:
            found = self._stack.enter_context(server.serve(home))
            if new:
                say(f"ingest into a server: {mounted.ingest(source, found.url):.1f} s")
        return found

    @contextmanager
    def mount(self, *, fast: bool = True, server: bool = False) -> Iterator[Mount]:
        """Mount the embedded store, or the server's, at a place that was never mounted."""
        store, pid = (self.server.url, self.server.pid) if server else (self.embedded, None)
        with mounted.mount(store, self.new_place("mount"), fast=fast, store_pid=pid) as live:
            yield live

    def new_place(self, name: str) -> Path:
        """Return a path where nothing is, and never was: the kernel has nothing of it in its caches."""
        self._places += 1
        return self.root / f"{name}-{self._places}"

    def on_copy(self, work: Work) -> Run:
        """Do some work on the copy."""
        return run(work.command, self.copy)

    @contextmanager
    def host(self, name: str, *, server: bool = False) -> Iterator[Program]:
        """Run a program of hosts/ that takes a store and a collection."""
        store = self.server.url if server else self.embedded
        command = python_host(name, store, COLLECTION)
        with program(command, self.root / f"{name}.log") as started:
            yield started


@contextmanager
def _making(path: Path) -> Iterator[bool]:
    """Say whether `path` has to be made; half made ones, of a run that failed, are made anew."""
    done = path.with_name(f"{path.name}.done")
    new = not done.exists()
    if new:
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
    yield new
    done.touch()


def say(text: str) -> None:
    """Say what is going on, on stderr."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
