"""Pages in memory: bounded by bytes, the last used plain, the rest compressed, each the bytes that were put."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.hub.pagecache import COMPRESSED_MAX, PageCache


def text(number: int, size: int) -> bytes:
    """Return a page that compresses as documentation does, roughly."""
    words = [b"install", b"the", b"package", b"with", b"%d" % number, b"configure"]
    chosen = random.Random(number).choices(words, k=size // 2 + 1)
    return b" ".join(chosen)[:size].ljust(size)


def noise(number: int, size: int) -> bytes:
    """Return a page that does not compress."""
    return random.Random(number).randbytes(size)


@given(
    limit=st.integers(1, 4_000),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60),
    sizes=st.lists(st.integers(0, 5_000), min_size=10, max_size=10),
)
def test_what_is_kept_is_bounded_and_right(
    limit: int, steps: list[tuple[bool, int]], sizes: list[int]
) -> None:
    """For any use the cache holds no more than its bound and one page over it, and gives what was put."""
    cache = PageCache(limit)
    pages = [(text if number % 2 else noise)(number, size) for number, size in enumerate(sizes)]
    was_put: set[int] = set()
    latest_large = 0
    for put, number in steps:
        page = pages[number]
        if put:
            cache.put(bytes([number]), page)
            was_put.add(number)
            latest_large = len(page) if len(page) > limit else latest_large

        else:
            assert cache.get(bytes([number])) in ((page, None) if number in was_put else (None,))
        assert cache.size <= limit + latest_large


@given(sizes=st.lists(st.integers(0, 1_000), max_size=30))
def test_pages_within_the_bound_are_all_kept(sizes: list[int]) -> None:
    """Nothing is dropped or compressed as long as everything fits."""
    cache = PageCache(max(1, sum(sizes)))
    pages = {bytes([number]): noise(number, size) for number, size in enumerate(sizes)}
    for version, page in pages.items():
        cache.put(version, page)
    assert cache.size == sum(sizes)
    assert {version: cache.get(version) for version in pages} == pages


def test_a_page_that_is_read_again_outlives_one_that_is_not() -> None:
    """Of two pages in a full cache the one that was read last stays."""
    cache = PageCache(20)
    for number in (1, 2):
        cache.put(b"%d" % number, noise(number, 10))
    assert cache.get(b"1") == noise(1, 10)
    cache.put(b"3", noise(3, 10))
    kept = [cache.get(b"%d" % number) for number in (1, 2, 3)]
    assert kept == [noise(1, 10), None, noise(3, 10)]


def test_twice_the_bound_fits_where_text_is_compressed() -> None:
    """Twice as many pages as fit plain are all there, the oldest compressed; reading them all changes nothing."""
    size, count = 8_000, 100
    cache = PageCache(size * count // 2)
    for number in range(count):
        cache.put(bytes([number]), text(number, size))
    for _ in range(2):
        for number in range(count):
            assert cache.get(bytes([number])) == text(number, size)
            assert cache.size <= size * count // 2


@pytest.mark.parametrize("size", [COMPRESSED_MAX, COMPRESSED_MAX + 1])
def test_large_pages_are_not_compressed(size: int) -> None:
    """A page over COMPRESSED_MAX is dropped when its turn comes; one of that size is compressed and comes back."""
    cache = PageCache(4 * COMPRESSED_MAX)
    for number in range(5):
        cache.put(bytes([number]), text(number, size))
    assert cache.get(b"\0") == (text(0, size) if size == COMPRESSED_MAX else None)
