"""Search tools as a person runs them, and a plan for one run as its caller has to run it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chromafuse.search.needs import Need, Needs, fold
from chromafuse.search.plan import Plan

BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left behind."""

    status: int
    stdout: bytes
    stderr: bytes

    def sorted(self) -> Outcome:
        """Return it with its lines in order, for runs whose order is not defined."""
        out, err = (b"".join(sorted(text.splitlines(True))) for text in (self.stdout, self.stderr))
        return Outcome(self.status, out, err)


def run(tool: str, words: Iterable[bytes], place: Path, **env: str) -> Outcome:
    """Run a tool in a directory, with nothing to read on stdin."""
    done = subprocess.run(
        [os.fsencode(tool), *words],
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **env},
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def is_candidate(needs: Needs, content: bytes) -> bool:
    """Say whether a file can match: it meets a need, or is none that needs speak of."""
    if needs is None or b"\0" in content or content.startswith(BOMS):
        return True
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return True
    folded = fold(text)
    return any(_meets(need, folded if need.fold else text) for need in needs)


def _meets(need: Need, text: str) -> bool:
    return all(
        any((fold(literal) if need.fold else literal) in text for literal in clause)
        for clause in need.clauses
    )


def _is_directory(name: bytes, place: Path) -> bool:
    return os.path.isdir(os.path.join(os.fsencode(place), name))


def ripgrep_candidates(tool: str, plan: Plan, place: Path, **env: str) -> list[bytes] | None:
    """Return the files to name in a plan's search, or None where the command line is to run untouched."""
    assert plan.enumerate is not None
    if plan.operands and not any(_is_directory(name, place) for name in plan.operands):
        return None
    named: list[bytes] = []
    for operand in plan.operands or (None,):
        if operand is not None and not _is_directory(operand, place):
            named.append(operand)
            continue
        below = () if operand is None else (b"--", operand)
        listing = run(tool, (*plan.enumerate, *below), place, **env)
        if listing.status or listing.stderr:
            return None
        for name in listing.stdout.split(b"\0")[:-1]:
            content = place.joinpath(os.fsdecode(name)).read_bytes()
            if plan.plain_on_nul and b"\0" in content:
                return None
            if is_candidate(plan.needs, content):
                named.append(name)
    return named or [b"/dev/null"]


def run_ripgrep_plan(tool: str, plan: Plan, place: Path, **env: str) -> Outcome | None:
    """Run a plan for rg, or return None where the original command line is to run untouched."""
    names = ripgrep_candidates(tool, plan, place, **env)
    if names is None:
        return None
    prefix = (plan.prefix,) if plan.prefix else ()  # a directory was walked, always
    words = (*plan.options, *prefix, b"--", *names)
    return run(tool, words, place, **env)
