"""The checkout, within reach of other users: a program that they run has to be readable to them.

A checkout often lies below a directory that is its owner's alone, as /root is.
"""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def opened(checkout: Path = CHECKOUT) -> str:
    """Return shell commands for a mount namespace of one's own: they put the checkout where all can enter.

    What lies above the checkout and is closed is covered, and the checkout bound below it, at its own path.
    """
    above = reversed(checkout.parents)
    closed = next((path for path in above if not path.stat().st_mode & stat.S_IXOTH), None)
    if closed is None:
        return ":"
    cover, place = shlex.quote(str(closed)), shlex.quote(str(checkout))
    return (
        f"cd {place} && mount -t tmpfs -o mode=755 none {cover} && mkdir -p {place}"
        f" && mount -c --bind . {place} && cd {place}"  # `.` is the covered one until then
    )
