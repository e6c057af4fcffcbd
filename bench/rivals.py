"""The peers over the same pages: Mirage's mount and Mirage's own shell, on Chroma servers.

Each round visits every contender once: a new mount, the first search, the second, a listing. So "first" is
first for each of them. Mirage gets the pages in its own layout, on a server that holds nothing else.

Concurrency: one thread.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from . import contenders, peers
from .contenders import Program, program, python_host
from .lab import Lab, say
from .measure import Failed, Run, run
from .questions import COPY, FAST, NAIVE, STOCK, just_bash, metered, table_for
from .results import Table, rows_of
from .server import serve

MIRAGE = "Mirage's mount"
MIRAGE_SHELL = "Mirage, in process"
PLAIN = "plain"  # the collection in Mirage's layout
FIRST, AGAIN, FIND = "grep -rn, first", "grep -rn, again", "find, again"
_WORKS = {FIRST: contenders.GREP_N, AGAIN: contenders.GREP_N, FIND: contenders.FIND}

Visit = Callable[[], Mapping[str, Run]]


def mirage(lab: Lab) -> Table:
    """How much faster than Mirage's mount is a first `grep -rn`? And than the other peers?"""
    table = table_for(lab, "mirage", "the same pages on Chroma servers", bases=[COPY, MIRAGE])
    runs: dict[str, dict[str, list[Run]]] = {name: {} for name in _WORKS}
    with ExitStack() as stack:
        visits = _visits(lab, table, stack)
        for number in range(lab.rounds):
            say(f"mirage: round {number + 1} of {lab.rounds}")
            for contender, visit in list(visits.items()):
                try:
                    for name, one in visit().items():
                        runs[name].setdefault(contender, []).append(one)
                except Failed as exc:
                    table.missing.append((contender, str(exc)))
                    del visits[contender]
    for name, found in runs.items():
        table.rows.extend(rows_of(name, found, table.bases))
    return table


def _visits(lab: Lab, table: Table, stack: ExitStack) -> dict[str, Visit]:
    """Return who is visited in each round."""
    naive = stack.enter_context(lab.host("naive", server=True))
    visits: dict[str, Visit] = {
        COPY: lambda: {name: lab.on_copy(work) for name, work in _WORKS.items()},
        FAST: partial(_own_mount, lab, True),
        STOCK: partial(_own_mount, lab, False),
        NAIVE: lambda: {name: naive.ask(_WORKS[name].asked) for name in (FIRST, FIND)},
    }
    shell = stack.enter_context(just_bash(lab, table))
    if shell is not None:
        visits["just-bash, in memory"] = partial(_shell, shell, AGAIN, FIND)
    python, why = peers.mirage()
    if python is None:
        table.missing.append(("Mirage", why))
        return visits
    port = stack.enter_context(serve(lab.root / "mirage-server")).port
    subprocess.run(python_host("plainform", str(port), PLAIN, lab.copy), check=True)
    visits[MIRAGE] = partial(_mirage_mount, lab, python, port)
    visits[MIRAGE_SHELL] = partial(_mirage_shell, lab, python, port)
    return visits


def _own_mount(lab: Lab, fast: bool) -> dict[str, Run]:
    with lab.mount(fast=fast, server=True) as live:
        return {name: metered(live, work) for name, work in _WORKS.items()}


def _mirage_mount(lab: Lab, python: Path, port: int) -> dict[str, Run]:
    point = lab.new_place("mirage")
    with _mirage(lab, python, port, str(point)):
        return {name: run(work.command, str(point)) for name, work in _WORKS.items()}


def _mirage_shell(lab: Lab, python: Path, port: int) -> dict[str, Run]:
    with _mirage(lab, python, port) as shell:
        return _shell(shell, FIRST, AGAIN, FIND)


@contextmanager
def _mirage(lab: Lab, python: Path, port: int, *mountpoint: str) -> Iterator[Program]:
    arguments = (str(port), PLAIN, *mountpoint)
    command = python_host("mirage_host", *arguments, python=python)
    with program(command, lab.root / "mirage.log") as started:
        yield started


def _shell(shell: Program, *names: str) -> dict[str, Run]:
    return {name: shell.ask({"do": "shell", "line": _WORKS[name].shell}) for name in names}
