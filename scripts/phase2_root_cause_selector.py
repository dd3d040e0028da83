#!/usr/bin/env python3
"""Phase 2: the root coordinate, from phase-1 results. JSON on stdout or in -o."""

import sys

from detaudit.cli.spike import script

if __name__ == "__main__":
    sys.exit(script("select", "phase2_root_cause_selector.py"))
