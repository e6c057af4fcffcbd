"""The kernel's mount table, read. Apart from mountinfo so that a view may use it: it imports nothing of ours.

Concurrency: stateless; reading the table waits for nobody.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

FSTYPE = "fuse.chromafuse"

_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of proc_pid_mountinfo(5). `path` is decoded as the system decodes file names."""

    id: int
    parent: int
    minor: int  # of the device number; names the connection in fusectl
    path: str
    options: frozenset[str]
    fstype: str
    source: str
    super_options: frozenset[str]

    @property
    def is_ours(self) -> bool:
        """Say whether this is a mount of chromafuse."""
        return self.fstype == FSTYPE

    def is_same(self, other: Mount) -> bool:
        """Say whether both are one mount, whatever `remount` changed in between."""
        return (self.id, self.minor) == (other.id, other.minor)

    @property
    def owner(self) -> int | None:
        """The user who mounted it, where the file system says."""
        for option in self.super_options:
            if option.startswith("user_id="):
                return int(option.removeprefix("user_id="))
        return None


def read_mounts() -> list[Mount]:
    """Return the mounts of this process's namespace, in the order the kernel lists them."""
    return parse(Path("/proc/self/mountinfo").read_bytes())


def parse(table: bytes) -> list[Mount]:
    """Parse the text of a mountinfo file."""
    return [_mount(line) for line in table.split(b"\n") if line]


def _mount(line: bytes) -> Mount:
    # Blank-separated; a variable number of optional fields ends with a lone hyphen.
    fields = line.split(b" ")
    end = fields.index(b"-", 6)
    fstype, source = fields[end + 1], fields[end + 2]
    return Mount(
        int(fields[0]),
        int(fields[1]),
        int(fields[2].partition(b":")[2]),
        _text(fields[4]),
        frozenset(_text(fields[5]).split(",")),
        _text(fstype),
        _text(source),
        frozenset(_text(fields[end + 3] if len(fields) > end + 3 else b"").split(",")),
    )


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
