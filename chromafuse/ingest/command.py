"""The whole of `chromafuse ingest`: read the source, plan against the published tree, report, publish.

Nothing is written, and no store is made, before every file of the source was read and every guard passed. A
plan holds against one published tree; where another writer publishes meanwhile, it is made again.

Concurrency: one run is one writer. The source is read in blocking calls, before the store is opened and,
page by page, while chunks are written.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from ..errors import (
    CollectionMissing,
    LockBusy,
    LockLost,
    RecordDamaged,
    StoreMissing,
    UserError,
)
from ..model.records import PathTree, Root, TreeEntry, decode_tree
from ..store.embedding import check_embedding, open_embedder
from ..store.location import StoreLocation, open_store
from ..store.protocol import Store
from ..store.publish import (
    Embedder,
    PlannedPage,
    Progress,
    Published,
    TreeChanged,
    find_root,
    publish,
)
from ..store.reader import load_tree
from .gittimes import commit_times
from .plan import Plan, RemovalLimit, make_plan, parse_max_delete, refusal_of
from .report import Report, progress_bar, write_report
from .rules import WORDS, Policy, load_policy
from .scan import Scan, scan
from .source import Listing, Selection, Source, parse_selection, printable

_PLANS = 5  # times that other writers may come between plan and publication


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What the command line says of one run, but source and store."""

    acl_file: str | None = None
    default_access: str = "authenticated"
    selection: Selection = field(default_factory=Selection)
    mtime: str = "file"
    max_delete: RemovalLimit | None = None
    dry_run: bool = False
    embed: str = "none"
    json: bool = False


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What a run did; `published` is None after a dry run."""

    plan: Plan
    published: Published | None
    warnings: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `ingest` takes besides what every command that opens a store takes."""
    parser.add_argument("--acl", metavar="FILE", help="TOML file of rules: who may see which pages")
    parser.add_argument(
        "--default-access",
        choices=tuple(WORDS),
        default="authenticated",
        help="access of a page that neither its front matter nor a rule speaks of (default: %(default)s)",
    )
    parser.add_argument(
        "--include",
        metavar="GLOB",
        action="append",
        default=[],
        help="only these files; repeatable",
    )
    parser.add_argument(
        "--exclude", metavar="GLOB", action="append", default=[], help="not these; beats --include"
    )
    parser.add_argument(
        "--mtime",
        choices=("file", "git"),
        default="file",
        help="a page's time: the file's, or its last commit's (default: %(default)s)",
    )
    parser.add_argument(
        "--max-delete",
        metavar="N|N%",
        help="how many published pages may go (default: 10, or 10%% where that is more)",
    )
    parser.add_argument("--dry-run", action="store_true", help="report, write nothing")
    parser.add_argument(
        "--embed",
        choices=("none", "default"),
        default="none",
        help="vectors: a constant, or Chroma's default function (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON")


def options_of(args: argparse.Namespace) -> IngestOptions:
    """Return the options that `add_arguments` declared. Raises UsageError."""
    return IngestOptions(
        acl_file=args.acl,
        default_access=args.default_access,
        selection=parse_selection(args.include, args.exclude),
        mtime=args.mtime,
        max_delete=None if args.max_delete is None else parse_max_delete(args.max_delete),
        dry_run=args.dry_run,
        embed=args.embed,
        json=args.json,
    )


async def ingest(
    location: StoreLocation,
    source: Path,
    options: IngestOptions,
    *,
    console: Console,
    progress_console: Console | None = None,
) -> IngestResult:
    """Publish the pages below `source` in the collection at `location`, and report on `console`.

    Raises UsageError for a wrong ACL file, UserError where the source, a guard or the collection forbids it,
    StoreError where the store does.
    """
    policy = load_policy(options.acl_file, options.default_access)
    with (
        Source(os.fspath(source)) as tree,
        progress_bar(progress_console or Console(stderr=True)) as progress,
    ):
        run = _Run(location, options, policy, tree, progress)
        run.read(os.fspath(source))
        try:
            report = await run.publish()
        except LockBusy as exc:
            raise UserError(f"{exc}; run ingest again when the other writer is done") from exc
        except LockLost as exc:
            raise UserError(f"{exc}; run ingest again") from exc
    write_report(report, console, as_json=options.json)
    if report.refused:
        raise UserError(report.refused)
    return IngestResult(report.plan, report.published, report.warnings)


@dataclass(frozen=True, slots=True)
class _Before:
    """What is published when a plan is made; `damage` says why its tree cannot be read."""

    root: Root | None = None
    tree: PathTree | None = None
    damage: str = ""

    @property
    def generation(self) -> int | None:
        return self.root.generation if self.root else None


class _Run:
    """One run: its source, read once, and as many plans as other writers make necessary."""

    def __init__(
        self,
        location: StoreLocation,
        options: IngestOptions,
        policy: Policy,
        source: Source,
        progress: Progress,
    ) -> None:
        self._location = location
        self._options = options
        self._policy = policy
        self._source = source
        self._progress = progress
        self._listing = Listing()
        self._scan = Scan()

    def read(self, place: str) -> None:
        """Read the source. Raises UserError; nothing was written yet."""
        store = _stat_store(self._location)
        if store is not None and self._source.is_at(store):
            raise UserError(
                f"SRC and STORE are one directory, {printable(place)}; give STORE its own"
            )
        self._listing = self._source.walk(self._options.selection, without=store)
        commits = commit_times(place) if self._options.mtime == "git" else None
        self._scan = scan(
            self._source, self._listing, self._policy, commits=commits, progress=self._progress
        )

    async def publish(self) -> Report:
        """Plan, and carry the plan out unless it is a dry run or a guard refuses it."""
        async with open_embedder(self._options.embed) as embedder:
            if self._options.embed != "none" and not self._options.dry_run:
                await embedder.embed(["a model that is missing shows here, before a store is made"])
            async with _open(self._location, dry_run=self._options.dry_run) as store:
                for attempt in range(1, _PLANS + 1):
                    try:
                        return await self._publish_once(store, embedder)
                    except TreeChanged as exc:
                        if attempt == _PLANS:
                            raise UserError(
                                f"other writers keep publishing ({exc}); run again"
                            ) from exc
        raise AssertionError("unreachable: the last plan returned or raised")

    async def _publish_once(self, store: Store | None, embedder: Embedder) -> Report:
        before = _Before() if store is None else await _load(store, embedder)
        plan = make_plan(before.tree, self._scan.entries)
        refused = _damage_refusal(before, self._options) or refusal_of(
            plan, self._options.max_delete
        )
        published = None
        if store is not None and not self._options.dry_run and not refused:
            published = await publish(
                store,
                embedder,
                [PlannedPage(entry, partial(self._load_page, entry)) for entry in plan.entries],
                expected=before.root,
                progress=self._progress,
            )
        return Report(
            plan,
            self._scan,
            self._listing,
            _warnings(self._scan, before),
            dry_run=self._options.dry_run,
            refused=refused,
            before=before.generation,
            published=published,
        )

    def _load_page(self, entry: TreeEntry) -> bytes:
        return self._source.read(entry.path)[0]


async def _load(store: Store, embedder: Embedder) -> _Before:
    """Load what is published. Raises UserError for a collection that this run must not write to."""
    root = await find_root(store)
    check_embedding(await store.info(), root.embedding if root else None, embedder)
    if root is None:
        return _Before()
    try:
        canonical = await load_tree(store, root)
        return _Before(root, decode_tree(canonical, root.generation))
    except RecordDamaged as exc:
        return _Before(root, damage=str(exc))


@asynccontextmanager
async def _open(location: StoreLocation, *, dry_run: bool) -> AsyncIterator[Store | None]:
    """Open the collection; a dry run makes none, and gets None where there is none."""
    async with AsyncExitStack() as stack:
        try:
            store = await stack.enter_async_context(open_store(location, create=not dry_run))
        except (StoreMissing, CollectionMissing):
            if not dry_run:
                raise
            store = None
        yield store


def _stat_store(location: StoreLocation) -> os.stat_result | None:
    if location.kind != "embedded":
        return None
    try:
        return os.stat(location.path)
    except OSError:
        return None  # not there yet, or nothing that opening will not report better


def _damage_refusal(before: _Before, options: IngestOptions) -> str:
    """Say why a run must not replace a tree that cannot be read: the guards have nothing to hold against."""
    if not before.damage or options.max_delete is not None:
        return ""
    return (
        f"{before.damage}; nobody can tell what this run would remove. To replace the damaged tree by this "
        "source, give --max-delete 100%"
    )


def _warnings(scan: Scan, before: _Before) -> tuple[str, ...]:
    lines = [f"{path}: {why}: for the operator alone" for path, why in scan.hidden]
    lines += scan.idle_rules
    if scan.untracked:
        more = f" and {len(scan.untracked) - 1:,} more" if len(scan.untracked) > 1 else ""
        lines.append(f"no commit has {scan.untracked[0]}{more}: the file's own time is used")
    if before.tree is not None:
        lines += [f"the published tree's {path}: {why}" for path, why in before.tree.problems]
    if before.damage:
        lines.append(
            f"the published tree is damaged and its pages are not compared: {before.damage}"
        )
    return tuple(lines)
