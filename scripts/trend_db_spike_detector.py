#!/usr/bin/env python3
"""Phase 1: abnormal gradients in a trend.db, monitor CSV (--csv) or dumps (--dump). JSON on stdout or in -o."""

import sys

from detaudit.cli.spike import script

if __name__ == "__main__":
    sys.exit(script("detect", "trend_db_spike_detector.py"))
