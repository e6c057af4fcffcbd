"""What each command of the command line takes and does.

Concurrency: one command a process. What a command needs is imported when it is the one: `--help` must not
wait for an event loop.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .errors import ChromafuseError, UsageError, UserError
from .outcome import leaf, outcome_of, say
from .text import aligned, printable

if TYPE_CHECKING:
    from .config import Chosen, Config
    from .daemon import Log, Parent
    from .hub.redislocation import RedisSettings
    from .job import Job
    from .model.access import Identity
    from .runtime import Claim
    from .store.location import StoreLocation
    from .store.protocol import Store
    from .store.verify import Report

T = TypeVar("T")
Run = Callable[[argparse.Namespace], int]

# Words of mount(8) that say nothing to a read-only FUSE file system, or what it does anyway.
_IGNORED_OPTIONS = frozenset(
    (
        *("ro", "defaults", "auto", "noauto", "nofail", "_netdev", "async", "silent", "loud"),
        *("user", "nouser", "users", "nousers", "owner", "group"),
        *("nosuid", "nodev", "noexec", "atime", "noatime", "diratime", "nodiratime"),
        *("relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime"),
    )
)


@dataclass(frozen=True, slots=True)
class Command:
    """One word of the command line."""

    help: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Run
    examples: tuple[str, ...]  # whole command lines


# -- what commands share


def _declare_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "store",
        metavar="STORE",
        help="a directory, http(s)://host:port[/tenant/database], or a name",
    )


def _declare_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--collection", metavar="NAME", help="collection (default: docs)")
    parser.add_argument("--store-token-file", metavar="F", help="file with the server's token")
    parser.add_argument("--config", metavar="F", help="this configuration file and no other")


def _declare_identity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--authenticated", action="store_true", help="for any reader with a login")
    parser.add_argument(
        "--group",
        metavar="G",
        action="append",
        default=[],
        help="for a member of this group; repeatable",
    )
    parser.add_argument("--unrestricted", action="store_true", help="for the operator: all pages")


def _identity(args: argparse.Namespace) -> Identity:
    from .model.access import Identity, Kind

    if args.unrestricted and (args.authenticated or args.group):
        raise UsageError("--unrestricted goes with neither --authenticated nor --group")
    if "" in args.group:
        raise UsageError("--group needs the name of a group")
    if args.unrestricted:
        return Identity(Kind.UNRESTRICTED)
    if args.authenticated or args.group:
        return Identity(Kind.AUTHENTICATED, frozenset(args.group))
    return Identity()


def _store(args: argparse.Namespace) -> tuple[StoreLocation, Chosen, Config]:
    from .config import choose, load_config
    from .store.location import parse_store

    config = load_config(args.config)
    chosen = choose(
        args.store, config, collection=args.collection, token_file=args.store_token_file
    )
    location = parse_store(
        chosen.url, collection=chosen.collection, token_file=chosen.token_file, env=os.environ
    )
    return location, chosen, config


def _run_store(location: StoreLocation, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`, and explain what the store at `location` did wrong."""
    import trio

    from .store.explain import explain

    try:
        return trio.run(work)
    except BaseExceptionGroup as group:
        cause = leaf(group)
        if isinstance(cause, ChromafuseError):
            raise explain(cause, location) from group
        raise cause from group
    except ChromafuseError as exc:
        raise explain(exc, location) from exc


def _with_store(args: argparse.Namespace, work: Callable[[Store], Awaitable[T]]) -> T:
    from .store.location import open_store

    location, chosen, _ = _store(args)

    async def run() -> T:
        async with open_store(location, rows_per_call=chosen.rows_per_call) as store:
            return await work(store)

    return _run_store(location, run)


# -- ingest


def _declare_ingest(parser: argparse.ArgumentParser) -> None:
    from .ingest.command import add_arguments

    parser.add_argument("source", metavar="SRC", help="directory of pages")
    _declare_store(parser)
    add_arguments(parser)
    _declare_store_options(parser)


def _ingest(args: argparse.Namespace) -> int:
    from pathlib import Path

    from rich.console import Console

    from .ingest.command import ingest, options_of

    if not args.source:  # as by an unset variable; Path("") would be the current directory
        raise UsageError("SRC is empty; name a directory")
    location, _, _ = _store(args)
    options = options_of(args)
    _run_store(location, partial(ingest, location, Path(args.source), options, console=Console()))
    return 0


# -- mount


def _declare_mount(parser: argparse.ArgumentParser) -> None:
    _declare_store(parser)
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an empty directory")
    _declare_identity(parser)
    parser.add_argument(
        "--allow-other", action="store_true", help="let other users in (see user_allow_other)"
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="cache shared with other hubs: redis[s]://host[:port], unix:///path, or off",
    )
    parser.add_argument(
        "--redis-password-file", metavar="F", help="file with its password (none goes in the URL)"
    )
    parser.add_argument("--daemon", action="store_true", help="return when the mount answers")
    parser.add_argument("--log-file", metavar="F", help="log of the daemon (default: syslog)")
    parser.add_argument(
        "-o",
        dest="options",
        metavar="OPT,…",
        action="append",
        default=[],
        help="allow_other, ro, and mount(8)'s own words, which are ignored",
    )
    _declare_store_options(parser)


def _mount_options(given: Sequence[str]) -> bool:
    """Return whether `-o` says allow_other. Raises UsageError for what a mount here cannot be."""
    allow_other = False
    for option in ",".join(given).split(",") if given else []:
        if option == "allow_other":
            allow_other = True
        elif option not in _IGNORED_OPTIONS and not option.startswith(("x-", "X-", "comment=")):
            raise UsageError(f"-o {printable(option)}: not an option of this mount")
    return allow_other


def _redis(args: argparse.Namespace, config: Config) -> RedisSettings | None:
    from .config import choose_redis
    from .hub.redislocation import RedisSettings, parse_redis, read_password

    chosen = choose_redis(config, url=args.redis, password_file=args.redis_password_file)
    if chosen.url is None:
        if args.redis_password_file is not None:
            raise UsageError("--redis-password-file goes with a Redis; name one with --redis")
        return None
    location = parse_redis(chosen.url, password_file=chosen.password_file, ca_file=chosen.ca_file)
    read_password(location)  # now, while somebody reads what is wrong with it
    given = {"ttl": chosen.ttl, "value_max": chosen.value_max, "timeout": chosen.timeout}
    return RedisSettings(location, **{name: value for name, value in given.items() if value})


def _job(args: argparse.Namespace) -> Job:
    from .config import cache_dir
    from .job import Job
    from .mountpoint import locate

    identity = _identity(args)
    allow_other = _mount_options(args.options) or args.allow_other
    if args.log_file is not None and not args.daemon:
        raise UsageError("--log-file goes with --daemon; in the foreground the log is stderr")
    location, chosen, config = _store(args)
    return Job(
        location,
        identity,
        locate(args.mountpoint),
        allow_other=allow_other,
        cache_dir=cache_dir(),
        memory=config.memory,
        rows_per_call=chosen.rows_per_call,
        redis=_redis(args, config),
    )


def _mount(args: argparse.Namespace) -> int:
    from .mountpoint import prepare

    job = _job(args)
    claim = prepare(job.mountpoint)
    if args.daemon:
        return _mount_daemon(job, claim, args.log_file)
    try:
        return _supervise(job, claim, None, say)
    finally:
        claim.release()


def _mount_daemon(job: Job, claim: Claim, log_file: str | None) -> int:
    from .daemon import Log, Outcome, detach

    try:
        log = Log.choose(log_file, claim.log_file)
    except BaseException:
        claim.release()
        raise
    side = detach(log)
    if isinstance(side, Outcome):
        claim.abandon()
        if side.line:
            say(side.line)
        return side.code
    return _be_daemon(job, claim, log, side)


def _be_daemon(job: Job, claim: Claim, log: Log, parent: Parent) -> int:
    import logging

    from .daemon import Outcome

    def announce(line: str) -> None:
        logging.getLogger(__name__).info("%s", line)
        parent.release(Outcome(0, line))

    code, line = outcome_of(lambda: _supervise(job, claim, log, announce))
    claim.release()
    if code and line:
        logging.getLogger(__name__).error("%s", line)
    parent.release(Outcome(code, line or "a bug, see its log"))
    return code


def _supervise(job: Job, claim: Claim, log: Log | None, announce: Callable[[str], None]) -> int:
    import trio

    from .daemon import start_logging
    from .supervisor import Supervisor

    start_logging(log)
    capture = log is not None and log.file is None
    with claim.listen() as listener:

        async def run() -> int:
            return await Supervisor(job, listener, announce, capture=capture).run()

        return trio.run(run)


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
    _declare_store(parser)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    _declare_store_options(parser)


def _verify(args: argparse.Namespace) -> int:
    from rich.console import Console

    from .ingest.report import progress_bar
    from .store.verify import verify

    with progress_bar(Console(stderr=True)) as progress:
        report: Report = _with_store(args, partial(verify, progress=progress))
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
    _declare_store(parser)
    parser.add_argument("target", metavar="DIR|-", help="a new or empty directory; - is a tar")
    _declare_identity(parser)
    _declare_store_options(parser)


def _export(args: argparse.Namespace) -> int:
    from .export import check_output, to_directory, to_tar

    identity = _identity(args)
    if args.target == "-":
        out = sys.stdout.buffer
        check_output(out)
        done = _with_store(args, lambda store: to_tar(store, identity, out))
    else:
        done = _with_store(args, lambda store: to_directory(store, identity, args.target))
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
        _declare_mount,
        _mount,
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
