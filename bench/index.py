"""What the search index costs and gives. `python -m bench.index`.

Built, and asked, as a hub does it: by the process of its own, over pages that lie in memory, so that neither a
store nor a disk is part of the build time. Then the same over a Chroma directory, to see what a build that goes
on costs those who read: pages read one by one, none of them cached, in rounds with and without a build.

Concurrency: one thread; a round is over before the next one begins.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.table import Table

from chromafuse.hub.health import Health
from chromafuse.hub.index import traits_of
from chromafuse.hub.indexing import Indexing
from chromafuse.hub.loading import Load, StoreLoad
from chromafuse.hub.pages import Pages
from chromafuse.hub.prefilter import Prefilter, Visible
from chromafuse.hub.scope import Scope
from chromafuse.hub.storesearch import StoreSearch
from chromafuse.model.access import PUBLIC, Identity, Kind
from chromafuse.model.entry import TreeEntry
from chromafuse.model.names import sort_key
from chromafuse.model.records import PathTree, decode_tree, page_version
from chromafuse.search.needs import Need
from chromafuse.store.location import open_store, parse_store
from chromafuse.store.reader import load_root, load_tree

from . import corpus, mounted
from .workplace import workplace

_ABSENT = "occursNowhere17"
_REPEATS = (
    20  # questions of one word; others were asked in between, so none is answered from a list
)
_READS = 800  # pages read in a round
_ROUNDS = 4


def main() -> int:
    """Measure; print the tables, and the JSON where a file is named."""
    parser = argparse.ArgumentParser(prog="python -m bench.index", description=__doc__)
    parser.add_argument("--pages", type=int, nargs="+", default=[corpus.REAL, 60_000])
    parser.add_argument("--no-reading", action="store_true", help="leave the readers out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {"builds": []}
    with workplace() as root:
        mounted.settle_in(root)
        for number, pages in enumerate(options.pages):
            made = corpus.make(root / f"corpus-{number}", pages)
            results["builds"].append(trio.run(_measure_build, made, root / f"index-{number}"))
        if not options.no_reading:
            made = corpus.make(root / "corpus", options.pages[0])
            mounted.ingest(made.root, str(root / "store"))
            results["reading"] = trio.run(_measure_reading, root)
    _show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


# -- building and asking -----------------------------------------------------------------------------------


async def _measure_build(made: corpus.Corpus, home: Path) -> dict[str, Any]:
    pages = {
        str(path.relative_to(made.root)): path.read_bytes()
        for path in sorted(made.root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    entries = [
        TreeEntry(path, PUBLIC, page_version(path, page), 1, len(page), 5)
        for path, page in sorted(pages.items(), key=lambda pair: sort_key(pair[0]))
    ]

    async def load(wanted: Sequence[TreeEntry]) -> dict[bytes, Any]:
        await trio.lowlevel.checkpoint()
        return {entry.version: pages[entry.path] for entry in wanted}

    start, cpu = time.perf_counter(), _cpu_of_children()
    async with _indexing(home, entries, load) as found:
        built = time.perf_counter() - start
        text = sum(len(page) for page in pages.values() if not traits_of(page))
        assert found.index is not None
        size = found.index.path.stat().st_size
        asked = await _ask(found, PathTree(1, "", tuple(entries)))
    cpu = _cpu_of_children() - cpu
    start = time.perf_counter()
    async with _indexing(home, entries, load):
        opened = time.perf_counter() - start
    return {
        "what": made.what,
        "pages": len(pages),
        "text": text,
        "build_s": built,
        "build_cpu_s": cpu,
        "size": size,
        "share": size / text,
        "open_s": opened,
        "words": asked,
    }


def _cpu_of_children() -> float:
    """Return the seconds of CPU that ended children have used: the builder is one of them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _ask(found: Indexing, tree: PathTree) -> list[dict[str, Any]]:
    scope = Scope.of(tree, Identity(Kind.UNRESTRICTED))
    words = (corpus.WORD, "webhook", "token", "of the", _ABSENT)
    seconds: dict[str, list[float]] = {word: [] for word in words}
    count: dict[str, int] = {}
    for _ in range(_REPEATS):
        prefilter = Prefilter(found, None)  # a fresh one, which remembers nothing
        await prefilter.run(scope)
        for word in words:
            start = time.perf_counter()
            answer = await prefilter.candidates_for(scope, _needs(word))
            seconds[word].append(time.perf_counter() - start)
            assert isinstance(answer, Visible), answer
            count[word] = len(answer.inodes)
    return [
        {
            "word": word,
            "candidates": count[word],
            "first_ms": seconds[word][0] * 1000,
            "median_ms": statistics.median(seconds[word]) * 1000,
        }
        for word in words
    ]


def _needs(word: str) -> tuple[Need, ...]:
    return (Need((frozenset({word}),)),)


@asynccontextmanager
async def _indexing(
    home: Path,
    entries: Sequence[TreeEntry],
    load: Load,
    activity: Callable[[], int] = lambda: 0,
    *,
    wait: bool = True,
) -> AsyncIterator[Indexing]:
    """Run the indexing of a tree; give it when there is an index, or at once."""
    found = Indexing(home, "bench", entries, load, activity=activity, delay=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        while wait and found.index is None:
            await found.leaves(found.state)
        yield found
        nursery.cancel_scope.cancel()


# -- reading meanwhile -------------------------------------------------------------------------------------


async def _measure_reading(root: Path) -> dict[str, Any]:
    async with open_store(parse_store(str(root / "store"))) as store:
        published = await load_root(store)
        tree = decode_tree(await load_tree(store, published), published.generation)
        load = StoreLoad(store, Health())
        alone, meanwhile, loads = [], [], 0
        chance = random.Random(1)
        for number in range(_ROUNDS):
            wanted = chance.sample(tree.entries, _READS)
            alone.append(await _read(load, wanted))
            seconds, asked = await _read_meanwhile(
                load, wanted, tree.entries, root / f"meanwhile-{number}"
            )
            meanwhile.append(seconds)
            loads += asked
        search = StoreSearch(store, tree)
        start = time.perf_counter()
        await search.prepare()
        surveyed = time.perf_counter() - start
        start = time.perf_counter()
        await search.search(_needs(_ABSENT))
        return {
            "alone_ms": statistics.median(alone) / _READS * 1000,
            "meanwhile_ms": statistics.median(meanwhile) / _READS * 1000,
            "ratio": statistics.median(
                slow / fast for slow, fast in zip(meanwhile, alone, strict=True)
            ),
            "loads": loads,
            "survey_ms": surveyed * 1000,
            "search_ms": (time.perf_counter() - start) * 1000,
        }


async def _read_meanwhile(
    load: StoreLoad, wanted: Sequence[TreeEntry], entries: Sequence[TreeEntry], home: Path
) -> tuple[float, int]:
    """Read pages while an index is built; return the seconds and the loads that building made."""
    async with trio.open_nursery() as nursery:
        pages = Pages(nursery, Health(), load, _nothing, memory=1)
        indexing = _indexing(home, entries, load, lambda: pages.fetches, wait=False)
        async with indexing as found:
            before = load.calls
            while load.calls == before:  # noqa: ASYNC110 - nothing tells of it
                await trio.sleep(0.01)
            seconds = await _read(load, wanted, pages)
            if found.index is not None:
                raise RuntimeError("the build was over before the reading")
    return seconds, found.loads


async def _nothing() -> frozenset[bytes]:
    await trio.lowlevel.checkpoint()
    return frozenset()


async def _read(load: Load, wanted: Sequence[TreeEntry], pages: Pages | None = None) -> float:
    """Read pages one by one; return the seconds."""
    async with trio.open_nursery() as nursery:
        pages = pages or Pages(nursery, Health(), load, _nothing, memory=1)
        start = time.perf_counter()
        for entry in wanted:
            await pages.get(entry)
        seconds = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return seconds


# -- showing -----------------------------------------------------------------------------------------------


def _show(results: dict[str, Any]) -> None:
    console = Console()
    for build in results["builds"]:
        table = Table(title=f"{build['pages']:,} pages of {build['what']}")
        for name in ("word", "candidates", "first, ms", "median, ms"):
            table.add_column(name, justify="left" if name == "word" else "right")
        for row in build["words"]:
            times = (f"{row[name]:.2f}" for name in ("first_ms", "median_ms"))
            table.add_row(row["word"], f"{row['candidates']:,}", *times)
        console.print(table)
        console.print(
            f"{build['text'] / 1e6:.1f} MB of text indexed in {build['build_s']:.1f} s "
            f"({build['build_cpu_s']:.1f} s of CPU), "
            f"{build['size'] / 1e6:.1f} MB on disk ({build['share']:.2f} of the text), "
            f"opened in {build['open_s'] * 1000:.0f} ms"
        )
    if reading := results.get("reading"):
        console.print(
            f"reading from a Chroma directory: {reading['alone_ms']:.2f} ms a page, "
            f"{reading['meanwhile_ms']:.2f} ms while the index is built "
            f"({reading['ratio']:.2f} times; {reading['loads']} loads for it meanwhile); "
            f"its own search: survey {reading['survey_ms']:.0f} ms, "
            f"a question {reading['search_ms']:.0f} ms"
        )


if __name__ == "__main__":
    sys.exit(main())
