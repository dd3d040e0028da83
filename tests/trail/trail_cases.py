"""Small trails for the tests of the room."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

from detaudit.core.model import Layout, Leaf, RunManifest, Stats, StepKind
from detaudit.trail import frames
from detaudit.trail.writer import TrailWriter

MANIFEST = RunManifest({"command": ["python", "train.py"], "python": "3.11.9"}, {"cpus": 2})
LAYOUT = Layout((Leaf("param.w", "float32", (2, 3), aliases=("param.tied",)), Leaf("loss", "float32")), optimizer="opt")
OTHER = Layout((Leaf("param.w", "float32", (2, 3)), Leaf("act.x", "qint8", (), "quantised tensor")), StepKind.SKIPPED)


def digests(step: int, count: int = 2) -> tuple[int, ...]:
    return tuple((step * 0x9E3779B97F4A7C15 + leaf * 0xBF58476D1CE4E5B9 + 1) % 2**64 for leaf in range(count))


def stats(step: int) -> tuple[Stats, ...]:
    return (Stats(step, 1.5 * step, -1.0, 2.0, 0, 0), Stats(2**64 - 1, float("inf"), 0.0, 0.0, 3, 2**40))


def small_trail(path: Path, steps: int = 4) -> Path:
    """Header, layout, two steps, another layout, the other steps, a note, the end."""
    writer = TrailWriter(path, MANIFEST)
    for step in range(steps):
        writer.step(step, LAYOUT if step < 2 else OTHER, digests(step), stats(step) if step == 1 else ())
    writer.note("nonfinite", step=1)
    writer.note("end", outcome="ok")
    writer.close()
    return path


def frame_bounds(data: bytes) -> list[int]:
    """The offset at which each frame ends, the preamble's end first; read by the words of the format."""
    bounds = [16]
    while bounds[-1] < len(data):
        length = struct.unpack_from("<I", data, bounds[-1] + 4)[0]
        bounds.append(bounds[-1] + 8 + length + 8)
    return bounds


def assemble(payloads: list[tuple[int, bytes]]) -> bytes:
    """A file of valid frames with the given kinds and payloads."""
    parts = [frames.preamble()]
    for number, (kind, payload) in enumerate(payloads):
        parts.append(frames.frame(kind, payload, number))  # type: ignore[arg-type]
    return b"".join(parts)


def payloads_of(data: bytes) -> list[tuple[int, bytes]]:
    bounds = frame_bounds(data)
    return [(data[start], data[start + 8 : end - 8]) for start, end in itertools.pairwise(bounds)]
