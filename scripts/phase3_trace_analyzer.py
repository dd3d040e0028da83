#!/usr/bin/env python3
"""Phase 3: the first diverging layer of four dumps. JSON on stdout or in -o."""

import sys

from detaudit.cli.spike import script

if __name__ == "__main__":
    sys.exit(script("trace", "phase3_trace_analyzer.py"))
