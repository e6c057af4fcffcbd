"""Which mode the mounts of this run are in: the suite is run in both (make test)."""

from __future__ import annotations

import os

MODE = "stock" if os.environ.get("CHROMAFUSE_FAST") == "0" else "fast"
FAST = MODE == "fast"

# The first lines of a view that a test plants something in, as `__main__` begins.
LOAD_FAST = "import sys\nfrom chromafuse.view import fast\nloaded = fast.load()\n"
