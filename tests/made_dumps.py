"""Dumps made by hand: without a training, for the tests of comparing and explaining them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from detaudit.dump.manifest import Header
from detaudit.dump.writer import DumpWriter

PROGRAM = ("/somewhere/detaudit/workloads/per_rl.py", "--steps", "3")
LEAVES = {
    "prng": "checksums.sample_prng",
    "walked_tree": "checksums.walked_tree",
    "indices": "checksums.replay_sample_indices",
    "priorities": "checksums.priorities",
    "tree": "checksums.priority_tree",
}
"""The buffers of the shipped set, in execution order."""


def buffer(name: str, step: int) -> np.ndarray:
    """A buffer of the reference agent that depends on its name and step alone."""
    chance = np.random.default_rng([step, len(name)])
    if name == "prng":
        return chance.integers(0, 2**32, 8, dtype=np.uint32)
    return chance.integers(0, 16, 4) if name == "indices" else chance.random(16, dtype=np.float32) + 1


def make_dump(
    directory: Path,
    changes: Mapping[tuple[int, str], object] | None = None,
    steps: Sequence[int] = (0, 1, 2),
    without: Sequence[str] = ("walked_tree",),
    process: str = "main",
    command: Sequence[str] = PROGRAM,
    max_bytes: int = 10**6,
    end: str = "complete",
    unseen: Sequence[int] = (),
    leaves: Mapping[str, str] = LEAVES,
) -> Path:
    """Write the dump of one process. `changes` replace the value at (step, short name), or leave it out where None;
    `without` leaves buffers out at every step. No end when `end` is empty."""
    header = Header(process, tuple(command), tuple(steps) + tuple(unseen), (), max_bytes)
    writer = DumpWriter(directory / process, header)
    for step in steps:
        for name, leaf in leaves.items():
            value = (changes or {}).get((step, name), buffer(name, step))
            if name not in without and value is not None:
                writer.add(step, leaf, value)
    if end:
        writer.close(end, unseen)
    writer.abandon()
    return directory


def shifted(name: str, step: int, by: float = 1.0, at: int = 1) -> np.ndarray:
    """The buffer of `buffer` with one element moved."""
    value = buffer(name, step)
    value[at] += value.dtype.type(by)
    return value


def nudged(name: str, step: int, at: int = 1) -> np.ndarray:
    """The buffer of `buffer` with one element moved to the next number."""
    value = buffer(name, step)
    value[at] = np.nextafter(value[at], value.dtype.type(9))
    return value
