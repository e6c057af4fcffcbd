"""Reading a whole source once: every page's version, size, time and access. No page is kept.

Publishing reads again the pages that have to be written, and checks them against their version: a site costs
the memory of its largest page, not of all of them.

Concurrency: plain blocking calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import UserError
from ..model.records import TreeEntry, cut, page_version
from .rules import Policy, unmatched
from .source import Listing, Source

Progress = Callable[[str, int, int], None]
_INT64 = 1 << 63  # tmpfs keeps times that no 64 bits of nanoseconds hold


@dataclass(slots=True)
class Scan:
    """The pages of a source as they would be published, in tree order, and what there is to tell of them.

    `withheld` are files that list other pages and that no rule names; `opened_by_page` those whose front
    matter admits somebody whom the ACL file does not; `untracked` those without a commit (--mtime git).
    """

    entries: list[TreeEntry] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)
    opened_by_page: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    hidden: list[tuple[str, str]] = field(default_factory=list)  # path, why nobody could be let in
    idle_rules: list[str] = field(default_factory=list)


def scan(
    source: Source,
    listing: Listing,
    policy: Policy,
    *,
    commits: Mapping[str, int] | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Scan:
    """Read every file of `listing`. Raises UserError where one cannot be read, or there is none."""
    if not listing.files:
        raise UserError(_nothing(listing))
    result = Scan()
    matched: set[int] = set()
    total = len(listing.files)
    for done, path in enumerate(listing.files):
        progress("read", done, total)
        data, mtime_ns = source.read(path)
        decision = policy.decide(path, data)
        matched.update(decision.matched)
        if decision.problem:
            result.hidden.append((path, decision.problem))
        if decision.withheld:
            result.withheld.append(path)
        if decision.opened_by_page:
            result.opened_by_page.append(path)
        if commits is not None:
            if path not in commits:
                result.untracked.append(path)
            mtime_ns = commits.get(path, mtime_ns)
        result.entries.append(
            TreeEntry(
                path,
                decision.access,
                page_version(path, data),
                len(cut(data).documents),
                len(data),
                max(-_INT64, min(mtime_ns, _INT64 - 1)),
            )
        )
    progress("read", total, total)
    result.idle_rules = unmatched(policy.rules, frozenset(matched))
    return result


def _nothing(listing: Listing) -> str:
    left_out = listing.dot_names + listing.deselected + len(listing.skipped)
    if left_out:
        return (
            f"SRC has no page to publish: all it has is left out ({listing.dot_names} dot-names, "
            f"{listing.deselected} by --include and --exclude, {len(listing.skipped)} that cannot go in)"
        )
    return "SRC has no file in it; nothing was published"
