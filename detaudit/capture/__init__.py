"""Sees the state of a training run without a change to its code, and writes it into a trail.

Nothing here may change what it watches: hooks return None, no generator is consumed, no storage is pinned.
"""
