"""What the hub answers to a search: a plan, and the pages below one directory that can match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import trio

from chromafuse.errors import StaleInode
from chromafuse.hub.prefilter import Unknown, Visible
from chromafuse.hub.queries import FEW, MOST, Queries
from chromafuse.hub.scope import Scope
from chromafuse.model.access import Access, Identity
from chromafuse.model.entry import TreeEntry
from chromafuse.model.names import sort_key
from chromafuse.model.records import PathTree, page_version
from chromafuse.search.needs import Need, Needs
from chromafuse.search.plan import Plain, Plan, Request, Send
from chromafuse.search.query import (
    Answer,
    Filtered,
    Question,
    encode_question,
    parse_answer,
)

PUBLIC = Access(True, frozenset())
HIDDEN = Access(None, frozenset())
SITE = {
    "a.md": "needle",
    "docs/b.md": "needle",
    "docs/deep/c.md": "hay",
    "docs/deep/d.md": "needle",
    "z.md": "hay",
}
NEEDS = (Need((frozenset({"needle"}),)),)


def scope(pages: Mapping[str, str] = SITE, hidden: Mapping[str, str] | None = None) -> Scope:
    """Return what an anonymous reader sees of pages, some of them hidden."""
    both = [(path, text, PUBLIC) for path, text in pages.items()]
    both += [(path, text, HIDDEN) for path, text in (hidden or {}).items()]
    entries = tuple(
        TreeEntry(path, access, page_version(path, text.encode()), 1, len(text), 1)
        for path, text, access in sorted(both, key=lambda page: sort_key(page[0]))
    )
    return Scope.of(PathTree(1, "ab" * 32, entries), Identity())


class Texts:
    """A prefilter that looks at the texts."""

    def __init__(self, texts: Mapping[str, str], refusal: str = "") -> None:
        self.texts, self.refusal = texts, refusal
        self.questions: list[Needs] = []

    async def candidates_for(self, scope: Scope, needs: Needs) -> Visible | Unknown:
        self.questions.append(needs)
        return self._visible(scope, "needle")

    async def nul_for(self, scope: Scope) -> Visible | Unknown:
        return self._visible(scope, "\0")

    def _visible(self, scope: Scope, what: str) -> Visible | Unknown:
        if self.refusal:
            return Unknown(self.refusal)
        found = enumerate(scope.view.entries, 1)
        return Visible(
            [at for at, entry in found if entry and what in self.texts[entry.path]], "index"
        )


class Globs:
    """A selection of the names that end so."""

    def __init__(self, end: bytes) -> None:
        self.end = end

    def admits(self, path: bytes) -> bool:
        return path.endswith(self.end)

    def admits_operand(self, operand: bytes) -> bool:
        return operand.endswith(self.end)


def asked(
    plan: Plan | Plain | Send,
    *,
    of: Scope | None = None,
    directory: str = "",
    where: bytes = b".",
    whole: bool = False,
    prefilter: Texts | None = None,
) -> tuple[Answer, list[int]]:
    """Ask about a directory; return the answer and the inodes that were sent."""
    view = of or scope()
    snapshot = view.view.snapshot
    inode = 1
    for name in filter(None, directory.split("/")):
        inode = snapshot.lookup(inode, name.encode())
    pushed: list[int] = []
    planners: dict[str, Callable[[Request], Plan | Plain | Send]] = {"grep": lambda _: plan}
    queries = Queries(view, prefilter or Texts(SITE), planners)
    question = encode_question(Question(Request("grep", (b"needle",)), where, whole))

    def push(inodes: Sequence[int]) -> None:
        pushed.extend(inodes)

    return parse_answer(trio.run(queries.answer, inode, question, push)), pushed


def plan_of(*operands: bytes, recursive: bool = True, **more: object) -> Plan:
    """Return a plan for a search for the needle."""
    return Plan(NEEDS, (b"-e", b"needle"), operands, recursive, b"-H", **more)  # type: ignore[arg-type]


def test_the_current_directory_is_walked_where_no_operand_is() -> None:
    """Paths come relative to the directory, in the order of a listing, and their pages are sent."""
    answer, pushed = asked(plan_of())
    expected = Plan(None, (b"-e", b"needle"), (), True, b"-H")
    found = (b"a.md", b"docs/b.md", b"docs/deep/d.md")
    assert answer == Filtered(expected, (), 5, "index", found)
    assert [scope().view.snapshot.path(inode) for inode in pushed] == [
        path.decode() for path in found
    ]


def test_a_directory_below_knows_its_own_pages_alone() -> None:
    """What lies beside it is neither counted, nor named, nor sent."""
    answer, pushed = asked(plan_of(b"/m/docs"), directory="docs", where=b"/m/docs")
    assert isinstance(answer, Filtered)
    assert (answer.pages, answer.candidates) == (3, (b"b.md", b"deep/d.md"))
    assert len(pushed) == 2


def test_a_directory_that_is_not_walked_costs_no_search() -> None:
    """Asked at a directory that is no operand, the answer is the plan alone."""
    prefilter = Texts(SITE)
    answer, pushed = asked(plan_of(b"elsewhere"), prefilter=prefilter)
    assert isinstance(answer, Filtered)
    assert (answer.kept, answer.candidates, pushed, prefilter.questions) == ((True,), (), [], [])


@pytest.mark.parametrize(
    ("where", "operand", "kept"),
    [
        (b".", b"z.md", False),
        (b".", b"./docs//deep/c.md", False),
        (b".", b"docs/b.md", True),
        (b".", b"docs/../z.md", True),
        (b".", b"/z.md", True),
        (b".", b"absent", True),
        (b".", b"docs", True),
        (b".", b"z.md/", True),
        (b".", b"z.md/x", True),
        (b"/m", b"/m/z.md", False),
        (b"/m", b"z.md", True),
        (b"/m", b"/mz.md", True),
    ],
)
def test_a_file_that_cannot_match_is_left_out(where: bytes, operand: bytes, kept: bool) -> None:
    """An operand is left out only where it means, without a doubt, a page that is no candidate."""
    answer, _ = asked(plan_of(operand, b"a.md", recursive=False), where=where)
    assert isinstance(answer, Filtered)
    assert answer.kept == (kept, True)


def test_only_the_files_named_are_sent() -> None:
    """A search of named files has none sent besides."""
    _, pushed = asked(plan_of(b"a.md", b"z.md", recursive=False))
    assert [scope().view.snapshot.path(inode) for inode in pushed] == ["a.md"]


def test_a_selection_counts_for_both() -> None:
    """Globs take out what is walked and what is named, each by its own rule."""
    plan = plan_of(b".", b"a.md", b"b.txt", selection=Globs(b"d.md"))
    answer, _ = asked(plan)
    assert isinstance(answer, Filtered)
    assert answer.candidates == (b"docs/deep/d.md",)
    assert answer.kept == (False, False, False)


def test_most_pages_are_not_named() -> None:
    """Above a share and a number of pages the tool walks by itself."""
    many = {f"{n:03}.md": "needle" for n in range(FEW + 1)} | {"no.md": "hay"}
    answer, pushed = asked(plan_of(), of=scope(many), prefilter=Texts(many))
    assert (answer, pushed) == (Plain(f"{FEW + 1} of {FEW + 2} pages can match"), [])
    few = dict.fromkeys(many, "hay") | {f"{n:03}.md": "needle" for n in range(int(MOST * FEW))}
    answer, _ = asked(plan_of(), of=scope(few), prefilter=Texts(few))
    assert isinstance(answer, Filtered)


def test_what_is_not_known_is_plain() -> None:
    """The reason is the prefilter's, the planner's, or the question's own."""
    assert asked(plan_of(), prefilter=Texts(SITE, "no index"))[0] == Plain("no index")
    assert asked(Plain("-v"))[0] == Plain("-v")
    send = Send(((3, b"patterns"),))
    assert asked(send)[0] == send
    queries = Queries(scope(), Texts(SITE))
    data = trio.run(queries.answer, 1, b"nonsense", lambda inodes: None)
    assert parse_answer(data) == Plain("a field without an end")


def test_pages_with_nul_are_told_where_the_tool_minds() -> None:
    """Where a named file with a NUL shows up in another way, the caller hears which they are."""
    site = SITE | {"docs/x.png": "\0"}
    plan = plan_of(b"docs", enumerate=(b"--files",), plain_on_nul=True)
    answer, _ = asked(plan, of=scope(site), directory="docs", where=b"docs", prefilter=Texts(site))
    assert isinstance(answer, Filtered)
    assert (answer.binaries, answer.plan.enumerate) == ((b"x.png",), (b"--files",))


def test_directories_are_told_who_wants_them() -> None:
    """A caller without a mount table gets every directory below, and its inode."""
    answer, _ = asked(plan_of(), whole=True)
    assert isinstance(answer, Filtered)
    snapshot = scope().view.snapshot
    assert [(snapshot.path(inode).encode(), path) for inode, path in answer.directories] == [
        (b"docs", b"docs"),
        (b"docs/deep", b"docs/deep"),
    ]


def test_hidden_pages_change_nothing() -> None:
    """Two trees that differ only in what is hidden give the same bytes, for every directory and plan."""
    hidden = {"docs/deep/e.md": "needle", "b.md": "needle\0", "secret/f.md": "needle"}
    plans = [plan_of(), plan_of(b".", b"z.md", b"b.md"), plan_of(plain_on_nul=True)]
    for plan in plans:
        answers = []
        for one in (scope(), scope(hidden=hidden)):
            prefilter = Texts(SITE | hidden)
            answers.append(
                [
                    asked(plan, of=one, directory=directory, whole=True, prefilter=prefilter)
                    for directory in ("", "docs", "docs/deep")
                ]
            )
        assert answers[0] == answers[1]


@pytest.mark.parametrize("inode", [0, 2, 99, 1 << 52])
def test_only_directories_are_asked_about(inode: int) -> None:
    """A page, or a number of nobody's, is ESTALE like everywhere."""
    queries = Queries(scope(), Texts(SITE))
    with pytest.raises(StaleInode):
        trio.run(queries.answer, inode, b"", lambda inodes: None)
