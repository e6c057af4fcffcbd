"""What a run would change: the new tree against the published one, and the guard against half a source.

Pure values and functions: no I/O, no concurrency rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import UsageError, UserError
from ..model.access import Access, widens
from ..model.names import sort_key
from ..model.records import MTIME_UNKNOWN, PathTree, TreeEntry

FREE_PAGES = 10  # removed without asking, however small the collection is
FREE_PERCENT = 10  # removed without asking, however large it is
_LIMIT = re.compile(r"([0-9]{1,9})(%?)")


@dataclass(frozen=True, slots=True)
class RemovalLimit:
    """--max-delete: how many published pages a run may remove."""

    amount: int
    percent: bool = False

    def admits(self, removed: int, published: int) -> bool:
        """Say whether `removed` of `published` pages is within the limit."""
        if self.percent:
            return removed * 100 <= self.amount * published
        return removed <= self.amount


def parse_max_delete(text: str) -> RemovalLimit:
    """Read N or N%. Raises UsageError."""
    found = _LIMIT.fullmatch(text)
    if found is None or (found[2] and int(found[1]) > 100):
        raise UsageError(
            f"--max-delete is a number of pages, or a percentage up to 100%, not {text!r}"
        )
    return RemovalLimit(int(found[1]), bool(found[2]))


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A page that stays, for other readers."""

    path: str
    old: Access
    new: Access

    @property
    def widened(self) -> bool:
        """Whether somebody may see it who might not before."""
        return widens(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Plan:
    """The tree to publish, and how it differs from the published one. All in tree order.

    A page is `added`, `changed` (other bytes) or `kept`; a page changed or kept may be in `access` as well.
    `published` counts the pages before, those that no reader could read included.
    """

    entries: tuple[TreeEntry, ...]
    published: int
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    kept: int
    access: tuple[AccessChange, ...]

    @property
    def widened(self) -> tuple[AccessChange, ...]:
        """The pages that somebody may see who might not before."""
        return tuple(change for change in self.access if change.widened)


def make_plan(previous: PathTree | None, scanned: Iterable[TreeEntry]) -> Plan:
    """Compare the pages of a source with the published tree.

    A page's mtime stays as published while its bytes are the same, so that a fresh clone changes nothing.
    """
    old = {entry.path: entry for entry in previous.entries} if previous else {}
    damaged = [path for path, _ in previous.problems] if previous else []
    entries = sorted((_settle(entry, old) for entry in scanned), key=_order)
    new = {entry.path: entry for entry in entries}
    stayed = [entry for entry in entries if entry.path in old]
    changed = [entry.path for entry in stayed if entry.version != old[entry.path].version]
    gone = [path for path in (*old, *damaged) if path not in new]
    return Plan(
        entries=tuple(entries),
        published=len(old) + len(damaged),
        added=tuple(entry.path for entry in entries if entry.path not in old),
        changed=tuple(changed),
        removed=tuple(gone),
        kept=len(stayed) - len(changed),
        access=tuple(
            AccessChange(entry.path, old[entry.path].access, entry.access)
            for entry in stayed
            if entry.access != old[entry.path].access
        ),
    )


def _order(entry: TreeEntry) -> bytes:
    return sort_key(entry.path)


def _settle(entry: TreeEntry, old: dict[str, TreeEntry]) -> TreeEntry:
    """Give `entry` the mtime that will be read back from the tree."""
    before = old.get(entry.path)
    if before is not None and before.version == entry.version:
        mtime = before.mtime_ns
    else:
        mtime = entry.mtime_ns or MTIME_UNKNOWN
    return replace(entry, mtime_ns=mtime)


def refusal_of(plan: Plan, limit: RemovalLimit | None) -> str:
    """Say why the plan removes too much to be carried out unasked, or return the empty string."""
    removed, published = len(plan.removed), plan.published
    if limit is not None:
        allowed = limit.admits(removed, published)
    else:
        allowed = RemovalLimit(FREE_PAGES).admits(removed, published) or RemovalLimit(
            FREE_PERCENT, percent=True
        ).admits(removed, published)
    if allowed:
        return ""
    share = removed * 100 / published
    return (
        f"this would remove {removed:,} of {published:,} published pages ({share:.0f} %); is SRC complete? "
        f"If so, allow it with --max-delete {removed}"
    )


def check_removal(plan: Plan, limit: RemovalLimit | None) -> None:
    """Raise UserError where the plan removes too much to be carried out unasked."""
    if reason := refusal_of(plan, limit):
        raise UserError(reason)
