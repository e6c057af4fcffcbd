"""Two sites that differ only in what an identity may not see are one and the same site to it.

Whole outputs of real tools over real mounts are compared, inode numbers and block counts included, and
what is visible is held against a naive model of the access rules.
"""

from __future__ import annotations

import itertools
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chromafuse.model.access import Access
from chromafuse.model.names import sort_key
from chromafuse.model.records import TreeEntry, cut, page_version
from chromafuse.store.embedding import ConstantEmbedder
from chromafuse.store.location import open_store, parse_store
from chromafuse.store.publish import PlannedPage, publish
from tests.support.chroma_server import ChromaServer
from tests.support.program import mounted, output

pytestmark = [pytest.mark.mount, pytest.mark.chroma]

IDENTITIES: dict[tuple[str, ...], tuple[bool, frozenset[str]]] = {
    (): (False, frozenset()),
    ("--authenticated",): (True, frozenset()),
    ("--group", "billing"): (True, frozenset({"billing"})),
    ("--group", "billing", "--group", "admin"): (True, frozenset({"billing", "admin"})),
}
TOOLS = [
    ["ls", "-laiR", "--time-style=full-iso", "."],
    ["find", ".", "-ls"],
    ["stat", "-f", "-c", "%a %b %c %d %f %l %s %S %t", "."],
    ["sh", "-c", "grep -arn '' . || true"],
    ["cat", ".chromafuse/status"],
]


@dataclass(frozen=True)
class Page:
    """One page of a random site."""

    path: str
    access: Access
    text: str
    mtime_ns: int


def allowed(page: Page, authenticated: bool, groups: frozenset[str]) -> bool:
    """The access rules once more, as naively as they can be said."""
    if page.access.groups:
        return any(group in groups for group in page.access.groups)
    if page.access.public is None:
        return False
    return page.access.public or authenticated


accesses = st.builds(
    Access,
    public=st.sampled_from([True, False, None]),
    groups=st.sampled_from([frozenset(), frozenset({"billing"}), frozenset({"admin"})]),
)
# Few names, so that pages, directories and `~page` collide often.
paths = st.lists(st.sampled_from(["a", "b", "a~page", "é.md", "c d.md"]), min_size=1, max_size=3)
pages = st.builds(
    Page,
    path=paths.map("/".join),
    access=accesses,
    text=st.text(alphabet="xyz\n\0é", max_size=30),
    mtime_ns=st.integers(0, 2**60),
)
sites = st.lists(pages, max_size=12, unique_by=lambda page: page.path)
_numbers = itertools.count()


@given(site=sites, others=sites, identity=st.sampled_from(sorted(IDENTITIES)))
@settings(max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_hidden_pages_change_nothing(
    chroma_server: ChromaServer,
    mount_root: Path,
    tmp_path: Path,
    site: list[Page],
    others: list[Page],
    identity: tuple[str, ...],
) -> None:
    """Sites that differ only in hidden pages give byte-identical listings, contents, numbers and status."""
    seen = [page for page in site if allowed(page, *IDENTITIES[identity])]
    names = {page.path for page in seen}
    hidden = [
        page
        for page in others
        if page.path not in names and not allowed(page, *IDENTITIES[identity])
    ]
    first = _observe(chroma_server, mount_root, tmp_path, site, identity)
    second = _observe(chroma_server, mount_root, tmp_path, seen + hidden, identity)
    assert first == second


@given(site=sites, identity=st.sampled_from(sorted(IDENTITIES)))
@settings(max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_what_is_visible_is_what_the_rules_allow(
    chroma_server: ChromaServer,
    mount_root: Path,
    tmp_path: Path,
    site: list[Page],
    identity: tuple[str, ...],
) -> None:
    """The texts in the mount are exactly those that a naive model of the rules allows; none by guessing."""
    with _mounted(chroma_server, mount_root, tmp_path, site, identity) as docs:
        found = sorted(path.read_bytes() for path in docs.rglob("*") if path.is_file())
        guessed = [
            page.path
            for page in site
            if not allowed(page, *IDENTITIES[identity]) and (docs / page.path).is_file()
        ]
    expected = [page for page in site if allowed(page, *IDENTITIES[identity])]
    assert found == sorted(page.text.encode() for page in expected)
    assert set(guessed) <= {page.path for page in expected} | _renamed(expected)


def _renamed(pages: list[Page]) -> set[str]:
    """Return the names that a hidden page may share with a visible one that was renamed."""
    return {page.path + "~page" * times for page in pages for times in (1, 2, 3)}


def _observe(
    server: ChromaServer, root: Path, home: Path, site: list[Page], identity: tuple[str, ...]
) -> list[bytes]:
    with _mounted(server, root, home, site, identity) as docs:
        # The line of the directory above the mount is not ours: others write in it.
        return [_without_parent(output(tool, docs)) for tool in TOOLS]


def _without_parent(listing: bytes) -> bytes:
    return b"\n".join(line for line in listing.split(b"\n") if not line.endswith(b" .."))


def _mounted(
    server: ChromaServer, root: Path, home: Path, site: list[Page], identity: tuple[str, ...]
) -> AbstractContextManager[Path]:
    collection = f"noninterference-{next(_numbers)}"
    trio.run(_publish, f"{server.url}", collection, site)
    return mounted(home, server.url, root / "docs", "--collection", collection, *identity)


async def _publish(url: str, collection: str, site: list[Page]) -> None:
    location = parse_store(url, collection=collection)
    async with open_store(location, create=True) as store:
        planned = [_planned(page) for page in sorted(site, key=lambda page: sort_key(page.path))]
        await publish(store, ConstantEmbedder(), planned, expected=None)


def _planned(page: Page) -> PlannedPage:
    data = page.text.encode()
    version, chunks = page_version(page.path, data), len(cut(data).documents)
    entry = TreeEntry(page.path, page.access, version, chunks, len(data), page.mtime_ns)
    return PlannedPage(entry, lambda: data)


def test_the_observation_sees_a_difference(
    chroma_server: ChromaServer, mount_root: Path, tmp_path: Path
) -> None:
    """The comparison is able to fail: one visible byte, time or name more is seen."""
    page = Page("a/b", Access(public=True), "x", 5)
    variants = [
        [page],
        [Page("a/b", Access(public=True), "y", 5)],
        [Page("a/b", Access(public=True), "x", 6 * 10**9)],
        [page, Page("c d.md", Access(public=True), "", 5)],
    ]
    seen = [_observe(chroma_server, mount_root, tmp_path, site, ()) for site in variants]
    assert all(one != other for one, other in itertools.combinations(seen, 2))


def test_a_hidden_path_answers_like_an_absent_one(
    chroma_server: ChromaServer, mount_root: Path, tmp_path: Path
) -> None:
    """Every tool says the same of a hidden page and of a page that never was, but for the name."""
    site = [
        Page("open/page.md", Access(public=True), "open", 5),
        Page("open/secret.md", Access(public=False), "hidden", 5),
        Page("secret/deep/page.md", Access(groups=frozenset({"admin"})), "hidden", 5),
    ]
    tools = [
        "cat",
        "stat",
        "ls -l",
        "touch",
        "rm",
        "rmdir",
        "mkdir",
        "ln -s x",
        "getfattr -d",
        "head",
    ]
    with _mounted(chroma_server, mount_root, tmp_path, site, ()) as docs:
        for tool, (hidden, absent) in itertools.product(
            tools,
            [
                ("open/secret.md", "open/nobody.md"),
                ("secret/deep/page.md", "nobody/deep/page.md"),
                ("secret", "nobody"),
            ],
        ):
            said = [
                subprocess.run(
                    f"{tool} {path}", shell=True, cwd=docs, capture_output=True, check=False
                )
                for path in (hidden, absent)
            ]
            texts = [
                (done.returncode, (done.stdout + done.stderr).replace(path.encode(), b"PATH"))
                for done, path in zip(said, (hidden, absent), strict=True)
            ]
            assert texts[0] == texts[1], tool
