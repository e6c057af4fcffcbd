"""Who may see a page. Nothing else in the program decides it.

For an entry: groups that are not empty admit only members of one of them, whatever `isPublic` says; else
`isPublic: true` admits everyone; else `isPublic: false` admits any authenticated identity, never an
anonymous one. An entry without `isPublic` and without groups, and a malformed entry, is for the operator
alone. Pure values: no concurrency rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """How much is known of an identity."""

    ANONYMOUS = "anonymous"
    AUTHENTICATED = "authenticated"
    UNRESTRICTED = "unrestricted"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a mount answers to. Membership of a group implies being authenticated.

    Raises:
        ValueError: groups given to an identity that is not authenticated, or an empty group name.
    """

    kind: Kind = Kind.ANONYMOUS
    groups: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.groups and self.kind is not Kind.AUTHENTICATED:
            raise ValueError("only an authenticated identity has groups")
        if "" in self.groups:
            raise ValueError("a group name is empty")

    def __str__(self) -> str:
        if not self.groups:
            return self.kind.value
        return f"{self.kind.value}, groups {', '.join(sorted(self.groups))}"


@dataclass(frozen=True, slots=True)
class Access:
    """The access part of a tree entry: `isPublic` as stored (None = absent), and its groups.

    `malformed` says what was wrong with the stored form; such an entry is for the operator alone.
    """

    public: bool | None = None
    groups: frozenset[str] = frozenset()
    malformed: str = ""

    def admits(self, identity: Identity) -> bool:
        """Say whether `identity` may see an entry with this access."""
        if identity.kind is Kind.UNRESTRICTED:
            return True
        if self.malformed:
            return False
        if self.groups:
            return not self.groups.isdisjoint(identity.groups)
        if self.public is None:
            return False
        return self.public or identity.kind is Kind.AUTHENTICATED

    def __str__(self) -> str:
        if self.malformed:
            return "hidden (malformed)"
        if self.groups:
            return f"groups {', '.join(sorted(self.groups))}"
        return {True: "public", False: "authenticated", None: "hidden"}[self.public]


PUBLIC = Access(public=True)
AUTHENTICATED = Access(public=False)
HIDDEN = Access(public=None)


def decode_access(record: dict[str, Any]) -> Access:
    """Read `isPublic` and `groups` of a stored entry; anything odd makes the access malformed, never wider.

    Groups without `isPublic` are an entry with groups: groups beat public, present or absent.
    """
    public = record.get("isPublic")
    if "groups" not in record and (public is True or public is False):  # nearly every page
        return PUBLIC if public else AUTHENTICATED
    groups = record.get("groups", [])
    if "isPublic" in record and not isinstance(public, bool):
        return Access(malformed=f"isPublic is {type(public).__name__}, not a boolean")
    if not isinstance(groups, list):
        return Access(malformed=f"groups is {type(groups).__name__}, not a list")
    if not all(isinstance(group, str) and group for group in groups):
        return Access(malformed="groups holds something that is not a non-empty string")
    return Access(public=public, groups=frozenset(groups))


def encode_access(access: Access) -> dict[str, Any]:
    """Return the stored form of `access`; what was malformed is stored as hidden."""
    record: dict[str, Any] = {}
    if access.malformed:
        return record
    if access.public is not None:
        record["isPublic"] = access.public
    if access.groups:
        record["groups"] = sorted(access.groups)
    return record


def widens(old: Access, new: Access) -> bool:
    """Say whether `new` admits some identity that `old` did not."""
    if new.malformed or (new.public is None and not new.groups):
        return False
    if new.groups:
        return not _admits_groups(old, new.groups)
    witness = Identity() if new.public else Identity(Kind.AUTHENTICATED)
    return not old.admits(witness)


def _admits_groups(access: Access, groups: frozenset[str]) -> bool:
    return all(access.admits(Identity(Kind.AUTHENTICATED, frozenset({group}))) for group in groups)
