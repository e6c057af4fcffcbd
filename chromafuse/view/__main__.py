"""`python -m chromafuse.view`: started by the supervisor, not by hand."""

from __future__ import annotations

import sys

from . import fast, lean

if __name__ == "__main__":
    # First the C part, then pyfuse3: the linker binds a name once, when pyfuse3 is loaded.
    loaded = fast.load()
    with lean.imports():
        from .process import main

    sys.exit(main(fast=loaded))
