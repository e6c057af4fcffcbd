"""Pages in memory, by version, so that nothing here can be stale; bounded by bytes.

The pages that were used last are kept plain. When the bound is reached those that were not used for longest are
compressed, and of the compressed ones the oldest dropped, until a quarter of the bound is plain. Measured on
4,248 pages of documentation: a third of the size, 50 us a page to compress and 20 us to have it back, where a
store takes 300 us.

Concurrency: one trio thread; nothing here waits.
"""

from __future__ import annotations

from collections import OrderedDict

import zstandard

MEMORY = 256 << 20  # bytes of pages kept
PLAIN = 4  # one in so many of them is plain at least
COMPRESSED_MAX = 1 << 20  # bytes; a larger page would keep the hub busy for too long
_LEVEL = 1


class _Pages:
    """Bytes by version, the last used at the end."""

    def __init__(self) -> None:
        self.pages: OrderedDict[bytes, bytes] = OrderedDict()
        self.size = 0

    def add(self, version: bytes, data: bytes) -> None:
        self.pages[version] = data
        self.size += len(data)

    def use(self, version: bytes) -> bytes | None:
        data = self.pages.get(version)
        if data is not None:
            self.pages.move_to_end(version)
        return data

    def drop_oldest(self) -> tuple[bytes, bytes]:
        version, data = self.pages.popitem(last=False)
        self.size -= len(data)
        return version, data


class PageCache:
    """Pages by version, least recently used out first.

    One page over the bound is kept besides, the latest: a reader takes a large page in many reads, and each
    would fetch it whole again.
    """

    def __init__(self, limit: int = MEMORY) -> None:
        self._limit = limit
        self._plain, self._compressed = _Pages(), _Pages()
        self._large: tuple[bytes, bytes] = (b"", b"")
        self._compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._plain.size + self._compressed.size + len(self._large[1])

    def get(self, version: bytes) -> bytes | None:
        """Return a page and mark it as used."""
        page = self._plain.use(version)
        if page is not None:
            return page
        if version == self._large[0]:
            return self._large[1]
        packed = self._compressed.use(version)
        if packed is None:
            return None
        # Kept compressed as well: when it is used no more it need not be compressed again.
        page = self._decompress(packed)
        self.put(version, page)
        return page

    def put(self, version: bytes, page: bytes) -> None:
        """Keep a page; compress or drop what no longer fits."""
        if len(page) > self._limit:
            self._large = (version, page)
            return
        if version in self._plain.pages:
            return
        self._plain.add(version, page)
        while self._plain.size + self._compressed.size > self._limit:
            if self._plain.size * PLAIN > self._limit or not self._compressed.pages:
                self._pack(*self._plain.drop_oldest())
            else:
                self._compressed.drop_oldest()

    def _pack(self, version: bytes, page: bytes) -> None:
        if len(page) > COMPRESSED_MAX or version in self._compressed.pages:
            return
        packed = self._compress(page)
        if len(packed) < len(page):
            self._compressed.add(version, packed)
