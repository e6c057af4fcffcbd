"""Ingest of the sample site into a real embedded Chroma, start to end."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import trio

from chromafuse.errors import UserError
from chromafuse.store.location import StoreLocation, open_store
from chromafuse.store.reader import load_root
from tests.support.ingesting import run_ingest
from tests.support.publishing import published_source

pytestmark = pytest.mark.chroma

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SITE = EXAMPLES / "site"
ACL = ("--acl", str(EXAMPLES / "acl.toml"))


async def stored(place: Path) -> tuple[int, list[str], dict[str, bytes]]:
    """Return generation, every record's id, and every page, read back and checked."""
    async with open_store(StoreLocation("embedded", path=str(place))) as store:
        root = await load_root(store)
        return root.generation, sorted(await store.list_ids()), await published_source(store)


def site_pages() -> dict[str, bytes]:
    """Return what of the sample site belongs in a mount: regular files without a leading dot."""
    return {
        path.relative_to(SITE).as_posix(): path.read_bytes()
        for path in SITE.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    }


def test_the_sample_site_goes_in_and_comes_back(tmp_path: Path) -> None:
    """Every page comes back byte for byte, a second run writes nothing, and the guards hold."""
    place = tmp_path / "store"
    run_ingest(SITE, *ACL, "--dry-run", store=place)
    assert not place.exists()
    run_ingest(SITE, *ACL, store=place)
    first = trio.run(stored, place)
    assert first[2] == site_pages()

    clone = tmp_path / "clone"
    shutil.copytree(SITE, clone, symlinks=True, copy_function=shutil.copyfile)
    os.utime(clone / "index.mdx", ns=(1, 1))
    result, output = run_ingest(clone, *ACL, store=place)
    assert result.published is not None
    assert result.published.written_chunks == 0
    assert output.splitlines()[-1] == "nothing to do: generation 1 is this source already"
    assert trio.run(stored, place) == first

    for area in ("guide", "reference"):
        shutil.rmtree(clone / area)
    with pytest.raises(UserError, match=r"^this would remove 16 of 33 published pages \(48 %\)"):
        run_ingest(clone, *ACL, store=place)
    assert trio.run(stored, place) == first
    run_ingest(clone, *ACL, "--max-delete", "50%", store=place)
    generation, _, pages = trio.run(stored, place)
    kept = {n: d for n, d in site_pages().items() if not n.startswith(("guide/", "reference/"))}
    assert (generation, pages) == (2, kept)


def test_access_alone_writes_a_tree_and_no_chunk(tmp_path: Path) -> None:
    """Another ACL over the same bytes adds a tree; every chunk stays as it is."""
    place = tmp_path / "store"
    run_ingest(SITE, *ACL, store=place)
    before = trio.run(partial(stored, place))
    result, _ = run_ingest(SITE, "--default-access", "hidden", store=place)
    assert result.published is not None
    assert (result.published.generation, result.published.written_chunks) == (2, 0)
    after = trio.run(partial(stored, place))
    chunks = [[id for id in ids if not id.startswith("__")] for _, ids, _ in (before, after)]
    assert chunks[0] == chunks[1]
    assert after[2] == before[2]
    assert "index.mdx" not in [change.path for change in result.plan.widened]
