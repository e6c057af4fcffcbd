"""Who may see a page of a source: front matter, ACL file, default. Whatever is unclear closes the page."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from chromafuse.errors import UsageError, UserError
from chromafuse.ingest.frontmatter import LIMIT, FrontMatter, read_front_matter
from chromafuse.ingest.rules import (
    WORDS,
    Policy,
    combine,
    is_list_file,
    load_policy,
    parse_acl,
    unmatched,
)
from chromafuse.model.access import AUTHENTICATED, HIDDEN, PUBLIC, Access, widens

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def groups(*names: str) -> Access:
    """Return the access of a page for these groups."""
    return Access(groups=frozenset(names))


def policy(acl: str = "", default: str = "authenticated") -> Policy:
    """Return the policy of an ACL file's text."""
    return Policy(parse_acl(acl.encode(), "acl.toml"), WORDS[default])


def rule(glob: str, access: str) -> str:
    """Return one rule; an access that is no word of the language is a group."""
    what = f'access = "{access}"' if access in WORDS else f'groups = ["{access}"]'
    return f"[[rule]]\nglob = '{glob}'\n{what}\n"


def page(front: str) -> bytes:
    """Return a page with this front matter."""
    return f"---\n{front}\n---\n\n# Page\n".encode()


# -- front matter --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "public", "named"),
    [
        (b"", None, None),
        (b"# Title\n\n---\npublic: true\n---\n", None, None),
        (b"\n---\n\nA paragraph between two rules.\n\n---\ngroups: [a]\n", None, None),
        (b"<!-- no end\n---\ngroups: [a]\n---\n", None, None),
        (b"----\npublic: true\n----\n", None, None),
        (b"---\n---\n", None, None),
        (b"---\n# a comment\n---\n", None, None),
        (page("title: x"), None, None),
        (page("public: true"), True, None),
        (page("public: false"), False, None),
        (page("public: yes"), True, None),
        (page("groups: [b, a]"), None, {"a", "b"}),
        (page("groups:\n- a\n"), None, {"a"}),
        (page("groups: []"), None, set()),
        (page("public: true\ngroups: [a]"), True, {"a"}),
        (page("nested:\n  public: true"), None, None),
        (page("groups: ['42', \"null\"]"), None, {"42", "null"}),
        (page("groups: [Grün]"), None, {"Grün"}),
        (b"\xef\xbb\xbf" + page("public: true"), True, None),
        (page("public: true\ngroups: [a]").replace(b"\n", b"\r\n"), True, {"a"}),
        (page("public: true").replace(b"\n", b"\r"), True, None),
        (b"--- \t\npublic: true\n---\t \n", True, None),
        (b"---\npublic: true\n---", True, None),
        (b"---\npublic: true\n...\n# Page", True, None),
        (b"---\npublic: true\n---\n\xff\xfe not UTF-8 below", True, None),
        (page("text: |\n  public: false\n  --- x\npublic: true"), True, None),
    ],
)
def test_front_matter_is_read(data: bytes, public: bool | None, named: set[str] | None) -> None:
    """BOM, CRLF and white space behind the dashes do not matter; only the two top keys count."""
    expected = FrontMatter(public, None if named is None else frozenset(named))
    assert read_front_matter(data) == expected


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (page("public: 'true'"), "public is text, not true or false"),
        (page("public: 1"), "public is a int, not true or false"),
        (page("public:"), "public is empty, not true or false"),
        (page("public: [true]"), "public is a list, not true or false"),
        (page("groups: billing"), "groups is text, not a list"),
        (page("groups:"), "groups is empty, not a list"),
        (page("groups: {a: b}"), "groups is a mapping, not a list"),
        (page("groups: true"), "groups is true or false, not a list"),
        (page("groups: [a, 1]"), "groups holds something that is not a non-empty text"),
        (page("groups: [yes]"), "groups holds something that is not a non-empty text"),
        (page("groups: ['']"), "groups holds something that is not a non-empty text"),
        (page("public: true\ngroups: a"), "groups is text, not a list"),
        (page("public: false\npublic: true"), "unreadable front matter: 'public' is there twice"),
        (page("Public: false"), "unreadable front matter: 'Public' is written 'public'"),
        (page("GROUPS: [a]"), "unreadable front matter: 'GROUPS' is written 'groups'"),
        (page("- public"), "front matter that is no list of keys"),
        (page("just text"), "front matter that is no list of keys"),
        (
            page("title: [open"),
            "unreadable front matter: did not find expected ',' or ']' (line 3)",
        ),
        (page("<<: {public: true}"), "unreadable front matter: merge keys are not read"),
        (page("<<: {Groups: [a]}"), "unreadable front matter: merge keys are not read"),
        (b"\n" + page("groups: [a]"), "front matter that does not begin the file"),
        (b" " + page("groups: [a]"), "front matter that does not begin the file"),
        (b"\0" + page("groups: [a]"), "front matter that does not begin the file"),
        (b"\r\n\t" + page("'Groups' : [a]"), "front matter that does not begin the file"),
        (b"\xef\xbb\xbf" * 2 + page("public: false"), "front matter that does not begin the file"),
        (b"<!-- a -->\n" + page("groups: [a]"), "front matter that does not begin the file"),
        (b"{/* a */}\n" + page("groups: [a]"), "front matter that does not begin the file"),
        (page("x: &a [1]\ny: *a"), "unreadable front matter: aliases are not read"),
        (page(f"x: {'[' * 40}{']' * 40}"), "unreadable front matter: nested deeper than 32"),
        (page("date: 2024-13-45"), "unreadable front matter: month must be in 1..12"),
        (page("n: !!int ''"), "unreadable front matter: string index out of range"),
        (
            page("x: !!python/object/apply:os.system [id]"),
            (
                "unreadable front matter: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/object/apply:os.system' (line 2)"
            ),
        ),
        (page("a: 1").replace(b"1", b"\xff"), "unreadable front matter: not UTF-8"),
        (b"---\npublic: true\n", f"front matter without a closing '---' in {LIMIT:,} bytes"),
        (page("x: " + "y" * LIMIT), f"front matter without a closing '---' in {LIMIT:,} bytes"),
        (b"---toml\npublic=true\n---\n", "front matter that is not plain YAML between '---' lines"),
        (b"+++\npublic = true\n+++\n", "front matter that is not plain YAML between '---' lines"),
        ("---\npublic: true\n---\n".encode("utf-16"), "UTF-16, in which no front matter is read"),
    ],
)
def test_front_matter_that_is_unclear_is_a_problem(data: bytes, problem: str) -> None:
    """A wrong type, a key twice or in capitals, and YAML that is broken or dangerous hide the page."""
    assert read_front_matter(data) == FrontMatter(problem=problem)


@pytest.mark.parametrize("front", ["title: a\0b", f"x: {'[' * 60_000}", f"x: {'{a: ' * 12_000}"])
def test_front_matter_that_yaml_refuses_is_a_problem(front: str) -> None:
    """Bytes that YAML does not allow, and nesting that would overflow a stack, hide the page."""
    assert read_front_matter(page(front)).problem.startswith("unreadable front matter: ")


@pytest.mark.parametrize("name", ["a.md", "a.MDX", "a.mdown", "a.mkd", "a.qmd", "a.Rmd", "a.mdoc"])
def test_front_matter_is_read_under_every_name_of_markdown(name: str) -> None:
    """A page keeps its groups whichever suffix of Markdown it has."""
    assert policy().decide(name, page("groups: [a]")).access == groups("a")


@pytest.mark.parametrize("head", [b"<!---->", b"<!--", b"\n", b"{/*", b"\n<!-- -->"])
def test_what_comes_before_front_matter_takes_no_time(head: bytes) -> None:
    """However much stands before it, front matter that comes late is looked for in linear time."""
    assert not read_front_matter(head * (LIMIT // len(head))).problem


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(tail: bytes) -> None:
    """Whatever stands between the dashes, the answer is front matter or a problem, never an exception."""
    said = read_front_matter(b"---\n" + tail + b"\n---\n")
    assert not said.problem or (said.public, said.groups) == (None, None)


@given(st.text("abpublicgroups: []{}\n-&*!|>'\"#?,tre0", max_size=120))
def test_no_yaml_breaks_the_reader(text: str) -> None:
    """Text made of what YAML is made of gives front matter or a problem as well."""
    read_front_matter(page(text))


# -- precedence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("front", "below", "expected"),
    [
        ("title: x", HIDDEN, HIDDEN),
        ("title: x", groups("a"), groups("a")),
        ("public: true", HIDDEN, PUBLIC),
        ("public: true", groups("a"), PUBLIC),
        ("public: false", PUBLIC, AUTHENTICATED),
        ("public: false", AUTHENTICATED, AUTHENTICATED),
        ("public: false", groups("a"), groups("a")),
        ("public: false", HIDDEN, HIDDEN),
        ("groups: [b]", PUBLIC, groups("b")),
        ("groups: [b]", groups("a"), groups("b")),
        ("groups: [b]\npublic: true", PUBLIC, groups("b")),
        ("groups: [b]\npublic: false", PUBLIC, groups("b")),
        ("groups: []", PUBLIC, PUBLIC),
        ("groups: []", groups("a"), groups("a")),
        ("groups: []\npublic: true", groups("a"), PUBLIC),
        ("groups: []\npublic: false", groups("a"), groups("a")),
        ("groups: b", PUBLIC, HIDDEN),
        ("public: nein", PUBLIC, HIDDEN),
    ],
)
def test_front_matter_over_rules(front: str, below: Access, expected: Access) -> None:
    """What a page says of itself wins; what only sounds like less than the rule never gives more."""
    rules = parse_acl(b"", "acl.toml")
    assert Policy(rules, below).decide("a.md", page(front)).access == expected


ACCESSES = st.sampled_from([PUBLIC, AUTHENTICATED, HIDDEN, groups("a"), groups("a", "b")])
SAID_GROUPS = st.none() | st.frozensets(st.sampled_from(["a", "b"]))


@given(st.sampled_from([None, False]), st.sampled_from([None, frozenset[str]()]), ACCESSES)
def test_only_public_true_and_groups_can_widen(
    public: bool | None, named: frozenset[str] | None, below: Access
) -> None:
    """Front matter without `public: true` and without a group admits nobody whom the rule does not."""
    assert not widens(below, combine(FrontMatter(public, named), below))


@given(st.none() | st.booleans(), SAID_GROUPS, ACCESSES)
def test_groups_of_a_page_admit_their_members_alone(
    public: bool | None, named: frozenset[str] | None, below: Access
) -> None:
    """Where a page names groups, they alone see it, whatever `public`, rule and default say."""
    access = combine(FrontMatter(public, named), below)
    if named:
        assert access == Access(groups=named)
    elif public:
        assert access == PUBLIC
    else:
        assert access in (below, AUTHENTICATED)


GLOBS = st.sampled_from(["**", "*", "/a/**", "a/", "*.md", "/a/x.md", "x.md", "b.json", "*.json"])
RULES = st.lists(st.tuples(GLOBS, st.sampled_from([*WORDS, "g"])), max_size=6)
PATHS = st.sampled_from(["x.md", "a/x.md", "a/b.json", "b.json", "c/d.json", "a/y.txt"])


@given(RULES, PATHS, st.sampled_from(list(WORDS)))
def test_the_last_match_wins(rules: list[tuple[str, str]], path: str, default: str) -> None:
    """The last rule that matches decides, and for files that list others only if it names them."""
    decided = policy("".join(rule(*item) for item in rules), default)
    alone = [policy(rule(*item)).decide(path, b"") for item in rules]
    matching = [n for n, decision in enumerate(alone, 1) if decision.matched]
    decision = decided.decide(path, b"")
    assert decision.matched == tuple(matching)
    if matching:
        assert decision.access == alone[matching[-1] - 1].access
    else:
        assert decision.access == (HIDDEN if path.endswith(".json") else WORDS[default])


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("/billing/**", "billing/a.md", True),
        ("/billing/**", "x/billing/a.md", False),
        ("billing/", "x/billing/a.md", True),
        ("billing", "billing", True),
        ("*.md", "x/a.md", True),
        ("/*.md", "x/a.md", False),
        ("a b/ü.md", "a b/ü.md", True),
        ("docs/**/x.md", "docs/x.md", True),
        ("[ab].md", "a.md", True),
        ("\\#x.md", "#x.md", True),
    ],
)
def test_globs_are_those_of_gitignore(glob: str, path: str, matches: bool) -> None:
    """A slash anchors, a final slash means a folder and all in it, `**` any depth."""
    assert bool(policy(rule(glob, "public")).decide(path, b"").matched) == matches


def test_a_page_that_opens_itself_against_a_rule_is_reported() -> None:
    """Front matter that admits more than the ACL file does is told of; against the default it is not."""
    strict = policy(rule("/a/**", "hidden"))
    assert strict.decide("a/x.md", page("public: true")).opened_by_page
    assert not strict.decide("a/x.md", page("public: false")).opened_by_page
    assert not strict.decide("b/x.md", page("public: true")).opened_by_page


@pytest.mark.parametrize("text", ["public: true", "public: false", "groups: [billing]"])
@pytest.mark.parametrize("name", ["a.txt", "a.html", "a"])
def test_only_markdown_says_who_may_see_it(name: str, text: str) -> None:
    """Words on access in a file that is no Markdown are not obeyed, and close it: somebody meant something."""
    decision = policy(rule("*", "public")).decide(name, page(text))
    assert decision.access == HIDDEN
    assert decision.problem == "front matter with its access, in a file that is no Markdown"


def test_dashes_in_a_text_file_say_nothing() -> None:
    """A text file that begins with dashes, without words on access, is like any other."""
    data = page("title: x")
    found = {name: policy().decide(name, data).access for name in ("a.md", "a.MDX", "a.txt", "a")}
    assert set(found.values()) == {AUTHENTICATED}
    assert policy().decide("a.MDX", page("public: true")).access == PUBLIC


def test_rules_that_match_nothing_are_told() -> None:
    """A rule without a file is a typing error that may leave pages open."""
    rules = policy(rule("/biling/**", "hidden") + rule("*", "public")).rules
    assert unmatched(rules, frozenset({2})) == [
        "rule 1 of the ACL file ('/biling/**') matches no file"
    ]


# -- files that list others ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "docs.json", "mint.json", "a/b/anything.json", "openapi.yaml", "toc.yml", "acl.toml", "feed.xml", "A.JSON",
        "sitemap.xml", "sitemap-1.xml.gz", "sitemap.txt", "robots.txt", "llms.txt", "llms-full.txt", "redirects",
        "_redirects", "redirects.txt", "search-index.js", "docusaurus.config.js", "sidebars.ts", "page.json.br",
        "SUMMARY.md", "guide/toc.md", "_sidebar.md", "_navbar.md", "_meta.js", "guide/_meta.ts", "nav.js",
    ],
)  # fmt: skip
def test_lists_are_for_the_operator(path: str) -> None:
    """A file that may name hidden pages is hidden, whatever the default and a folder's rule say."""
    assert is_list_file(path)
    catch_all = "".join(rule(glob, "public") for glob in ("**", "*", "/a/", "/a/**"))
    for acl in ("", catch_all):
        decision = policy(acl, "public").decide(path, page("public: true"))
        assert (decision.access, decision.withheld) == (HIDDEN, True)


@pytest.mark.parametrize(
    "path",
    [
        "redirects.mdx",
        "sitemap.md",
        "a.txt",
        "logo.svg",
        "json",
        "notes.txt",
        "snippet.jsx",
        "llms.md",
        ".md",
    ],
)
def test_pages_are_no_lists(path: str) -> None:
    """A Markdown page is a page, whatever it is called; so is what is no data file."""
    assert not is_list_file(path)


@pytest.mark.parametrize(
    ("glob", "path", "named"),
    [
        ("docs.json", "docs.json", True),
        ("/docs.json", "docs.json", True),
        ("*.json", "api/x.json", True),
        ("/api/**/*.json", "api/x.json", True),
        ("/api/open*.json", "api/openapi.json", True),
        ("robots.txt", "robots.txt", True),
        ("_redirects", "_redirects", True),
        ("docs.*", "docs.json", False),
        ("docs*", "docs.json", False),
        ("[d]ocs.jso[n]", "docs.json", False),
        ("api/", "api/x.json", False),
        ("/api", "api/x.json", False),
        ("/api/**", "api/x.json", False),
        ("*", "_redirects", False),
        ("*.json", "x.json/y.yaml", False),
        ("x.json", "x.json/y.json", True),
        ("SUMMARY.md", "SUMMARY.md", True),
        ("*.md", "SUMMARY.md", False),
    ],
)
def test_a_rule_has_to_name_a_list(glob: str, path: str, named: bool) -> None:
    """Only a glob whose last part is the file's name or ends in its suffix opens a file that lists others."""
    decision = policy(rule(glob, "public")).decide(path, b"")
    assert decision.matched == (1,)
    assert (decision.access, decision.withheld) == ((PUBLIC, False) if named else (HIDDEN, True))


def test_a_later_rule_closes_a_list_again() -> None:
    """A list that one rule names is hidden again by a later rule that matches it and does not name it."""
    acl = rule("docs.json", "public") + rule("/**", "authenticated")
    assert policy(acl).decide("docs.json", b"").access == HIDDEN


# -- the ACL file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule = ", "acl.toml: not TOML: Invalid value (at end of document)"),
        ("[rule]\nglob = '*'", "acl.toml: rules are written [[rule]], with two brackets"),
        ("rule = [1]", "acl.toml: rules are written [[rule]], with two brackets"),
        ("[[rules]]", "acl.toml: unknown key 'rules'; an ACL file is a list of [[rule]]"),
        ("[[rule]]", "acl.toml: rule 1: has no glob"),
        ("[[rule]]\nglob = 1", "acl.toml: rule 1: glob is no text"),
        (
            "[[rule]]\nglob = '*'\nacess = 'public'",
            "acl.toml: rule 1: unknown key 'acess'; a rule has glob, and access or groups",
        ),
        (
            "[[rule]]\nglob = '*'",
            "acl.toml: rule 1 ('*'): give either access or groups, not both and not neither",
        ),
        (
            rule("a", "public") + "[[rule]]\nglob = '*'\naccess = 'public'\ngroups = ['a']",
            "acl.toml: rule 2 ('*'): give either access or groups, not both and not neither",
        ),
        (
            "[[rule]]\nglob = '*'\naccess = 'Public'",
            "acl.toml: rule 1 ('*'): access is one of public, authenticated, hidden, not 'Public'",
        ),
        (
            "[[rule]]\nglob = '*'\naccess = ['public']",
            "acl.toml: rule 1 ('*'): access is one of public, authenticated, hidden, not ['public']",
        ),
        (
            "[[rule]]\nglob = '*'\ngroups = 'a'",
            "acl.toml: rule 1 ('*'): groups is a list of group names",
        ),
        (
            "[[rule]]\nglob = '*'\ngroups = ['']",
            "acl.toml: rule 1 ('*'): groups is a list of group names",
        ),
        (
            "[[rule]]\nglob = '*'\ngroups = []",
            (
                "acl.toml: rule 1 ('*'): groups is empty; for nobody but the operator write "
                'access = "hidden"'
            ),
        ),
        (rule("", "public"), "acl.toml: rule 1: glob '' matches nothing"),
        (rule("[", "public"), "acl.toml: rule 1: glob '[' matches nothing"),
        (
            rule("!a", "public"),
            "acl.toml: rule 1: glob '!a' begins with '!'; say what is meant, not what is not",
        ),
        (
            rule("#a", "public"),
            (
                "acl.toml: rule 1: glob '#a' begins with '#', a comment; write '\\#' for a name that "
                "begins so"
            ),
        ),
        (
            rule("[z-a]", "public"),
            "acl.toml: rule 1: glob '[z-a]' is no glob: bad character range z-a at position 10",
        ),
    ],
)
def test_a_wrong_acl_file_is_named_with_its_rule(text: str, message: str) -> None:
    """What is wrong in the ACL file is one line with file and rule, and counts as wrong usage."""
    with pytest.raises(UsageError) as caught:
        parse_acl(text.encode(), "acl.toml")
    assert (str(caught.value), caught.value.exit_code) == (message, 2)


def test_an_acl_file_that_is_no_text_is_wrong_usage() -> None:
    """Bytes that are not UTF-8, and a file of megabytes, are refused as such."""
    with pytest.raises(UsageError, match=r"^acl\.toml: not UTF-8$"):
        parse_acl(b"\xff", "acl.toml")
    with pytest.raises(UsageError, match=r"^acl\.toml: more than 1,048,576 bytes"):
        parse_acl(b"#" * (1 << 20) + b"\n", "acl.toml")


def test_an_absent_acl_file_is_a_fault_of_the_world(tmp_path: Path) -> None:
    """An ACL file that cannot be read ends the run with exit code 1; without one the default decides."""
    with pytest.raises(UserError) as caught:
        load_policy(str(tmp_path / "acl.toml"), "public")
    assert str(caught.value) == (
        f"cannot read the ACL file {tmp_path / 'acl.toml'}: No such file or directory"
    )
    assert caught.value.exit_code == 1
    assert load_policy(None, "hidden") == Policy((), HIDDEN)


def test_the_example_is_a_valid_acl_file() -> None:
    """The sample site's ACL file gives each of its areas what its comments say."""
    sample = load_policy(str(EXAMPLES / "acl.toml"), "authenticated")
    paths = [
        "quickstart.mdx",
        "billing/invoices.mdx",
        "billing/plans.mdx",
        "drafts/version-3.mdx",
        "docs.json",
    ]
    assert [str(sample.decide(path, b"").access) for path in paths] == [
        "public",
        "groups billing",
        "public",
        "hidden",
        "hidden",
    ]
