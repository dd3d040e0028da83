#!/usr/bin/env python3
"""Compares the raw replay state of two dumped runs of the reference agent, buffer by buffer, and says what explains it.

    python scripts/compare-per-state.py A B [--hypotheses FILE] [--json]

The same as `detaudit dump compare A B`. Exit status: 0 all buffers match, 1 some differ, 2 usage or unreadable input,
3 undecided or not comparable.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    from detaudit.cli import main
except ImportError:  # called by another Python than the one that detaudit was installed for
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from detaudit.cli import main

if __name__ == "__main__":
    sys.exit(main(["dump", "compare", *sys.argv[1:]]))
