"""What is measured on: the real documentation beside the checkout when it is there, else generated pages.

Concurrency: none.
"""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

CORPORA = Path(__file__).resolve().parents[2] / "shared" / "corpora"
WORD = "configuration"  # common in documentation, real or generated
GENERATED = "generated pages"
REAL = 0  # the number of pages that asks for the real ones
_PAGES_WITH_WORD = 5  # one page in so many has it, as in the real ones
_INSTEAD = 4_000  # generated pages where there are no real ones
_WORDS = (
    "the of a to page token webhook account server request response cluster "
    "deploy schema invoice retry latency region bucket policy secret editor theme navigation"
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A directory of pages: what they are, how many, and their bytes."""

    root: Path
    what: str
    files: int
    size: int


def make(root: Path, pages: int) -> Corpus:
    """Write pages below `root`: as many as asked for, or the real ones for REAL where they are present."""
    root.mkdir(parents=True)
    archives = _archives(pages)
    for archive in archives:
        subprocess.run(["tar", "xJf", str(archive), "-C", str(root)], check=True)
    if not archives:
        _generate(root, pages or _INSTEAD)
    return describe(root, pages)


def describe(root: Path, pages: int) -> Corpus:
    """Return what `make` wrote below `root`."""
    archives = _archives(pages)
    what = f"{len(archives)} documentation sites" if archives else f"{GENERATED} (seed 1)"
    sizes = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
    return Corpus(root, what, len(sizes), sum(sizes))


def _archives(pages: int) -> list[Path]:
    return sorted(CORPORA.glob("*.tar.xz")) if pages == REAL else []


def _generate(root: Path, pages: int) -> None:
    """Write pages of a few kilobytes, 20 to a directory, 15 directories to a section; seeded."""
    chance = random.Random(1)
    words = _WORDS.split()
    for number in range(pages):
        folder = root / f"section-{number // 300:03}" / f"topic-{number // 20 % 15:02}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"# Page {number}", ""]
        for _ in range(chance.randint(10, 150)):
            lines.append(" ".join(chance.choices(words, k=chance.randint(3, 14))))
        if number % _PAGES_WITH_WORD == 0:
            lines.append(f"see the {WORD} of the cluster")
        (folder / f"page-{number:06}.mdx").write_text("\n".join(lines) + "\n")
