"""Spike localisation: where did a gradient go wrong first? Not: where was it largest.

Phase 1 `detect` finds abnormal gradients in monitor CSV, trend.db, dumps or trails; phase 2 `select` picks the root
coordinate; phase 3 `trace` compares the layers of four dumps; the presenters render what the three found.
Knows `detaudit.core` and numpy only.
"""
