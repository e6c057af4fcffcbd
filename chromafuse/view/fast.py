"""Fast mode: load the C part (_fast.c) before pyfuse3, say which mode a session is in, test it.

`load` runs before pyfuse3 is imported anywhere in the process: the linker binds a name once. Without the C
part, on another libfuse, or with CHROMAFUSE_FAST=0, mounts work the stock way: same answers, more requests.

Concurrency: `load` runs before there are threads; the rest reads or writes one int of the C part.
`self_test` blocks until the mount answers, so it belongs in a worker thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES

FAST = "fast"
STOCK = "stock"
VARIABLE = "CHROMAFUSE_FAST"
SWITCHED_OFF = f"{VARIABLE}=0"
NOT_BUILT = "the C part is not built; it takes gcc, pkg-config and libfuse3-dev to install it"
_HERE = os.path.dirname(os.path.abspath(__file__))
# What chromafuse_fast_state returns, in the order in which the bits come, and what a missing one means.
_STEPS = (
    (1, "pyfuse3 was built for another libfuse, or has not mounted"),
    (2, "the kernel has not begun the session"),
    (4, "this kernel wants every file opened"),
    (8, "this kernel wants every directory opened"),
)


@dataclass(frozen=True, slots=True)
class Fast:
    """The loaded C part, or why there is none."""

    library: ctypes.CDLL | None
    why_not: str = ""

    @property
    def mode(self) -> str:
        """The mode of the session; known once the kernel has begun it."""
        return STOCK if self.why_stock() else FAST

    def why_stock(self) -> str:
        """Say in one line why the session is not fast; nothing where it is."""
        if self.library is None or self.why_not:
            return self.why_not
        state = self.library.chromafuse_fast_state()
        return next((reason for bit, reason in _STEPS if not state & bit), "")

    def give_up(self, reason: str) -> Fast:
        """Make the next session of this process a stock one."""
        if self.library is not None:
            self.library.chromafuse_fast_forbid()
        return Fast(self.library, reason)


def load(env: Mapping[str, str] = os.environ) -> Fast:
    """Load the C part where the linker finds it before libfuse. Never raises: stock is always there."""
    if env.get(VARIABLE) == "0":
        return Fast(None, SWITCHED_OFF)
    if "pyfuse3" in sys.modules:
        return Fast(None, "pyfuse3 was imported before it")
    paths = (os.path.join(_HERE, f"_fast{suffix}") for suffix in EXTENSION_SUFFIXES)
    path = next(filter(os.path.exists, paths), None)
    if path is None:
        return Fast(None, NOT_BUILT)
    try:
        return Fast(ctypes.CDLL(path, ctypes.RTLD_GLOBAL))
    except OSError as exc:
        return Fast(None, f"the C part does not load: {exc}")


def self_test(directory: str, files: Mapping[str, bytes]) -> str:
    """Read a directory's files through the mount, as readers do; return what is wrong, or nothing.

    Answers without their inode would be none or another's. The second round runs in the state that the first
    one left the kernel in: what it asks once (open, opendir, flush) is answered by then.
    """
    try:
        for _ in range(2):
            if missing := files.keys() - set(os.listdir(directory)):
                return f"{directory} does not list {min(missing)}"
            for name, expected in files.items():
                with open(os.path.join(directory, name), "rb", buffering=0) as file:
                    if file.read(len(expected) + 1) != expected:
                        return f"{name} came back with other bytes"
    except OSError as exc:
        return f"{exc.filename or directory}: {exc.strerror}"
    return ""
