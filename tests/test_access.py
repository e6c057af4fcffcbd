"""Who may see a page: the truth table, the stored forms, and when an access widens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.model.access import (
    AUTHENTICATED,
    HIDDEN,
    PUBLIC,
    Access,
    Identity,
    Kind,
    decode_access,
    encode_access,
    widens,
)

ANONYMOUS = Identity()
NAMED = Identity(Kind.AUTHENTICATED)
RED = Identity(Kind.AUTHENTICATED, frozenset({"red"}))
BOTH = Identity(Kind.AUTHENTICATED, frozenset({"red", "blue"}))
OPERATOR = Identity(Kind.UNRESTRICTED)
COLUMNS = (ANONYMOUS, NAMED, RED, BOTH, OPERATOR)

# stored form -> may see it: anonymous, authenticated, group red, groups red and blue, the operator
TABLE: list[tuple[dict[str, Any], str]] = [
    ({"isPublic": True}, "yyyyy"),
    ({"isPublic": True, "groups": []}, "yyyyy"),
    ({"isPublic": False}, "-yyyy"),
    ({"isPublic": False, "groups": []}, "-yyyy"),
    ({}, "----y"),
    ({"groups": []}, "----y"),
    ({"isPublic": True, "groups": ["red"]}, "--yyy"),
    ({"isPublic": False, "groups": ["red"]}, "--yyy"),
    ({"groups": ["red"]}, "--yyy"),
    ({"isPublic": True, "groups": ["blue"]}, "---yy"),
    ({"isPublic": True, "groups": ["red", "blue"]}, "--yyy"),
    ({"isPublic": True, "groups": ["Red"]}, "----y"),
    ({"isPublic": True, "groups": ["red "]}, "----y"),
    # malformed: nobody but the operator, whatever else it says
    ({"isPublic": 1}, "----y"),
    ({"isPublic": "true"}, "----y"),
    ({"isPublic": None}, "----y"),
    ({"isPublic": True, "groups": "red"}, "----y"),
    ({"isPublic": True, "groups": None}, "----y"),
    ({"isPublic": True, "groups": {"red": 1}}, "----y"),
    ({"isPublic": True, "groups": [""]}, "----y"),
    ({"isPublic": True, "groups": ["red", 1]}, "----y"),
    ({"isPublic": True, "groups": ["red", None]}, "----y"),
]


@pytest.mark.parametrize(("record", "seen"), TABLE, ids=lambda value: str(value))
def test_the_truth_table(record: dict[str, Any], seen: str) -> None:
    """Each stored form admits exactly the identities of its row."""
    access = decode_access(record)
    assert "".join("y" if access.admits(who) else "-" for who in COLUMNS) == seen


@given(
    st.one_of(
        st.dictionaries(
            st.sampled_from(["isPublic", "groups", "other"]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=3),
                lambda inner: st.lists(inner, max_size=3),
                max_leaves=4,
            ),
        )
    )
)
def test_anything_odd_is_for_the_operator_alone(record: dict[str, Any]) -> None:
    """Whatever JSON stands in an entry, nobody is admitted but by a well-formed isPublic or group."""
    access = decode_access(record)
    groups = record.get("groups", [])
    well_formed = (
        ("isPublic" not in record or isinstance(record["isPublic"], bool))
        and isinstance(groups, list)
        and all(isinstance(group, str) and group for group in groups)
    )
    assert bool(access.malformed) == (not well_formed)
    everyone = Identity(Kind.AUTHENTICATED, frozenset({"x", "red"}))
    if not well_formed or ("isPublic" not in record and not groups):
        assert not access.admits(ANONYMOUS)
        assert not access.admits(everyone)
    assert access.admits(OPERATOR)


groups = st.frozensets(st.sampled_from(["red", "blue", "é"]), max_size=3)
accesses = st.builds(Access, public=st.sampled_from([True, False, None]), groups=groups)
identities = st.builds(Identity, st.just(Kind.AUTHENTICATED), groups) | st.just(ANONYMOUS)


@given(access=accesses)
def test_the_stored_form_is_read_back(access: Access) -> None:
    """Encoding and decoding an access gives the same access."""
    assert decode_access(encode_access(access)) == access


def test_what_was_malformed_is_stored_as_hidden() -> None:
    """Storing a malformed access again never makes it wider."""
    for malformed in (
        decode_access({"isPublic": True, "groups": "red"}),
        Access(
            public=True, groups=frozenset({"red"}), malformed="as a table of rules might have it"
        ),
    ):
        assert decode_access(encode_access(malformed)) == HIDDEN


def test_what_is_malformed_is_said() -> None:
    """Each odd form is reported in words, an empty group name too; a proper form is not."""
    odd = [
        {"isPublic": None},
        {"groups": {"red": 1}},
        {"groups": ["red", ""]},
        {"isPublic": False, "groups": []},
    ]
    assert [decode_access(record).malformed for record in odd] == [
        "isPublic is NoneType, not a boolean",
        "groups is dict, not a list",
        "groups holds something that is not a non-empty string",
        "",
    ]


@given(old=accesses, new=accesses, who=identities)
def test_an_access_that_does_not_widen_admits_nobody_new(
    old: Access, new: Access, who: Identity
) -> None:
    """Where `widens` says no, every identity that the new access admits was admitted before."""
    if not widens(old, new):
        assert not new.admits(who) or old.admits(who)


@given(old=accesses, new=accesses)
def test_an_access_that_widens_admits_somebody_new(old: Access, new: Access) -> None:
    """Where `widens` says yes, there is an identity that is admitted now and was not before."""
    everybody = [ANONYMOUS, NAMED] + [
        Identity(Kind.AUTHENTICATED, frozenset({name})) for name in ("red", "blue", "é")
    ]
    somebody = any(new.admits(who) and not old.admits(who) for who in everybody)
    assert widens(old, new) == somebody


def test_identities_that_make_no_sense_are_refused() -> None:
    """Groups without being authenticated, and an empty group name, are errors, not guesses."""
    for kind in (Kind.ANONYMOUS, Kind.UNRESTRICTED):
        with pytest.raises(ValueError, match="only an authenticated identity has groups"):
            Identity(kind, frozenset({"red"}))
    with pytest.raises(ValueError, match="a group name is empty"):
        Identity(Kind.AUTHENTICATED, frozenset({""}))


def test_names_for_people() -> None:
    """Identities and accesses are named in the words of the command line."""
    assert [str(who) for who in COLUMNS] == [
        "anonymous",
        "authenticated",
        "authenticated, groups red",
        "authenticated, groups blue, red",
        "unrestricted",
    ]
    named = [PUBLIC, AUTHENTICATED, HIDDEN, Access(True, frozenset("b")), Access(malformed="x")]
    assert [str(access) for access in named] == [
        "public",
        "authenticated",
        "hidden",
        "groups b",
        "hidden (malformed)",
    ]
