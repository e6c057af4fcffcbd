"""`python -m chromafuse.hub --control-fd N`: the hub of one mount."""

from __future__ import annotations

import sys

from .process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
