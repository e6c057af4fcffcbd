"""Plans for GNU grep, run as their caller has to run them, with a walk in the order of grep's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from chromafuse.search.plan import Plan
from tests.support.searching import Outcome, is_candidate, run


def walk(operand: bytes | None, place: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name that grep shows and the path below the operand, in the order of the directory.

    None is the current directory, which grep does not show. Symbolic links are skipped.
    """
    root = b"" if operand is None else operand.rstrip(b"/") + b"/" if operand != b"/" else b"/"

    def below(relative: bytes) -> Iterator[tuple[bytes, bytes]]:
        with os.scandir(os.path.join(os.fsencode(place), root + relative)) as entries:
            for entry in entries:
                path = relative + entry.name
                if entry.is_dir(follow_symlinks=False):
                    yield from below(path + b"/")
                elif entry.is_file(follow_symlinks=False):
                    yield root + path, path

    yield from below(b"")


def files(plan: Plan, place: Path, *, every: bool) -> list[bytes]:
    """Return the files to name in a plan's search: those that can match, or every one."""
    base = os.fsencode(place)
    named: list[bytes] = []

    def consider(name: bytes) -> None:
        with open(os.path.join(base, name), "rb") as file:
            if every or is_candidate(plan.needs, file.read()):
                named.append(name)

    for operand in plan.operands or (None,):
        whole = base if operand is None else os.path.join(base, operand)
        if os.path.isdir(whole) and plan.recursive:
            for name, path in walk(operand, place):
                if plan.selection is None or plan.selection.admits(path):
                    consider(name)
        elif operand is None or not os.path.isfile(whole):
            named.append(operand or b"")
        elif plan.selection is None or plan.selection.admits_operand(operand):
            consider(operand)
    return named or [b"/dev/null"]


def run_plan(tool: str, plan: Plan, place: Path, *, every: bool = False, **env: str) -> Outcome:
    """Run a plan on the files that can match, or on every file."""
    walked = plan.recursive and any(
        os.path.isdir(os.path.join(os.fsencode(place), operand))
        for operand in plan.operands or (b".",)
    )
    prefix = (plan.prefix,) if plan.prefix and (walked or len(plan.operands) > 1) else ()
    return run(
        tool, (*plan.options, *prefix, b"--", *files(plan, place, every=every)), place, **env
    )
