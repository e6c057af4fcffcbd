"""The sample site keeps the odd things it was written for; tidying them turns this red."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SITE = EXAMPLES / "site"
BOM = b"\xef\xbb\xbf"

FILES = {
    path.relative_to(SITE).as_posix(): path.read_bytes()
    for path in sorted(SITE.rglob("*"))
    if path.is_file() and not path.is_symlink()
}
PAGES = {
    name: data
    for name, data in FILES.items()
    if name.endswith((".md", ".mdx")) and not Path(name).name.startswith(".")
}


def front_matter(data: bytes) -> dict[str, object]:
    """Return the front matter of a page as a mapping, {} where it has none."""
    text = data.decode().removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.startswith("---\n"):
        return {}
    loaded = yaml.safe_load(text.removeprefix("---\n").partition("\n---\n")[0])
    assert isinstance(loaded, dict)
    return loaded


FEATURES: dict[str, Callable[[str, bytes], bool]] = {
    "name with a space": lambda name, _: " " in name,
    "name with letters beyond ASCII": lambda name, _: not name.isascii(),
    "name in NFC": lambda name, _: not name.isascii() and unicodedata.is_normalized("NFC", name),
    "name beyond Latin-1": lambda name, _: any(ord(letter) > 255 for letter in name),
    "empty page": lambda _, data: data == b"",
    "CRLF on every line": lambda _, data: 0 < data.count(b"\n") == data.count(b"\r\n"),
    "byte order mark": lambda _, data: data.startswith(BOM),
    "NUL byte in valid UTF-8": lambda _, data: b"\0" in data and bool(data.decode()),
    "no final newline": lambda _, data: data != b"" and not data.endswith(b"\n"),
    "line of more than 16,000 bytes": lambda _, data: max(map(len, data.split(b"\n"))) > 16_000,
    "public by front matter": lambda _, data: front_matter(data).get("public") is True,
    "group by front matter": lambda _, data: front_matter(data).get("groups") == ["billing"],
    "two groups by front matter": lambda _, data: (
        front_matter(data).get("groups") == ["admin", "billing"]
    ),
    "no front matter": lambda _, data: data != b"" and front_matter(data) == {},
    "page beside a folder of its stem": lambda name, _: (SITE / name).with_suffix("").is_dir(),
    "two suffixes of one stem": lambda name, _: (
        name.endswith(".md") and name.removesuffix(".md") + ".mdx" in PAGES
    ),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_some_page_has_the_feature(feature: str) -> None:
    """At least one page of the site shows each thing that a real site may hold."""
    assert [name for name, data in PAGES.items() if FEATURES[feature](name, data)]


def test_number_of_pages() -> None:
    """The site is small enough to read and large enough to look like one."""
    assert 20 <= len(PAGES) <= 30


def test_pages_are_utf8_with_readable_front_matter() -> None:
    """Every page decodes, and front matter is a mapping where there is any."""
    for data in PAGES.values():
        front_matter(data)


def test_image_is_a_small_png() -> None:
    """One binary file: a PNG of a few hundred bytes, which is not UTF-8."""
    data = FILES["images/fern.png"]
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) < 1_000
    with pytest.raises(UnicodeDecodeError):
        data.decode()


def test_symlink_and_dot_files() -> None:
    """A symlink to a page, and dot-files that ingest leaves out."""
    assert os.readlink(SITE / "latest.mdx") == "changelog.mdx"
    assert {name for name in FILES if name.startswith(".")} == {".gitignore", ".hidden.md"}


def test_lists_name_real_pages() -> None:
    """docs.json names pages that exist, those of closed areas too, and the OpenAPI file parses."""
    docs = json.loads(FILES["docs.json"])
    named = [page for group in docs["navigation"]["groups"] for page in group["pages"]]
    assert [page for page in named if not {f"{page}.md", f"{page}.mdx"} & set(PAGES)] == []
    assert {page.partition("/")[0] for page in named} >= {"billing", "admin"}
    assert json.loads(FILES[docs["openapi"]])["openapi"].startswith("3.")


def test_acl_has_each_kind_of_rule() -> None:
    """The ACL file has public pages, hidden pages and the two groups."""
    rules = tomllib.loads((EXAMPLES / "acl.toml").read_text(encoding="utf-8"))["rule"]
    assert {rule.get("access") for rule in rules} == {"public", "hidden", None}
    assert {group for rule in rules for group in rule.get("groups", [])} == {"billing", "admin"}


def test_git_keeps_the_bytes() -> None:
    """No git attribute converts line ends below the site, and no ignore rule drops a file of it."""
    root = EXAMPLES.parent
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    paths = [f"examples/site/{name}" for name in FILES]
    attributes = subprocess.run(
        ["git", "check-attr", "-z", "text", "--", *paths],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    assert set(attributes[2::3]) == {"unset"}
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", "--", *paths],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ignored.returncode, ignored.stdout) == (1, "")
