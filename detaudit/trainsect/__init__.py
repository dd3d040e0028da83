"""Trainsect: git bisect for training runs, gated by the audit.

`recorder` writes a run directory, `run` reads it, `target` and `replay` execute parts of it again, `gate` refuses to
trust a replay that is not bit-exact. The diagnosis rests on `model.Replayer` and `model.Run` alone.
"""
