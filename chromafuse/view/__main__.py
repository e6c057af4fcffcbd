"""`python -m chromafuse.view`: started by the supervisor, not by hand."""

from __future__ import annotations

import sys

from .process import main

if __name__ == "__main__":
    sys.exit(main())
