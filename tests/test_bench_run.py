"""The bench as a whole, on a few pages: it measures, keeps its figures, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.workplace import mounts_below
from tests.support.program import CHECKOUT
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.chroma]


@pytest.fixture(name="place")
def own_place(mount_root: Path) -> Iterator[Path]:
    """Give a temporary directory for the bench, and demand that it is empty and free of mounts afterwards."""
    place = mount_root / "tmp"
    place.mkdir()
    yield place
    wait_for(lambda: not mounts_below(place), what="the bench unmounts")
    wait_for(lambda: not list(place.iterdir()), what="the bench removes its directory")


def bench(place: Path, *words: str) -> subprocess.Popen[str]:
    """Start the bench with `place` for its temporary directory and no peers."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench", *words],
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(place), "CHROMAFUSE_BENCH_PEERS": str(place / "none")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_small_run(place: Path, tmp_path: Path) -> None:
    """Twenty pages, one round: every contender prints the same, and a warm walk asks the view nothing."""
    kept = tmp_path / "figures.json"
    words = ("warm", "cold", "--pages", "20", "--rounds", "1", "--json", str(kept))
    with bench(place, *words) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    document: dict[str, Any] = json.loads(kept.read_text())
    warm, cold = document["tables"]
    assert [table["question"] for table in (warm, cold)] == ["warm", "cold"]
    assert "again, everything in the kernel; 20 files" in out
    rows = [row for table in (warm, cold) for row in table["rows"]]
    assert [row["note"] for row in rows] == [""] * len(rows)
    ours = {
        (row["work"], row["contender"]): row["used"]
        for row in warm["rows"]
        if row["contender"] == "chromafuse"
    }
    assert {used["requests"] for used in ours.values()} == {0}
    assert {("grep -r", "chromafuse"), ("rg", "chromafuse")} <= set(ours)
    assert {row["contender"] for row in cold["rows"] if row["work"] == "grep -r"} == {
        "plain copy", "plain script", "chromafuse", "chromafuse, stock mode",
        "naive class", "naive class, $contains",
    }  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_nothing(place: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM in the middle of a run unmount everything and remove the directory."""
    with bench(place, "warm", "--pages", "20", "--rounds", "9999") as process:
        wait_for(lambda: len(mounts_below(place)) == 2, timeout=60, what="two mounts")
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, -signal.SIGKILL), err


def test_the_next_run_clears_what_a_killed_one_left(place: Path) -> None:
    """A run that is killed leaves its mounts; the next one unmounts and removes them first."""
    with bench(place, "warm", "--pages", "20", "--rounds", "9999") as killed:
        wait_for(lambda: len(mounts_below(place)) == 2, timeout=60, what="two mounts")
        killed.kill()
    (left,) = place.iterdir()
    with bench(place, "open", "--pages", "20", "--rounds", "1") as process:
        _, err = process.communicate(timeout=120)
    assert (process.returncode, left.exists()) == (0, False), err
