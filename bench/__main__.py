"""`python -m bench QUESTION…`: measure, print tables, keep the figures, draw them.

python -m bench --list                       the questions
python -m bench warm first                   two of them, on the real corpora where they are present
python -m bench all --json docs/bench.json   all of them; tables of the same question are replaced in the file
python -m bench show docs/bench.json         print what a file holds, and which targets it meets
python -m bench docs .                       docs/bench.json goes into its picture and the texts
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from . import corpus, markdown, memory, mounted, picture, questions, results, rivals, targets, usage
from .lab import Lab
from .results import Table
from .workplace import workplace

MEMORY = "memory"
MEMORY_PAGES = (4_000, 100_000)
_ALIASES = {"1k": 1_000, "4k": 4_000, "60k": 60_000, "real": corpus.REAL}


@dataclass(frozen=True, slots=True)
class Question:
    """A question by its name: the function that answers it, and its pages where none are asked for."""

    ask: Callable[[Lab], Table]
    pages: int = corpus.REAL

    @property
    def help(self) -> str:
        """The question itself."""
        return str(self.ask.__doc__).splitlines()[0]


QUESTIONS = {
    "start": Question(questions.start),
    "warm": Question(questions.warm),
    "first": Question(questions.first),
    "cold": Question(questions.cold),
    "cold-server": Question(questions.cold_server),
    "parallel": Question(questions.parallel),
    "open": Question(questions.opening),
    "mirage": Question(rivals.mirage, pages=1_000),
}
_NAMES = {
    **{name: question.help for name, question in QUESTIONS.items()},
    MEMORY: "How much memory do hub and view take, 4,000 and 100,000 pages?",
}


def main(argv: Sequence[str]) -> int:
    """Do what the command line says; return the exit code."""
    args = _parser().parse_args(argv)
    if args.list:
        for name, text in {**_NAMES, "all": "All of these."}.items():
            print(f"{name:12}{text}")
    elif args.questions[0] == "show":
        _show(json.loads(Path(args.questions[1]).read_text()))
    elif args.questions[0] == "docs":
        _write_docs(Path(args.questions[1]))
    else:
        document = measure(args)
        _show(document)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("questions", nargs="*", metavar="QUESTION", action=_Words)
    parser.add_argument("--list", action="store_true", help="list the questions")
    parser.add_argument(
        "--pages",
        type=_pages,
        metavar="N",
        help="generated pages (1k, 4k, 60k, any number), or real: the real documentation",
    )
    parser.add_argument("--rounds", type=_rounds, default=5, help="runs of each work (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in this file")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep copy and stores there, for later runs"
    )
    return parser


class _Words(argparse.Action):
    """Checks the words: questions, or `show FILE`, or `docs DIRECTORY`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        words = list(values)
        unknown = [word for word in words if word not in _NAMES and word != "all"]
        if words and words[0] in ("show", "docs"):
            if len(words) != 2:
                parser.error(f"{words[0]} takes one name")
        elif unknown:
            parser.error(f"no question {unknown[0]!r}; --list names them")
        # With nothing named, the question that needs no peers and little time.
        setattr(namespace, self.dest, list(_NAMES) if "all" in words else words or ["warm"])


def _pages(text: str) -> int:
    pages = _ALIASES.get(text, -1)
    if pages < 0 and text.isdecimal() and int(text) > 0:
        pages = int(text)
    if pages < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of pages")
    return pages


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds")
    return int(text)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Answer questions; return the figures. They are in the file after each question, so that none is lost."""
    names, pages = args.questions, args.pages
    document: dict[str, Any] = {"tables": []}
    by_pages: dict[int, list[str]] = {}
    for name in names:
        if name in QUESTIONS:
            wanted = QUESTIONS[name].pages if pages is None else pages
            by_pages.setdefault(wanted, []).append(name)
    for wanted, some in by_pages.items():
        with workplace() as root, ExitStack() as stack:
            mounted.settle_in(root)
            lab = Lab(root, stack, wanted, args.rounds, args.keep)
            for name in some:
                busy = round(usage.busy_share(), 2)
                table = results.to_json(replace(QUESTIONS[name].ask(lab), busy=busy))
                document = results.merge(document, {"tables": [table]})
                _keep(args.json, {"machine": machine(), "tables": [table]})
    if MEMORY in names:
        found = memory.run([pages] if pages else MEMORY_PAGES)
        document[MEMORY] = found
        _keep(args.json, {"machine": machine(), "tables": [], MEMORY: found})
    return {"machine": machine(), **document}


def _keep(kept: Path | None, new: Mapping[str, Any]) -> None:
    if kept is None:
        return
    old = json.loads(kept.read_text()) if kept.exists() else {"format": results.FORMAT}
    kept.write_text(json.dumps(results.merge(old, new), indent=1) + "\n")


def machine() -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        "kernel": platform.release().split("-")[0],
        "cores": str(os.cpu_count()),
        "filesystem": _filesystem(tempfile.gettempdir()),
        "python": platform.python_version(),
        **{tool: _version(tool) for tool in ("fusermount3", "grep", "rg", "ugrep", "bfs")},
    }


def _filesystem(path: str) -> str:
    command = ["stat", "-f", "-c", "%T", path]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return said.stdout.strip().replace("ext2/ext3", "ext4")


def _version(tool: str) -> str:
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return "absent"
    found = re.search(r"\d+(\.\d+)+", said.stdout)
    return found[0] if found else "unknown"


def _write_docs(root: Path) -> None:
    docs = root / "docs"
    document = json.loads((docs / "bench.json").read_text())
    (docs / "bench.svg").write_text(picture.draw(document))
    for path in (docs / "PERFORMANCE.md", root / "README.md"):
        path.write_text(markdown.fill(path.read_text(), document))


def _show(document: Mapping[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    tables = [results.from_json(one) for one in document["tables"]]
    for table in tables:
        console.print(results.grid(table))
    if MEMORY in document:
        memory.show(document[MEMORY])
    console.print(targets.grid(targets.verdicts(tables, document.get(MEMORY, []))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
