"""The questions, one function each: who does what, in interleaved rounds, and what it cost.

Concurrency: one thread; nothing else runs while something is timed, but what the work itself left running.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from . import contenders, mounted
from .contenders import Program, Work, just_bash_host, program
from .lab import Lab, say
from .measure import Interleaving, Run, run, run_together
from .mounted import Mount
from .results import Table, rows_of

COPY = "plain copy"
FAST = "chromafuse"
STOCK = "chromafuse, stock mode"
SCRIPT = "plain script"
NAIVE = "naive class"
JUST_BASH = "just-bash, in memory"
MODES = {FAST: True, STOCK: False}

ON_DISK = (COPY, FAST, STOCK)  # who has to be warm where "again" is asked

PATIENCE = 15.0  # s that one contender may take for one work, in all rounds; one run it always gets
REST = 2.5  # s; the hub sends a page once to one walk, and takes what comes later for another walk
BATCHES = (300, 1_000, 3_000, 10_000, 30_000)  # ids of one call; over 32,766 is an error
OPENS = 1_000

Doers = Mapping[str, Callable[[], Run]]


def start(lab: Lab) -> Table:
    """How long from `chromafuse mount` to the answer of the first `ls`?"""
    table = table_for(lab, "start", "from `chromafuse mount` to the first ls")
    ls = Work("ls", ("ls",), "ls")

    def mount(fresh: bool) -> Run:
        if fresh:
            shutil.rmtree(mounted.cache_of(lab.root), ignore_errors=True)
        with lab.mount() as live:
            return Run(live.first_ls, lab.on_copy(ls).lines)

    doers: Doers = {
        COPY: lambda: lab.on_copy(ls),
        f"{FAST}, first time": lambda: mount(fresh=True),
        f"{FAST}, path tree on disk": lambda: mount(fresh=False),
    }
    _compare(lab, table, "mount + ls", doers)
    return table


def warm(lab: Lab) -> Table:
    """How long does work take that was done before? The view should get no request."""
    table = table_for(lab, "warm", "again, everything in the kernel")
    works = _present(
        table,
        [
            *(contenders.FIND, contenders.BFS, contenders.LS, contenders.TAR),
            *(contenders.GREP, contenders.RG, contenders.UGREP),
        ],
    )
    with _both_modes(lab) as mounts, just_bash(lab, table) as shell:
        for work in works:
            doers: dict[str, Callable[[], Run]] = {COPY: partial(lab.on_copy, work)}
            doers |= {name: partial(metered, live, work) for name, live in mounts.items()}
            if shell is not None and work.shell is not None:
                doers[JUST_BASH] = partial(shell.ask, {"do": "shell", "line": work.shell})
            _compare(lab, table, work.name, doers, ON_DISK)
    return table


def first(lab: Lab) -> Table:
    """How long is a first walk of a mount whose hub has the pages in memory?"""
    table = table_for(lab, "first", "first time on a new mount, pages in the hub's memory")
    if os.geteuid() != 0:
        return replace(table, missing=[("all", "only root can have the kernel forget one mount")])
    works = _present(
        table, [contenders.FIND, contenders.GREP, contenders.RG, contenders.UGREP, contenders.TAR]
    )

    def forgotten(live: Mount, work: Work) -> Run:
        live.forget()
        time.sleep(REST)
        return metered(live, work)

    with _both_modes(lab) as mounts:
        for live in mounts.values():
            run(contenders.TAR.command, str(live.path))  # brings every page into the hub
        for work in works:
            doers = {COPY: partial(lab.on_copy, work)}
            doers |= {name: partial(forgotten, live, work) for name, live in mounts.items()}
            _compare(lab, table, work.name, doers)
    return table


def cold(lab: Lab) -> Table:
    """How long is a first walk with nothing cached anywhere, embedded Chroma?"""
    return _cold(lab, "cold", "nothing cached anywhere, embedded Chroma", server=False)


def cold_server(lab: Lab) -> Table:
    """How long is a first walk with nothing cached anywhere, a Chroma server?"""
    return _cold(lab, "cold-server", "nothing cached anywhere, Chroma server", server=True)


def _cold(lab: Lab, question: str, title: str, *, server: bool) -> Table:
    table = table_for(lab, question, title, bases=[COPY, SCRIPT])
    works = _present(table, [contenders.GREP, contenders.RG, contenders.UGREP, contenders.TAR])

    def fresh(work: Work, fast: bool) -> Run:
        with lab.mount(fast=fast, server=server) as live:
            return metered(live, work)

    with lab.host("pull", server=server) as script, lab.host("naive", server=server) as naive:
        batch = min(BATCHES, key=lambda n: script.ask({"do": "pull", "batch": n}).seconds)
        table = replace(table, title=f"{title}, plain script with {batch:,} ids a call")
        for work in works:
            doers: dict[str, Callable[[], Run]] = {
                COPY: partial(lab.on_copy, work),
                SCRIPT: partial(_pull, script, batch, lab.on_copy(work).lines),
            }
            doers |= {name: partial(fresh, work, fast) for name, fast in MODES.items()}
            if work.asked:
                doers[NAIVE] = partial(naive.ask, work.asked)
                doers[f"{NAIVE}, $contains"] = partial(naive.ask, contenders.CONTAINS.asked)
            _compare(lab, table, work.name, doers)
    return table


def parallel(lab: Lab) -> Table:
    """How long do four searches at once take, warm?"""
    table = table_for(lab, "parallel", "four at once, again")
    works = _present(table, [contenders.GREP, contenders.RG])
    with _both_modes(lab) as mounts:
        for work in works:
            four = partial(run_together, work.command, lab.copy, 4)
            doers = {COPY: four}
            for name, live in mounts.items():
                once = partial(run_together, work.command, str(live.path), 4)
                doers[name] = partial(live.metered, once)
            _compare(lab, table, f"4 x {work.name}", doers, ON_DISK)
    return table


def opening(lab: Lab) -> Table:
    """How long does it take to open, read and close a page? And the first `cat` on a new mount?"""
    table = table_for(lab, "open", "single pages")
    names = sorted(str(one.relative_to(lab.copy)) for one in lab.corpus.root.rglob("*.md*"))
    some = names[:: max(1, len(names) // OPENS)][:OPENS]
    cat = Work("cat", ("cat", names[len(names) // 2]), "cat")

    def fresh(fast: bool) -> Run:
        with lab.mount(fast=fast) as live:
            return metered(live, cat)

    with _both_modes(lab) as mounts:
        doers = {COPY: partial(_open_all, lab.copy, some)}
        for name, live in mounts.items():
            doers[name] = partial(live.metered, partial(_open_all, str(live.path), some))
        _compare(lab, table, f"open + read + close, {len(some):,} pages again", doers, ON_DISK)
    doers = {COPY: partial(lab.on_copy, cat)}
    doers |= {name: partial(fresh, fast) for name, fast in MODES.items()}
    _compare(lab, table, "cat one page, nothing cached anywhere", doers)
    return table


def table_for(lab: Lab, question: str, title: str, bases: Sequence[str] = (COPY,)) -> Table:
    """Return the empty table of a question."""
    of = lab.corpus
    return Table(question, title, of.what, of.files, of.size, lab.rounds, list(bases))


def _present(table: Table, works: Sequence[Work]) -> list[Work]:
    """Return the works whose tool is here; note the others in the table."""
    table.missing.extend((work.name, work.missing()) for work in works if work.missing())
    return [work for work in works if not work.missing()]


def _compare(
    lab: Lab, table: Table, work: str, doers: Doers, warm_up: Sequence[str] = (COPY,)
) -> None:
    say(f"{table.question}: {work}")
    rounds = Interleaving(doers, warm_up, PATIENCE)
    table.rows.extend(rows_of(work, rounds.play(lab.rounds), table.bases))
    table.missing.extend((f"{work}, {who}", why) for who, why in rounds.failures.items())
    if rounds.repeated:
        table.repeated[work] = rounds.repeated


@contextmanager
def _both_modes(lab: Lab) -> Iterator[dict[str, Mount]]:
    with lab.mount(fast=True) as fast, lab.mount(fast=False) as stock:
        yield {FAST: fast, STOCK: stock}


@contextmanager
def just_bash(lab: Lab, table: Table) -> Iterator[Program | None]:
    """Run just-bash over the copy; yield nothing, and say why in the table, where it is not installed."""
    command, why = just_bash_host(lab.corpus.root)
    if not command:
        table.missing.append((JUST_BASH, why))
        yield None
        return
    with program(command, lab.root / "just-bash.log") as started:
        yield started


def metered(live: Mount, work: Work) -> Run:
    """Do some work on a mount; its run says what it cost the mount."""
    return live.metered(lambda: run(work.command, str(live.path)))


def _pull(script: Program, batch: int, lines: int) -> Run:
    # It prints nothing, so it counts as having printed what was expected.
    return replace(script.ask({"do": "pull", "batch": batch}), lines=lines)


def _open_all(root: str, names: Sequence[str]) -> Run:
    begin = time.perf_counter()
    for name in names:
        descriptor = os.open(f"{root}/{name}", os.O_RDONLY)
        os.read(descriptor, 1 << 20)
        os.close(descriptor)
    return Run(time.perf_counter() - begin, len(names))
