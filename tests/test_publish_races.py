"""Two writers at once on real Chroma, killed at random: the tree that is left is whole, and one of theirs.

Fifteen races on each backend; a hundred under the profile `long` (make test-long). The writers live on from
race to race, and are started anew only where one was killed. With a grace of 0 every race also collects
what the one before left, so that a deletion that should not have been shows at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trio

from chromafuse.store.location import StoreLocation, open_store, parse_store
from chromafuse.store.publish import find_root
from chromafuse.store.verify import verify
from tests.support.chroma_server import ChromaServer, chroma_server
from tests.support.publishing import needed_ids, publish_source, published_source
from tests.support.session import session_root

__all__ = ["chroma_server"]

ROOT = Path(__file__).resolve().parents[1]
RACES = 100 if hypothesis.settings.get_current_profile_name() == "long" else 15
LEASE = 1.0  # s; what a race after a killed writer costs
WAIT = 60.0  # s
LINE = b"a line of a page\n"

log = logging.getLogger(__name__)
pytestmark = pytest.mark.chroma


class Writer:
    """One writer process, and its child where the store is embedded."""

    def __init__(self, location: StoreLocation) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.race_writer", json.dumps(location.to_json())],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # select() sees what is there
            start_new_session=True,
        )
        self._ready = False

    def get_ready(self) -> None:
        """Wait until it has opened the store."""
        if not self._ready:
            assert self.answer(30) == {"ready": True}
            self._ready = True

    def order(self, source: dict[str, bytes], grace: float) -> None:
        """Have it publish `source`."""
        texts = {path: data.decode() for path, data in source.items()}
        line = json.dumps({"source": texts, "lease": LEASE, "wait": WAIT, "grace": grace}) + "\n"
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """Return its verdict, None where it does not come in time or the process ended."""
        deadline = time.monotonic() + seconds
        while line := self._line(deadline - time.monotonic()):
            if line != {"holds": True}:
                return line
        return None

    def waits_for_lock(self, seconds: float) -> bool:
        """Wait until it has the lock; return whether it did not get it in time."""
        return self._line(seconds) != {"holds": True}

    def _line(self, seconds: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(seconds, 0))
        line = self._process.stdout.readline() if ready else b""
        return json.loads(line) if line.endswith(b"\n") else None

    def kill(self) -> None:
        """SIGKILL it, and nothing else: its child has to notice."""
        self._process.kill()
        self._process.wait(timeout=10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Arena:
    """Two writers on one collection."""

    def __init__(self, location: StoreLocation, seed: int) -> None:
        self.location = location
        self.random = random.Random(seed)
        self.writers = [Writer(location), Writer(location)]
        self.outcomes: Counter[str] = Counter()

    def source(self, race: int, writer: int) -> dict[str, bytes]:
        """Return a small source that shares pages with others, and is like no other."""
        shared = {f"dir/{c}.md": LINE * self.random.choice([0, 3, 400]) for c in "abcd"}
        kept = {path: data for path, data in shared.items() if self.random.random() < 0.7}
        return {**kept, "own.md": b"race %d, writer %d\n" % (race, writer)}

    def race(self, number: int, before: dict[str, bytes]) -> list[dict[str, bytes]]:
        """Run one race; return what may be published after it."""
        sources = [self.source(number, writer) for writer in range(2)]
        grace = self.random.choice([0.0, 600.0])
        for writer in self.writers:
            writer.get_ready()
        for writer, source in zip(self.writers, sources, strict=True):
            writer.order(source, grace)
        victim = self.random.choice([None, 0, 1])
        answers: list[dict[str, Any] | None] = [None, None]
        if victim is not None:
            answers[victim] = self._kill(victim)
        for index in range(2):
            if answers[index] is None and index != victim:
                answers[index] = self.writers[index].answer(90)
                assert answers[index] is not None, "a writer gave no answer"
        for answer in answers:
            self.outcomes.update(["published"] if answer and "published" in answer else [])
            self.outcomes.update([answer["failed"]] if answer and "failed" in answer else [])
        done = any(answer and "published" in answer for answer in answers)
        return sources if done else [*sources, before]

    def _kill(self, victim: int) -> dict[str, Any] | None:
        """Kill a writer at some time after the order, or after it got the lock; None if it was not done."""
        writer = self.writers[victim]
        holds = self.random.random() < 0.5 and not writer.waits_for_lock(WAIT)
        answer = writer.answer(self.random.uniform(0, 0.1 if holds else 0.25))
        if answer is None:
            writer.kill()
            self.writers[victim] = Writer(self.location)
            self.outcomes["killed with the lock" if holds else "killed"] += 1
        return answer

    def close(self) -> None:
        """End the writers."""
        for writer in self.writers:
            writer.kill()


@contextlib.contextmanager
def arena(location: StoreLocation, seed: int) -> Iterator[Arena]:
    """Give two writers, ended afterwards."""
    fight = Arena(location, seed)
    try:
        yield fight
    finally:
        fight.close()


async def run_races(location: StoreLocation, seed: int) -> Counter[str]:
    """Run RACES races, and look at the store after each."""
    async with open_store(location, create=True) as store:
        before = {"first.md": b"first\n"}
        await publish_source(store, before)
        with arena(location, seed) as fight:
            for number in range(RACES):
                allowed = await trio.to_thread.run_sync(fight.race, number, before)
                report = await verify(store)
                assert report.problems == (), (number, fight.outcomes)
                before = await published_source(store)
                assert before in allowed, (number, fight.outcomes)
        # Whoever was killed left a lock, unpublished chunks, condemned names: one more run takes it all.
        last = {"last.md": b"last\n"}
        await publish_source(store, last, grace=0, lease=LEASE, wait=WAIT)
        root = await find_root(store)
        assert root is not None
        assert set(await store.list_ids()) == needed_ids(root, last)
    return fight.outcomes


def check_races(location: StoreLocation) -> None:
    """Run the races; they count only where writers were killed and where writers published."""
    seed = int.from_bytes(os.urandom(4), "big")
    log.info("seed %d", seed)
    outcomes = trio.run(run_races, location, seed)
    log.info("outcomes: %s", dict(outcomes))
    assert outcomes["killed"] + outcomes["killed with the lock"] >= RACES // 5, outcomes
    assert outcomes["killed with the lock"] >= RACES // 15, outcomes
    assert outcomes["published"] >= RACES, outcomes


@pytest.mark.timeout(1_800)
@pytest.mark.expect_log("asked again", maybe=True)
def test_races_on_a_server(chroma_server: ChromaServer) -> None:
    """After every race on a real server the tree is whole, and one of the two sources."""
    check_races(parse_store(chroma_server.url, collection="races", env={}))


@pytest.mark.timeout(1_800)
@pytest.mark.expect_log("no answer within", maybe=True)
def test_races_on_an_embedded_store() -> None:
    """The same on one directory that the writers' own engines share."""
    directory = tempfile.mkdtemp(prefix="races-", dir=session_root())
    check_races(parse_store(directory, collection="races", env={}))
