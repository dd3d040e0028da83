"""Runs the user's command under the recorder and keeps what it left. Loads no torch.

A room of its own because two callers share it: the double run in `audit.py` and the single run of `detaudit record`.
"""
