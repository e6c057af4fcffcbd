"""The words that commands on a store share: which store, for whom, and what went wrong there.

Concurrency: one command a process. Imports are late: `--help` must not wait for an event loop.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from .errors import ChromafuseError, UsageError
from .outcome import leaf

if TYPE_CHECKING:
    from .config import Chosen, Config
    from .model.access import Identity
    from .store.location import StoreLocation
    from .store.protocol import Store

T = TypeVar("T")


def declare_store(parser: argparse.ArgumentParser) -> None:
    """Declare STORE."""
    parser.add_argument(
        "store",
        metavar="STORE",
        help="a directory, http(s)://host:port[/tenant/database], or a name",
    )


def declare_store_options(parser: argparse.ArgumentParser) -> None:
    """Declare what goes with STORE."""
    parser.add_argument("--collection", metavar="NAME", help="collection (default: docs)")
    parser.add_argument("--store-token-file", metavar="F", help="file with the server's token")
    parser.add_argument("--config", metavar="F", help="this configuration file and no other")


def declare_identity(parser: argparse.ArgumentParser) -> None:
    """Declare for whom."""
    parser.add_argument("--authenticated", action="store_true", help="for any reader with a login")
    parser.add_argument(
        "--group",
        metavar="G",
        action="append",
        default=[],
        help="for a member of this group; repeatable",
    )
    parser.add_argument("--unrestricted", action="store_true", help="for the operator: all pages")


def identity_of(args: argparse.Namespace) -> Identity:
    """Return for whom. Raises UsageError where that is said in two ways."""
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


def store_of(args: argparse.Namespace) -> tuple[StoreLocation, Chosen, Config]:
    """Return which store, as the words, the environment and the configuration have it. Raises UsageError."""
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


def run_store(location: StoreLocation, work: Callable[[], Awaitable[T]]) -> T:
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


def with_store(args: argparse.Namespace, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store that the words name and run `work` on it, explained as by `run_store`."""
    from .store.location import open_store

    location, chosen, _ = store_of(args)

    async def run() -> T:
        async with open_store(location, rows_per_call=chosen.rows_per_call) as store:
            return await work(store)

    return run_store(location, run)
