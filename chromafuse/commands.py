"""What each command of the command line takes and does.

Concurrency: one command a process. What a command needs is imported when it is the one: `--help` must not
wait for an event loop.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from . import mountcommand
from .errors import UsageError, UserError
from .outcome import say
from .storeargs import (
    declare_identity,
    declare_store,
    declare_store_options,
    identity_of,
    run_store,
    store_of,
    with_store,
)
from .text import aligned, printable

if TYPE_CHECKING:
    from .store.verify import Report

T = TypeVar("T")
Run = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Command:
    """One word of the command line."""

    help: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Run
    examples: tuple[str, ...]  # whole command lines


# -- ingest


def _declare_ingest(parser: argparse.ArgumentParser) -> None:
    from .ingest.command import add_arguments

    parser.add_argument("source", metavar="SRC", help="directory of pages")
    declare_store(parser)
    add_arguments(parser)
    declare_store_options(parser)


def _ingest(args: argparse.Namespace) -> int:
    from pathlib import Path

    from rich.console import Console

    from .ingest.command import ingest, options_of

    if not args.source:  # as by an unset variable; Path("") would be the current directory
        raise UsageError("SRC is empty; name a directory")
    location, _, _ = store_of(args)
    options = options_of(args)
    run_store(location, partial(ingest, location, Path(args.source), options, console=Console()))
    return 0


# -- umount


def _declare_umount(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")


def _umount(args: argparse.Namespace) -> int:
    from .mountpoint import locate, remove

    remove(locate(args.mountpoint))
    return 0


# -- status


def _declare_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?", help="details of this mount")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _status(args: argparse.Namespace) -> int:
    from .mountpoint import locate
    from .status import COLUMNS, all_mounts, one_mount, row

    if args.mountpoint is None:
        found = all_mounts()
        if args.json:
            print(json.dumps(found))
        elif found:
            print("\n".join(aligned([COLUMNS, *map(row, found)])))
        return 0
    mount = one_mount(locate(args.mountpoint))
    if args.json:
        print(json.dumps(mount))
    else:
        print("\n".join(aligned([(f"{name}:", _shown(value)) for name, value in mount.items()])))
    return 0 if mount["state"] == "live" else 1


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={number}" for name, number in value.items() if number)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else printable(str(value))


# -- verify


def _declare_verify(parser: argparse.ArgumentParser) -> None:
    declare_store(parser)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    declare_store_options(parser)


def _verify(args: argparse.Namespace) -> int:
    from rich.console import Console

    from .ingest.report import progress_bar
    from .store.verify import verify

    with progress_bar(Console(stderr=True)) as progress:
        report: Report = with_store(args, partial(verify, progress=progress))
    if args.json:
        print(json.dumps(report.to_json()))
    else:
        for line in _verify_lines(report):
            print(line)
    if report.ok:
        return 0
    sys.stdout.flush()
    raise UserError(
        f"{len(report.problems):,} of {report.pages:,} pages cannot be read; ingest their source again, into "
        "another --collection where bytes are wrong: a stored chunk is never overwritten"
    )


def _verify_lines(report: Report) -> list[str]:
    lines = [f"damaged: {printable(path)}: {printable(why)}" for path, why in report.problems]
    lines += [
        f"renamed: {printable(path)}: shown as {printable(shown)}" if shown
        else f"renamed: {printable(path)}: cannot be shown, a directory has its name"
        for path, shown in report.renamed
    ]  # fmt: skip
    lines.append(
        f"generation {report.generation}: {report.pages:,} pages, {report.chunks:,} chunks, "
        f"{report.bytes:,} bytes right; {report.orphans:,} old records, {report.foreign:,} not ours"
    )
    return lines


# -- export


def _declare_export(parser: argparse.ArgumentParser) -> None:
    declare_store(parser)
    parser.add_argument("target", metavar="DIR|-", help="a new or empty directory; - is a tar")
    declare_identity(parser)
    declare_store_options(parser)


def _export(args: argparse.Namespace) -> int:
    from .export import check_output, to_directory, to_tar

    identity = identity_of(args)
    if args.target == "-":
        out = sys.stdout.buffer
        check_output(out)
        done = with_store(args, lambda store: to_tar(store, identity, out))
    else:
        done = with_store(args, lambda store: to_directory(store, identity, args.target))
    say(f"{done.pages:,} pages for {identity}, {done.bytes:,} bytes, generation {done.generation}")
    return 0


# -- grep, rg, shims


def _declare_nothing(parser: argparse.ArgumentParser) -> None:
    """Take no argument: all are the tool's own, see run_tool."""


def _run_no_tool(args: argparse.Namespace) -> int:
    raise UsageError(
        f"`chromafuse {args.command}` takes the arguments of {args.command} and no others"
    )


def run_tool(tool: str, words: Sequence[str]) -> NoReturn:
    """Become grep or rg. All words are the tool's own, but for `--explain` as the first one."""
    from .search import shim

    explain = words[:1] == ["--explain"]
    own = words[1:] if explain else words
    shim.run(tool, [os.fsencode(word) for word in own], shim.Mounts(), explain=explain)
    raise AssertionError("unreachable: the process has become the tool")


def _declare_shims(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="where to; made if it is missing")


def _shims(args: argparse.Namespace) -> int:
    from pathlib import Path

    from .search.shims import NAMES, write_shims

    if not args.directory:
        raise UsageError("DIR is empty; name a directory")
    directory = Path(args.directory).absolute()
    write_shims(directory)
    say(f"{', '.join(NAMES)} are in {printable(str(directory))}; put it first on PATH")
    return 0


TOOLS = ("grep", "rg")  # commands whose arguments are a tool's own

COMMANDS = {
    "ingest": Command(
        "Publish a directory of pages in a collection.",
        _declare_ingest,
        _ingest,
        (
            "chromafuse ingest docs/ ./store --dry-run",
            "chromafuse ingest docs/ https://chroma.example.org:8000 --acl acl.toml",
        ),
    ),
    "mount": Command(
        "Mount a collection, for one identity. With no identity option, that of an anonymous reader.",
        mountcommand.declare,
        mountcommand.run,
        (
            "chromafuse mount ./store /mnt/docs",
            "chromafuse mount ./store /mnt/docs --group billing --daemon",
            "chromafuse mount https://chroma.example.org:8000 /mnt/docs --store-token-file token",
        ),
    ),
    "umount": Command(
        "Unmount; clears a dead mount too.",
        _declare_umount,
        _umount,
        ("chromafuse umount /mnt/docs",),
    ),
    "verify": Command(
        "Read every page and check every digest.",
        _declare_verify,
        _verify,
        ("chromafuse verify ./store",),
    ),
    "status": Command(
        "List mounts, or tell all about one.",
        _declare_status,
        _status,
        ("chromafuse status", "chromafuse status /mnt/docs --json"),
    ),
    "export": Command(
        "Write a pruned copy, or a tar.",
        _declare_export,
        _export,
        (
            "chromafuse export ./store ./copy --group billing",
            "chromafuse export ./store - | tar -tv",
        ),
    ),
    "grep": Command(
        "Run grep, in mounts on the pages that can match alone; its own arguments and exit codes.",
        _declare_nothing,
        _run_no_tool,
        ("chromafuse grep -rn WORD /mnt/docs", "chromafuse grep --explain -rn WORD /mnt/docs"),
    ),
    "rg": Command(
        "Run ripgrep, in mounts on the pages that can match alone.",
        _declare_nothing,
        _run_no_tool,
        ("chromafuse rg WORD /mnt/docs",),
    ),
    "shims": Command(
        "Write a grep, egrep, fgrep and rg of this kind, for the PATH of a sandbox.",
        _declare_shims,
        _shims,
        ("chromafuse shims ./bin",),
    ),
}
