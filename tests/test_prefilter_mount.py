"""How candidates are found, as --prefilter has it, on real mounts: each way gives the real tool's output."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.ingesting import write_tree
from tests.support.mounts import small_store  # noqa: F401
from tests.support.program import chromafuse, mounted, ok
from tests.support.shims import Shell
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount]

SITE = {f"filler/{number:02}.md": b"nothing much\n" for number in range(30)}
SITE |= {"guide/install.md": b"install the needle\n", "guide/usage.md": b"use it\n"}


@pytest.mark.parametrize(
    ("mode", "way", "why"),
    [
        ("auto", "filtered", "1 of 32 pages (index)"),
        ("index", "filtered", "1 of 32 pages (index)"),
        ("chroma", "filtered", "1 of 32 pages (chroma)"),
        ("none", "plain", "filtering is switched off"),
    ],
)
def test_the_flag_chooses_how_candidates_are_found(
    mode: str, way: str, why: str, tmp_path: Path
) -> None:
    """Each mode says how it searched, builds an index only where that is its way, and finds the same."""
    source = write_tree(tmp_path / "source", SITE)
    ok(chromafuse(tmp_path, "ingest", source, tmp_path / "store", "--default-access", "public"))
    shell, tries = Shell(tmp_path / "shims"), itertools.count(1000)
    with mounted(tmp_path, tmp_path / "store", tmp_path / "mnt", "--prefilter", mode) as point:

        def last() -> tuple[str, str]:
            # Each time another question: answers are remembered.
            return shell.shim(f"grep -r -e needle -e w{next(tries)} guide filler", point).ways[-1]

        wait_for(lambda: last() == (way, why), what=f"{way}: {why}, not {last()}", timeout=60)
        found = shell.shim("grep -rn needle guide filler", point)
        assert found.output == (0, b"guide/install.md:1:install the needle\n", b"")
    built = list((tmp_path / "cache" / "chromafuse").glob("index/*.index"))
    assert len(built) == (mode in ("auto", "index"))


def test_an_unknown_way_is_a_mistake_of_use(tmp_path: Path) -> None:
    """Another word than the four is refused with exit code 2 and a line that names them."""
    done = chromafuse(tmp_path, "mount", "store", "mnt", "--prefilter", "magic")
    assert done.returncode == 2
    assert "auto" in done.stderr
    assert "none" in done.stderr
