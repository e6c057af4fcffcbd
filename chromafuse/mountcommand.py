"""`chromafuse mount`: its words, and the processes that they start, in the foreground or behind.

Concurrency: one command a process. Imports are late: `--help` must not wait for an event loop.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .config import PREFILTERS
from .errors import UsageError
from .outcome import outcome_of, say
from .storeargs import declare_identity, declare_store, declare_store_options, identity_of, store_of
from .text import printable

if TYPE_CHECKING:
    from .config import Config
    from .daemon import Log, Parent
    from .hub.redislocation import RedisSettings
    from .job import Job
    from .runtime import Claim

# Words of mount(8) that say nothing to a read-only FUSE file system, or what it does anyway.
_IGNORED_OPTIONS = frozenset(
    (
        *("ro", "defaults", "auto", "noauto", "nofail", "_netdev", "async", "silent", "loud"),
        *("user", "nouser", "users", "nousers", "owner", "group"),
        *("nosuid", "nodev", "noexec", "atime", "noatime", "diratime", "nodiratime"),
        *("relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime"),
    )
)


def declare(parser: argparse.ArgumentParser) -> None:
    declare_store(parser)
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an empty directory")
    declare_identity(parser)
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
    parser.add_argument(
        "--prefilter",
        choices=PREFILTERS,
        default=PREFILTERS[0],
        help="how searches by `chromafuse grep` and shims find candidates (default: auto)",
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
    declare_store_options(parser)


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

    identity = identity_of(args)
    allow_other = _mount_options(args.options) or args.allow_other
    if args.log_file is not None and not args.daemon:
        raise UsageError("--log-file goes with --daemon; in the foreground the log is stderr")
    location, chosen, config = store_of(args)
    return Job(
        location,
        identity,
        locate(args.mountpoint),
        allow_other=allow_other,
        cache_dir=cache_dir(),
        memory=config.memory,
        rows_per_call=chosen.rows_per_call,
        redis=_redis(args, config),
        prefilter=args.prefilter,
    )


def run(args: argparse.Namespace) -> int:
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
