"""What a page needs, by the plainest reading of search/needs.py; and pages and needs to try it on."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from chromafuse.model.records import page_version
from chromafuse.search.needs import Need, Needs, fold

# Letters that fold, in ASCII and beyond, what SQLite and regular expressions take for syntax, what ends a
# line or a text, and characters of every length in UTF-8.
_LETTERS = "aikstIKS\u0130\u0131\u017f\u212a\u00e9\u00c9e\u0301\u4e2d\u6587\U0001f600\U0001f601"
_ODD = "\0\t\r\n \"'%_*?[](){}^$|\\+.-#&~\u2028\ufeff\uffff\U0010ffff"
_texts = st.lists(
    st.one_of(
        st.sampled_from(
            ["webhook", "Kiosk", "\u017f\u0131\u212a", "\r\n", "\n", "needle in", "ab" * 40]
        ),
        st.text(_LETTERS + _ODD, max_size=6),
    ),
    max_size=8,
).map("".join)


@st.composite
def _page(draw: st.DrawFn) -> bytes:
    text = draw(_texts)
    how = draw(st.sampled_from(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "latin-1", "long", "cut"]))
    if how == "long":
        return (text + "x" * 10_000 + text).encode()
    if how == "cut":
        return text.encode() + b"\xe2\x82"  # ends within a character
    return text.encode(how, "ignore")


@st.composite
def trials(draw: st.DrawFn) -> tuple[dict[bytes, bytes], tuple[Need, ...]]:
    """Draw pages by version, and needs that some of them are likely to fulfil."""
    pages = draw(st.lists(_page(), max_size=6))
    drawn = [page.decode("utf-8", "ignore") for page in pages] + ["webhook and nothing else"]
    folded = draw(st.booleans())
    need = st.builds(
        Need,
        st.lists(st.frozensets(_literal(drawn, folded), min_size=1, max_size=3), max_size=3).map(
            tuple
        ),
        st.just(folded),
    )
    needs = draw(st.lists(need, max_size=2))
    return {page_version(f"{n}.md", page): page for n, page in enumerate(pages)}, tuple(needs)


def _literal(texts: list[str], folded: bool) -> st.SearchStrategy[str]:
    pieces = st.builds(
        lambda text, at, size: text[at % max(len(text), 1) :][:size],
        st.sampled_from(texts),
        st.integers(0, 20_100),
        st.integers(1, 9),
    )
    kept = pieces.map(_ascii) if folded else pieces
    return kept.filter(bool)


def _ascii(text: str) -> str:
    return fold(text).encode("ascii", "ignore").decode()


def fulfils(page: bytes, needs: Needs) -> bool:
    """Say whether a page fulfils needs."""
    return needs is None or any(
        all(any(_occurs(literal, page, need.fold) for literal in clause) for clause in need.clauses)
        for need in needs
    )


def _occurs(literal: str, page: bytes, folded: bool) -> bool:
    if not folded:
        return literal.encode() in page
    return fold(literal) in fold(page.decode("utf-8", "surrogateescape"))


def fulfilling(pages: Mapping[bytes, bytes], needs: Needs) -> set[bytes]:
    """Return the versions of those pages that fulfil needs."""
    return {version for version, page in pages.items() if fulfils(page, needs)}


def with_trigrams(pages: Mapping[bytes, bytes], needs: tuple[Need, ...]) -> set[bytes] | None:
    """Return the versions of those pages that have all trigrams of needs; None where these say nothing.

    A clause with a literal that has no trigram says nothing, and neither does a pattern of such clauses.
    """
    found: set[bytes] = set()
    for need in needs:
        clauses = [
            [_trigrams(fold(literal)) for literal in clause] if clause else [set[str]()]
            for clause in need.clauses
        ]
        telling = [clause for clause in clauses if all(clause)]
        if not telling:
            return None
        for version, page in pages.items():
            has = _trigrams(fold(page.decode()))
            if all(any(wanted <= has for wanted in clause) for clause in telling):
                found.add(version)
    return found


def _trigrams(text: str) -> set[str]:
    found = (text[at : at + 3] for at in range(len(text) - 2))
    return {trigram for trigram in found if "\0" not in trigram}


def one(*literals: str, fold: bool = False) -> tuple[Need, ...]:
    """Return the needs of a pattern that wants each of the literals."""
    return (Need(tuple(frozenset({literal}) for literal in literals), fold),)
