"""`python -m bench`: the mount against a plain copy on disk, as ratios, with requests and memory."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import corpus, measure, mounted

COMMANDS: dict[str, list[str]] = {
    "find": ["find", "."],
    "ls -lR": ["ls", "-lR"],
    "grep -r": ["grep", "-rl", corpus.WORD, "."],
    "rg": ["rg", "-l", corpus.WORD],
}


@dataclass(frozen=True)
class Line:
    """One row of the table: medians in milliseconds, ratio to the warm copy, requests that reached the view."""

    question: str
    mount_ms: float
    copy_ms: float
    ratio: float
    requests: int


def main() -> int:
    """Measure and print; `--json` writes the figures to a file."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--pages", type=int, default=0, help="generated pages (default: real ones)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command (default: 5)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    with _workplace() as root:
        result = Bench(root, args.rounds).run(args.pages)
    _print(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


class Bench:
    """One run: a copy on disk, a store with the same files, and mounts of it."""

    def __init__(self, root: Path, rounds: int) -> None:
        self.root, self.rounds = root, rounds
        self.copy, self.store = root / "copy", root / "store"
        self.environment = {**os.environ, "CHROMAFUSE_CACHE_DIR": str(root / "cache")}
        self.mounts = 0

    def run(self, pages: int) -> dict[str, object]:
        """Measure everything and return the figures."""
        self.copy.mkdir()
        what, files = corpus.make(self.copy, pages)
        seconds = mounted.ingest(self.copy, self.store, self.environment)
        lines = self._first_ls() + self._first_walks()
        with self._mount() as live:
            lines += self._warm_walks(live)
            memory = {
                part: measure.private_kb(live.status()[f"{part}_pid"]) / 1024
                for part in ("hub", "view")
            }
        return {
            "corpus": what,
            "files": files,
            "rounds": self.rounds,
            "ingest_seconds": round(seconds, 1),
            "lines": [asdict(line) for line in lines],
            "private_mb": {part: round(value, 1) for part, value in memory.items()},
        }

    @contextmanager
    def _mount(self) -> Iterator[mounted.Mount]:
        # A directory of its own for each mount, so that nothing is left in the kernel from the one before.
        self.mounts += 1
        with mounted.mount(
            self.store, self.root / f"mount-{self.mounts}", self.environment
        ) as live:
            yield live

    def _first_ls(self) -> list[Line]:
        """Time `chromafuse mount` + `ls`, without and with the path tree in the cache on disk."""
        cold, warm, base = [], [], []
        for _ in range(self.rounds):
            shutil.rmtree(self.root / "cache", ignore_errors=True)
            for seconds in (cold, warm):
                with self._mount() as live:
                    seconds.append(live.first_ls)
            base.append(measure.run(["ls", str(self.copy)]))
        return [
            self._line("mount + first ls, first time", cold, base),
            self._line("mount + first ls, second time", warm, base),
        ]

    def _first_walks(self) -> list[Line]:
        """Time the first walk of a fresh mount: nothing in the kernel, nothing in the hub."""
        lines = []
        for name in ("grep -r", "rg"):
            command = COMMANDS[name]
            measure.run(command, str(self.copy))
            ours, base, requests = [], [], 0
            for _ in range(self.rounds):
                with self._mount() as live:
                    before = sum(live.requests().values())
                    ours.append(measure.run(command, str(live.path)))
                    requests = sum(live.requests().values()) - before
                base.append(measure.run(command, str(self.copy)))
            lines.append(self._line(f"{name}, first on a new mount", ours, base, requests))
        return lines

    def _warm_walks(self, live: mounted.Mount) -> list[Line]:
        """Time what comes again on a mount that has been walked."""
        lines = []
        for name, command in COMMANDS.items():
            measure.run(command, str(live.path))
            before = sum(live.requests().values())
            seconds = measure.interleave(
                self.rounds,
                {
                    "mount": lambda command=command: measure.run(command, str(live.path)),
                    "copy": lambda command=command: measure.run(command, str(self.copy)),
                },
            )
            requests = (sum(live.requests().values()) - before) // self.rounds
            lines.append(self._line(f"{name}, again", seconds["mount"], seconds["copy"], requests))
        return lines

    def _line(self, name: str, ours: list[float], base: list[float], requests: int = 0) -> Line:
        return Line(
            name,
            round(measure.median_ms(ours), 1),
            round(measure.median_ms(base), 1),
            round(measure.median_ratio(ours, base), 2),
            requests,
        )


@contextmanager
def _workplace() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="chromafuse-bench-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _print(result: dict[str, object]) -> None:
    table = Table(
        title=f"{result['files']} files, {result['corpus']}; medians of {result['rounds']}"
    )
    table.add_column("what")
    for heading in ("mount ms", "copy ms", "ratio", "requests"):
        table.add_column(heading, justify="right")
    for line in result["lines"]:  # type: ignore[attr-defined]
        table.add_row(
            line["question"],
            f"{line['mount_ms']:,.1f}",
            f"{line['copy_ms']:,.1f}",
            f"{line['ratio']:.2f}",
            f"{line['requests']:,}",
        )
    console = Console()
    console.print(table)
    memory = result["private_mb"]
    console.print(f"ingest {result['ingest_seconds']} s; private memory in MB: {memory}")


if __name__ == "__main__":
    sys.exit(main())
