"""Walking and reading a source directory: what is meant, what is skipped, and that nothing else is read."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from chromafuse.errors import UsageError, UserError
from chromafuse.ingest import gittimes
from chromafuse.ingest import source as module
from chromafuse.ingest.source import Listing, Source, parse_selection, printable
from tests.support.ingesting import as_nobody, git, make_checkout, write_tree


def walk(root: Path, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Listing:
    """List what a selection means below `root`."""
    with Source(str(root)) as source:
        return source.walk(parse_selection([*include], [*exclude]))


def error_of(root: Path, *paths: str) -> str:
    """Return the one line that walking `root`, then reading `paths`, ends with."""

    def read() -> None:
        with Source(str(root)) as source:
            source.walk(parse_selection([], []))
            for path in paths:
                source.read(path)

    with pytest.raises(UserError) as caught:
        read()
    assert caught.value.exit_code == 1
    return str(caught.value)


# -- what is meant -------------------------------------------------------------------------------------

TREE = dict.fromkeys(
    [
        "a.md", "a/b.md", "a-b.md", "a/.c.md", ".d.md", ".github/x.md", ".github/.y.md", "b.txt", ".git/config",
        "sub/.git/HEAD", "sub/CVS/Root", "sub/z.mdx",
    ],
    b"x",
)  # fmt: skip


@pytest.mark.parametrize(
    ("include", "exclude", "files"),
    [
        ((), (), ["a/b.md", "a-b.md", "a.md", "b.txt", "sub/z.mdx"]),
        (("*",), (), ["a/b.md", "a-b.md", "a.md", "b.txt", "sub/z.mdx"]),
        (("**",), (), ["a/b.md", "a-b.md", "a.md", "b.txt", "sub/z.mdx"]),
        (("*.md",), (), ["a/b.md", "a-b.md", "a.md"]),
        (("/*.md",), (), ["a-b.md", "a.md"]),
        (("a/",), (), ["a/b.md"]),
        (("*.md", "*.mdx"), ("a*",), ["sub/z.mdx"]),
        ((), ("*.md",), ["b.txt", "sub/z.mdx"]),
        (("a.md",), ("a.md",), []),
        ((".*",), (), [".d.md", ".github/.y.md", ".github/x.md", "a/.c.md"]),
        (("*", ".d.md"), (), [".d.md", "a/b.md", "a-b.md", "a.md", "b.txt", "sub/z.mdx"]),
        ((".github/",), (), [".github/x.md"]),
        ((".github/**",), (), [".github/x.md"]),
        ((".github/.*",), (), [".github/.y.md"]),
        (("a/.c.md",), (), ["a/.c.md"]),
        ((".git", ".git/config", ".git/**"), (), []),
        (("sub/CVS/*",), (), ["sub/CVS/Root"]),
        ((".*",), (".github/",), [".d.md", "a/.c.md"]),
    ],
)
def test_selection(
    tmp_path: Path, include: tuple[str, ...], exclude: tuple[str, ...], files: list[str]
) -> None:
    """Exclude beats include; each dot-name on the way needs an include that names it; .git never goes in."""
    assert walk(write_tree(tmp_path, TREE), include, exclude).files == files


@pytest.mark.parametrize(
    ("flag", "glob", "message"),
    [
        ("include", "", "--include '' matches nothing"),
        ("exclude", "!a", "--exclude '!a' begins with '!'; say what is meant, not what is not"),
        ("include", "\\", "--include '\\\\' is no glob: Invalid git pattern: '\\\\'"),
    ],
)
def test_globs_that_mean_nothing_are_wrong_usage(flag: str, glob: str, message: str) -> None:
    """A glob that cannot match is refused by name of its flag."""
    with pytest.raises(UsageError) as caught:
        parse_selection(**{"include": [], "exclude": [], flag: ["*.md", glob]})
    assert (str(caught.value), caught.value.exit_code) == (message, 2)


def test_order_is_that_of_the_tree(tmp_path: Path) -> None:
    """Files come depth first, each directory's names in byte order, as a mount lists them."""
    names = ["ä.md", "z.md", "Z.md", "a b.md", "a/c.md", "a!.md", "a.md"]
    found = walk(write_tree(tmp_path, dict.fromkeys(names, b""))).files
    assert found == ["Z.md", "a/c.md", "a b.md", "a!.md", "a.md", "z.md", "ä.md"]


def test_what_cannot_go_in_is_skipped_and_told(tmp_path: Path) -> None:
    """Links, pipes, sockets, reserved names and names that are no UTF-8 are skipped, each with its reason."""
    root = write_tree(tmp_path / "src", {"page.md": b"x", "dir/page.md": b"y"})
    write_tree(tmp_path / "outside", {"secret.md": b"secret"})
    (root / "link.md").symlink_to("page.md")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "broken").symlink_to("nowhere")
    os.mkfifo(root / "pipe.md")
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(root / "socket"))
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff.md")).write_bytes(b"x")
    bad = Path(os.fsdecode(os.fsencode(root) + b"/bad\xfedir"))
    bad.mkdir()
    (bad / "page.md").write_bytes(b"x")
    write_tree(root, {".chromafuse/x.md": b"x", "dir/.chromafuse-x.md": b"x"})
    listing = walk(root, include=("*", ".chromafuse*"))
    assert listing.files == ["dir/page.md", "page.md"]
    assert [(printable(path), why) for path, why in listing.skipped] == [
        (".chromafuse/", "a reserved name (.chromafuse…)"),
        ("bad\\xfedir/", "not valid UTF-8"),
        ("bad\\xff.md", "not valid UTF-8"),
        ("broken", "a symbolic link"),
        ("dir/.chromafuse-x.md", "a reserved name (.chromafuse…)"),
        ("link.md", "a symbolic link"),
        ("out", "a symbolic link"),
        ("pipe.md", "a named pipe"),
        ("socket", "a socket"),
    ]


def test_what_was_not_meant_is_not_told(tmp_path: Path) -> None:
    """A link or pipe that a glob leaves out is no news."""
    root = write_tree(tmp_path, {"page.md": b"x"})
    (root / "link").symlink_to("page.md")
    assert walk(root, exclude=("link",)).skipped == []
    assert walk(root, include=("*.md",)).skipped == []


def test_a_deep_tree_is_walked(tmp_path: Path) -> None:
    """Depth costs no descriptors: a tree may be deeper than a process may have files open."""
    deep = "/".join(["d"] * 200)
    (tmp_path / deep).mkdir(parents=True)
    (tmp_path / deep / "p.md").touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        with Source(str(tmp_path)) as source:
            assert source.walk(parse_selection([], [])).files == [f"{deep}/p.md"]
            assert source.read(f"{deep}/p.md")[0] == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_store_itself_is_left_out(tmp_path: Path) -> None:
    """A store that lies in the source is not ingested into itself."""
    root = write_tree(tmp_path, {"page.md": b"x", "db/chroma.sqlite3": b"x"})
    with Source(str(root)) as source:
        listing = source.walk(parse_selection([], []), without=os.stat(root / "db"))
    assert (listing.files, listing.skipped) == (["page.md"], [("db", "the store itself")])


# -- bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"a\r\nb\r\n", b"\xef\xbb\xbfx", b"a\0b", b"y" * 300_000, bytes(range(256))],
    ids=["empty", "no newline", "CRLF", "BOM", "NUL", "long line", "binary"],
)
def test_bytes_are_read_as_they_are(tmp_path: Path, data: bytes) -> None:
    """A file's bytes and its time in nanoseconds come back unchanged."""
    root = write_tree(tmp_path, {"a b/ü.md": data})
    os.utime(root / "a b/ü.md", ns=(1, 1_234_567_890_123_456_789))
    with Source(str(root)) as source:
        assert source.read("a b/ü.md") == (data, 1_234_567_890_123_456_789)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    """SRC that is absent, a file or no path at all is one line."""
    (tmp_path / "file").touch()
    assert error_of(tmp_path / "no") == f"there is no directory {tmp_path}/no; check SRC"
    assert error_of(tmp_path / "file") == (
        f"{tmp_path}/file is not a directory; SRC is a directory of pages"
    )
    assert error_of(Path("a\0b")) == "cannot open the directory a\\x00b: embedded null byte"


def test_unreadable_files_and_directories_are_named(mount_root: Path) -> None:
    """What this user cannot read ends the run by its name, with the way out."""
    root = write_tree(mount_root / "src", {"a/page.md": b"x", "b/page.md": b"x"})
    (root / "a/page.md").chmod(0)
    with as_nobody():
        file = error_of(root, "a/page.md")
    (root / "b").chmod(0)
    with as_nobody():
        directory = error_of(root)
        assert walk(root, exclude=("b/",)).files == ["a/page.md"]
    (root / "b").chmod(0o755)
    root.chmod(0)
    with as_nobody():
        top = error_of(root)
    root.chmod(0o755)
    way_out = "Permission denied; make it readable, or leave it out with --exclude"
    assert file == f"cannot read a/page.md: {way_out}"
    assert directory == f"cannot read b/: {way_out}"
    assert top == f"cannot open the directory {root}: Permission denied"


@pytest.mark.parametrize("replaced", ["page.md", "dir"])
def test_a_link_put_in_place_is_not_followed(tmp_path: Path, replaced: str) -> None:
    """A file or directory exchanged for a link after the walk leads to an error, not outside the source."""
    root = write_tree(tmp_path / "src", {"page.md": b"x", "dir/page.md": b"x"})
    outside = write_tree(tmp_path / "outside", {"page.md": b"secret"})
    with Source(str(root)) as source:
        assert source.walk(parse_selection([], [])).files == ["dir/page.md", "page.md"]
        (root / replaced).rename(tmp_path / "aside")
        (root / replaced).symlink_to(outside / "page.md" if replaced == "page.md" else outside)
        path = "page.md" if replaced == "page.md" else "dir/page.md"
        with pytest.raises(UserError) as caught:
            source.read(path)
    assert str(caught.value) == f"{path} was removed or replaced while ingest ran; run it again"


@pytest.mark.parametrize("what", ["gone", "pipe", "directory"])
def test_a_file_that_became_something_else_is_an_error(tmp_path: Path, what: str) -> None:
    """A file removed, or exchanged for a pipe or a directory, is told of; opening the pipe does not hang."""
    root = write_tree(tmp_path, {"page.md": b"x"})
    with Source(str(root)) as source:
        (root / "page.md").unlink()
        if what == "pipe":
            os.mkfifo(root / "page.md")
        elif what == "directory":
            (root / "page.md").mkdir()
        with pytest.raises(UserError, match=r"^page\.md was removed or replaced while ingest ran"):
            source.read("page.md")


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_file_that_changes_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A page written to while it is read is read anew, and one that does not come to rest is an error."""
    root = write_tree(tmp_path, {"page.md": b"x"})
    original, reads = module._read_all, []

    def read_and_write(fd: int) -> bytes:
        data = original(fd)
        reads.append(data)
        if len(reads) <= times:
            (root / "page.md").write_bytes(b"%d" % len(reads))  # as long as before
            os.utime(root / "page.md", ns=(0, len(reads)))
        return data

    monkeypatch.setattr(module, "_read_all", read_and_write)
    if times < 3:
        with Source(str(root)) as source:
            assert source.read("page.md")[0] == b"%d" % times
    else:
        assert error_of(root, "page.md") == (
            "page.md changes while it is read; run ingest when it is at rest"
        )


def test_names_are_printed_without_control_characters() -> None:
    """A name cannot steer the terminal that the report is printed on."""
    assert printable("a\x1b[2Jb\n\u202ec\udcff ü.md") == "a\\x1b[2Jb\\n\\u202ec\\xff ü.md"


# -- git -----------------------------------------------------------------------------------------------


def test_commit_times(tmp_path: Path) -> None:
    """A file's time is that of the last commit that touches it, by its path below the source."""
    assert gittimes.commit_times(str(make_checkout(tmp_path))) == {
        "a.md": 1_100_000_000 * 10**9,
        "b c/ü\n.md": 1_000_000_000 * 10**9,
    }


def test_no_program_of_the_checkout_is_run(tmp_path: Path) -> None:
    """The configuration of somebody's checkout cannot make ingest run a program."""
    site = make_checkout(tmp_path)
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    (tmp_path / "run.sh").chmod(0o755)
    keys = ("gpg.program", "core.fsmonitor", "diff.external", "core.pager", "core.sshCommand")
    for key in keys:
        git(tmp_path, "config", key, str(tmp_path / "run.sh"))
    git(tmp_path, "config", "log.showSignature", "true")
    assert len(gittimes.commit_times(str(site))) == 2
    assert not (tmp_path / "was-run").exists()


def test_without_a_checkout_or_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--mtime git says what is missing."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UserError) as caught:
        gittimes.commit_times(str(tmp_path))
    assert str(caught.value).startswith("--mtime git: fatal: not a git repository")
    assert str(caught.value).endswith("; use --mtime file outside a git checkout")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError) as caught:
        gittimes.commit_times(str(tmp_path))
    assert str(caught.value) == "--mtime git needs git, which is not installed; or use --mtime file"
