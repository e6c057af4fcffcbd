"""A table of command lines, each with a trap of grep's or rg's, run by the shims on a real mount.

The table may lie beside the checkout, as the real documentation does; without it the tests skip. Columns: tool
(with variables before it), arguments, the trap, and whether the search may be filtered (`yes`; who understands
more may filter others).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.corpora import ARCHIVES, corpus
from tests.support.session import session_root
from tests.support.shims import Ran
from tests.test_search_mount import ODD, Place, in_order, start

TABLE = ARCHIVES.parent / "cases" / "grep_cases.tsv"
WORDS = ("install", "webhook", "zqxjkvwy")  # in many pages, in some, in none
PARTS = 6  # of the table, each a test
# What --stats and --debug tell is never the same twice.
_TIMES = re.compile(rb"\d\.\d+ seconds|\"(secs|nanos|human)\":[^,}]*|^DEBUG.*\n", re.MULTILINE)

pytestmark = [pytest.mark.mount, pytest.mark.slow]


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    line: str
    trap: str
    may_filter: bool

    @property
    def unordered(self) -> bool:
        """Say whether the tool itself gives no order: rg with its threads."""
        return " rg " in f" {self.line}" and "--sort" not in self.line and "-j1" not in self.line


def cases() -> list[Case]:
    """Read the table, or skip the test."""
    if not TABLE.is_file():
        pytest.skip(f"no table of cases: {TABLE} is absent")
    rows = (line.split("\t") for line in TABLE.read_text().splitlines())
    return [Case(f"{tool} {words}", trap, rule == "yes") for tool, words, trap, rule in rows]


def documentation() -> dict[str, bytes]:
    """Return pages of a real site, two of them in its root, and some that tools mind."""
    tree = corpus("mintlify-docs")
    pages = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*.mdx")}
    return pages | {"README.md": b"# install\nfoo\n", "more.md": b"to configure, install it\n"}


@pytest.fixture(scope="module", name="documents")
def mounted_documents() -> Iterator[Place]:
    """Give a mounted documentation of plain texts."""
    with ExitStack() as stack:
        yield start(stack, documentation(), "--unrestricted")


@pytest.fixture(scope="module", name="mixed")
def mounted_mixture() -> Iterator[Place]:
    """Give the same with pages that are no plain text."""
    with ExitStack() as stack:
        yield start(stack, documentation() | ODD, "--unrestricted")


def run_part(place: Place, word: str, part: int) -> tuple[list[str], int, int]:
    """Run a part of the rows; return what differed, how many may be filtered, and how many of these were."""
    found, filterable, filtered = [], 0, 0
    for case in cases()[part::PARTS]:
        shim, real, plain = run(place, case, word)
        if case.unordered:
            same = in_order(shim) == in_order(real)
        else:
            same = shim.output == real.output
        if not same or in_order(real) != in_order(plain):
            found.append(f"{case.line} ({case.trap}): {shim.ways}, {shim.status} {real.status}")
        filterable += case.may_filter
        filtered += case.may_filter and shim.filtered
    return found, filterable, filtered


def run(place: Place, case: Case, word: str) -> tuple[Ran, Ran, Ran]:
    """Run a row in the root of the site: by the shim, by the tool, and by the tool on the copy."""
    outside = Path(tempfile.mkdtemp(prefix="out-", dir=session_root()))
    (outside / "x.txt").write_text(f"{word} outside\n")
    (outside / "log").touch()
    (outside / "rgrc").write_text("-i\n")
    (outside / "pats").write_text(f"{word}\nconfig\n")
    (outside / "globs").write_text("*.png\n")
    names = sorted(path for path in (place.copy / "site").iterdir())
    directories = [path.name for path in names if path.is_dir()]
    line = case.line.replace("install", word)
    for name, value in {
        "{DIR}": directories[0],
        "{DIR2}": directories[-1],
        "{FILE}": "README.md",
        "{FILE2}": "more.md",
        "{OUT}": str(outside),
        "{PATS}": str(outside / "pats"),
        "{GLOBS}": str(outside / "globs"),
    }.items():
        line = line.replace(name, value)
    try:
        ran = []
        for shell, root in (
            (place.shell.shim, place.mount),
            (place.shell.real, place.mount),
            (place.shell.real, place.copy),
        ):
            (outside / "log").write_bytes(b"")
            one = shell(line.replace("{ROOT}", str(root / "site")), root / "site")
            out, err = (
                _TIMES.sub(b"", text.replace(bytes(root), b"ROOT")) for text in one.output[1:]
            )
            log = (outside / "log").read_bytes().replace(bytes(root), b"ROOT")
            ran.append(Ran(one.status, out + log, err, one.ways))
        return ran[0], ran[1], ran[2]
    finally:
        shutil.rmtree(outside)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("word", WORDS)
def test_every_row_is_the_real_tools(documents: Place, word: str, part: int) -> None:
    """All rows give the tool's own bytes, and most of those that may be filtered are."""
    found, filterable, filtered = run_part(documents, word, part)
    assert not found, "\n".join(found)
    assert filtered >= 0.5 * filterable


@pytest.mark.parametrize("part", range(PARTS))
def test_every_row_is_the_real_tools_among_odd_pages(mixed: Place, part: int) -> None:
    """The same with NUL, marks, other encodings and odd names in the tree."""
    found, _, filtered = run_part(mixed, "install", part)
    assert not found, "\n".join(found)
    assert filtered > 0
