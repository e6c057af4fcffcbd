"""What is measured on: the real documentation beside the checkout when it is there, else generated pages."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

CORPORA = Path(__file__).resolve().parents[2] / "shared" / "corpora"
WORD = "configuration"  # common in documentation, real or generated
_WORDS = (
    "the of a to page token webhook account configuration server request response cluster "
    "deploy schema invoice retry latency region bucket policy secret editor theme navigation"
)


def make(root: Path, pages: int) -> tuple[str, int]:
    """Write the corpus below `root`; return what it is, and its number of files.

    `pages` 0 takes the real corpora, or 4,000 generated pages where they are absent.
    """
    archives = sorted(CORPORA.glob("*.tar.xz"))
    if pages == 0 and archives:
        for archive in archives:
            subprocess.run(["tar", "xJf", str(archive), "-C", str(root)], check=True)
        count = sum(path.is_file() for path in root.rglob("*"))
        return f"{len(archives)} documentation sites", count
    count = pages or 4_000
    _generate(root, count)
    return "generated pages (seed 1)", count


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
        (folder / f"page-{number:06}.mdx").write_text("\n".join(lines) + "\n")
