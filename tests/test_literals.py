"""Literals that a regular expression requires: what is found, and that no text that matches lacks it."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chromafuse.search.literals import MOST_CHARACTERS, literal_need, need_of
from tests.support.searching import is_candidate

FOUND = [
    ("install", [["install"]]),
    ("[Ii]nstall", [["Install", "install"]]),
    ("foo.*bar", [["bar"], ["foo"]]),
    ("(get|set)_x", [["get_x", "set_x"]]),
    ("colou?r", [["color", "colour"]]),
    ("o{2}k", [["ook"]]),
    ("instal+ed", [["instal"], ["led"]]),
    ("(foo|)bar", [["bar"]]),
    ("(a|b.*cc)dd", [["add", "ccdd"]]),
    ("b(a|.*c)d", [["ad", "cd"]]),
    ("^foo$", [["foo"]]),
    ("(?<=import )\\w+", [["import "]]),
    ("foo(?!bar)baz", [["foo"], ["baz"]]),
    ("(ab)+c\\1", [["abc"]]),
    ("(?i)Straße", [["stra"]]),
    ("a[^b]cde", [["cde"]]),
    ("(x|[a-p][a-p])[kl]mno", [["kmno", "lmno"]]),
]
NOTHING = [
    "", "a|", "x*", ".", "^$", "\\w+", "(?i)é", "a?", "(a|.)", "(?m)foo", "(?i:foo)", "(?x) foo",
    "(a", "a)", "[", "\\", "*", "(" * 5000, "a" * (MOST_CHARACTERS + 1), "(a)?(?(1)b|cc)",
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "clauses"), FOUND)
def test_clauses_of_a_pattern(pattern: str, clauses: list[list[str]]) -> None:
    """The literals around what is unknown are found, alternatives together."""
    need = need_of(pattern)
    assert need is not None
    assert sorted(sorted(clause) for clause in need.clauses) == sorted(clauses)


@pytest.mark.parametrize("pattern", NOTHING)
def test_a_pattern_that_asks_for_nothing(pattern: str) -> None:
    """What matches the empty string, has no literal, or is not understood, has no need."""
    assert need_of(pattern) is None


@pytest.mark.parametrize(
    ("text", "fold", "clauses"),
    [
        ("a.b(", False, [["a.b("]]),
        ("Café", False, [["Café"]]),
        ("Café STRASSE", True, [[" strasse"], ["caf"]]),
        ("é", True, None),
        ("", False, None),
    ],
)
def test_a_fixed_string(text: str, fold: bool, clauses: list[list[str]] | None) -> None:
    """A fixed string is needed as it is, and beyond ASCII in no other case."""
    need = literal_need(text, fold=fold)
    assert (need and [sorted(clause) for clause in need.clauses]) == clauses


ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "k",
        "S",
        "i",
        "é",
        ".",
        "[ab]",
        "[^a]",
        "[a-c]",
        "\\w",
        "^",
        "$",
        "\\b",
        "(?=a)",
        "(?!b)",
        "(?<=k)",
        "\\.",
    ]
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return patterns that hold smaller ones."""
    counts = st.sampled_from(
        ["*", "+", "?", "{2}", "{1,2}", "{0,1}", "*?", "+?", "{2,}", "{0}", "?+"]
    )
    return st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, counts).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        inner.map(lambda part: f"(?={part})"),
    )


@given(
    st.recursive(ATOMS, _larger, max_leaves=12),
    st.lists(st.text("abkKSsiI.é\u017f\u212a\u0131\n", max_size=8), min_size=1, max_size=20),
    st.booleans(),
)
def test_every_text_that_matches_has_what_is_needed(
    pattern: str, texts: list[str], fold: bool
) -> None:
    """Python's own engine finds no match in a text that lacks a literal."""
    need = need_of(pattern, fold=fold)
    assume(need is not None)
    assert need is not None
    expression = re.compile(pattern, re.IGNORECASE if fold else 0)
    assert [
        text
        for text in texts
        if expression.search(text) and not is_candidate((need,), text.encode())
    ] == []
