"""What an identity may not see, and what nobody but the hub may know, is nowhere in reach of a reader.

A view is the process that faces readers: its whole memory is searched, while it stands still, for the names
and texts of hidden pages and for the store's token. Other tests show that no answer gives them away.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chromafuse import mountinfo
from tests.support.chroma_server import ChromaServer
from tests.support.ingesting import write_tree
from tests.support.mounts import Running, foreground
from tests.support.program import chromafuse, ok, output
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.chroma]

TOKEN = f"token{secrets.token_hex(12)}"
COLLECTION = f"collection{secrets.token_hex(12)}"
SEEN = [f"seen{kind}{secrets.token_hex(12)}" for kind in ("page", "folder", "text")]
HIDDEN = [f"hidden{kind}{secrets.token_hex(12)}" for kind in ("page", "folder", "group", "text")]
SECRET = [*HIDDEN, TOKEN, COLLECTION]
_PIECE = 1 << 20  # bytes read at once


def forms(word: str) -> Iterator[bytes]:
    """Yield how a word may lie in memory: as bytes, and as wide characters."""
    for encoding in ("ascii", "utf-16-le", "utf-32-le"):
        yield word.encode(encoding)


def found_in(data: bytes, words: Iterable[str]) -> set[str]:
    """Return those of the words that are in the data, in any form."""
    return {word for word in words if any(form in data for form in forms(word))}


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Stop a process, and let it go on."""
    os.kill(pid, signal.SIGSTOP)
    try:
        stat = Path(f"/proc/{pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="a stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def found_in_memory(pid: int, words: Iterable[str]) -> set[str]:
    """Return those of the words that lie anywhere in a process's memory; every mapping must be readable."""
    words, found = list(words), set[str]()
    with standing_still(pid), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, modes, *_ = line.split()
            if not modes.startswith("r") or line.endswith(
                ("[vvar]", "[vvar_vclock]", "[vsyscall]")
            ):
                continue
            start, end = (int(word, 16) for word in span.split("-"))
            memory.seek(start)
            rest = b""
            while start < end:
                data = memory.read(min(_PIECE, end - start))
                assert data, line
                start += len(data)
                found |= found_in(rest + data, words)
                rest = data[-200:]  # a word may lie across two pieces
    return found


@contextmanager
def site(home: Path, server: ChromaServer, point: Path, *identity: str) -> Iterator[Running]:
    """Mount a site with seen and hidden pages, from a store that is given a token."""
    page, folder, text = SEEN
    hidden_page, hidden_folder, group, hidden_text = HIDDEN
    pages = {
        f"{page}.md": f"{text}\n",
        f"{folder}/page.md": f"{text}\n",
        f"{folder}/{hidden_page}.md": f"{hidden_text}\n",
        f"{hidden_folder}/page.md": f"{hidden_text}\n",
    }
    source = write_tree(home / "source", {path: text.encode() for path, text in pages.items()})
    (home / "acl.toml").write_text(
        f'[[rule]]\nglob = "*{hidden_page}*"\ngroups = ["{group}"]\n'
        f'[[rule]]\nglob = "{hidden_folder}/"\ngroups = ["{group}"]\n'
    )
    collection = ("--collection", COLLECTION + point.name)
    access = ("--acl", home / "acl.toml", "--default-access", "public")
    ok(chromafuse(home, "ingest", source, server.url, *collection, *access))
    env = {"CHROMA_API_KEY": TOKEN}
    with foreground(home, server.url, point, *collection, *identity, env=env) as mount:
        yield mount


def read_everything(point: Path) -> bytes:
    """Return what a reader gets: listings, texts, control files, and the kernel's line of the mount."""
    texts = output(["grep", "-rc", ""], point) + output(["cat", f"{SEEN[0]}.md"], point)
    controls = b"".join(
        (point / ".chromafuse" / name).read_bytes() for name in ("status", "README.md")
    )
    table = repr([mount for mount in mountinfo.read_mounts() if mount.path == str(point)])
    assert "fuse.chromafuse" in table
    return texts + controls + table.encode() + output(["ls", "-laR"], point)


def about(pid: int) -> bytes:
    """Return what a process shows of itself: argv, environment, and where its descriptors lead."""
    process = Path(f"/proc/{pid}")
    links = [os.readlink(descriptor).encode() for descriptor in (process / "fd").iterdir()]
    return b"\n".join([(process / name).read_bytes() for name in ("cmdline", "environ")] + links)


@pytest.mark.parametrize("identity", [(), ("--group", "other")], ids=["anonymous", "group"])
def test_a_view_knows_nothing_hidden(
    tmp_path: Path, chroma_server: ChromaServer, mount_root: Path, identity: tuple[str, ...]
) -> None:
    """No hidden name, text or token is in a view, in what it shows of itself and its site, or in the log."""
    point = mount_root / (identity[-1] if identity else "anonymous")
    with site(tmp_path, chroma_server, point, *identity) as mount:
        shown = read_everything(point)
        view, hub = (mount.status()[name] for name in ("view_pid", "hub_pid"))
        assert found_in(shown, [*SECRET, *SEEN]) == set(SEEN)
        assert found_in(about(view), SECRET) == set()
        assert found_in_memory(view, SECRET) == set()
        # The search is able to find: what the view shows in the view, all names and the token in the hub.
        assert found_in_memory(view, SEEN[:2]) == set(SEEN[:2])
        assert found_in_memory(hub, [*HIDDEN[:3], TOKEN]) == {*HIDDEN[:3], TOKEN}
        assert found_in(about(hub), [TOKEN]) == {TOKEN}
        assert found_in(Path(f"/proc/{hub}/cmdline").read_bytes(), SECRET) == set()
        code, log = mount.end()
        assert (code, found_in(log.encode(), [*HIDDEN, TOKEN])) == (0, set())


def test_a_view_learns_nothing_from_the_next_hub(
    tmp_path: Path, chroma_server: ChromaServer, mount_root: Path
) -> None:
    """After its hub was killed and replaced, a view knows no more than before."""
    with site(tmp_path, chroma_server, mount_root / "restarted") as mount:
        os.kill(mount.status()["hub_pid"], signal.SIGKILL)
        wait_for(lambda: mount.status()["hub_restarts"] == 1, what="the next hub")
        wait_for(lambda: mount.status()["hub"] == "ok", what="its answer")
        read_everything(mount.point)
        status = mount.status()
        assert found_in(json.dumps(status).encode(), [*HIDDEN, TOKEN]) == set()
        assert found_in_memory(status["view_pid"], [*SECRET, *SEEN[:2]]) == set(SEEN[:2])
