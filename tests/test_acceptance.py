"""The whole way, on real documentation: source -> ingest -> Chroma -> mount -> the tools people use."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chroma_server import ChromaServer
from tests.support.corpora import corpora
from tests.support.program import chromafuse, mounted, ok, output

pytestmark = [pytest.mark.mount, pytest.mark.chroma]

TAR = (
    "tar", "c", "--sort=name", "--mode=a=r", "--owner=0", "--group=0", "--mtime=@1", "--format=gnu", ".",
)  # fmt: skip


@pytest.fixture(scope="module", params=["embedded", "server"])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path]]:
    """Give the source and an operator's mount of it, on each kind of store."""
    source = corpora()
    home = tmp_path_factory.mktemp("home")
    store: str | Path = home / "store"
    if request.param == "server":
        server: ChromaServer = request.getfixturevalue("chroma_server")
        store = server.url
    ok(chromafuse(home, "ingest", source, store, "--collection", "acceptance", "--include", "*"))
    with mounted(
        home, store, home / "mnt", "--collection", "acceptance", "--unrestricted"
    ) as mountpoint:
        yield source, mountpoint


def test_diff_reports_no_difference(live: tuple[Path, Path]) -> None:
    """`diff -r` finds the mount equal to the source."""
    source, mountpoint = live
    assert output(["diff", "-r", source, mountpoint], Path("/")) == b""


@pytest.mark.parametrize(
    "command",
    [
        ["grep", "-rn", "configuration", "."],
        ["grep", "-rc", "the", "."],
        ["find", ".", "-type", "f", "-printf", "%P %s\n"],
        ["find", ".", "-type", "f", "-exec", "md5sum", "{}", "+"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_unordered_tools_agree(live: tuple[Path, Path], command: list[str]) -> None:
    """A tool that walks in directory order prints the same lines for mount and source."""
    source, mountpoint = live
    ours, theirs = (sorted(output(command, tree).splitlines()) for tree in (mountpoint, source))
    assert ours == theirs
    assert len(ours) > 100


@pytest.mark.parametrize(
    "command",
    [
        ["rg", "--sort", "path", "-n", "configuration"],
        ["rg", "--sort", "path", "-c", "the"],
        list(TAR),
    ],
    ids=["rg", "rg -c", "tar"],
)
def test_ordered_tools_agree(live: tuple[Path, Path], command: list[str]) -> None:
    """A tool that sorts prints the same bytes for mount and source."""
    source, mountpoint = live
    ours, theirs = (output(command, tree) for tree in (mountpoint, source))
    assert ours == theirs
    assert len(ours) > 10_000


def test_a_sandbox_reads_and_cannot_write(tmp_path: Path, mount_root: Path) -> None:
    """In bubblewrap as nobody, a bind of the mount is read like a directory and refuses writes."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "page.md").write_text("hello\n")
    ok(chromafuse(tmp_path, "ingest", source, tmp_path / "store", "--default-access", "public"))
    with mounted(tmp_path, tmp_path / "store", mount_root / "docs", "--allow-other") as docs:
        sandbox = [
            "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
            "bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
            "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc",
            "--ro-bind", str(docs), "/docs", "sh", "-c",
            "cat /docs/page.md; grep -rn hello /docs; touch /docs/new; echo x >> /docs/page.md",
        ]  # fmt: skip
        done = subprocess.run(sandbox, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "hello\n/docs/page.md:1:hello\n"
    assert done.stderr.count("Read-only file system") == 2
    assert done.returncode != 0
