"""One page of a tree, as every part of the program knows it. Pure values; imports no codec.

Apart from `records` so that a view, which decodes no records, loads no JSON and no compressor.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import access

MTIME_UNKNOWN = 1_000_000_000  # ns; stored for 0, which tools take for "unknown"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One page of a tree: its full path as shown, who may see it, and which bytes it has."""

    path: str
    access: access.Access
    version: bytes  # 16 bytes
    chunks: int
    size: int  # bytes
    mtime_ns: int

    @property
    def suffix(self) -> str:
        """The part of the last name from its last dot on, or the empty string."""
        name = self.path.rpartition("/")[2]
        stem, dot, suffix = name.rpartition(".")
        return dot + suffix if stem else ""

    def chunk_ids(self) -> list[str]:
        """Return the ids of the page's chunks, in order."""
        return chunk_ids(self.version, self.chunks)


def chunk_ids(version: bytes, count: int) -> list[str]:
    """Return the ids of the `count` chunks of page version `version`, in order."""
    prefix = version.hex()
    return [f"{prefix}:{i}" for i in range(count)]
