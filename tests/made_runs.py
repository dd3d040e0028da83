"""Runs made by hand: trails without a training, for the tests of comparing, judging and reporting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from detaudit.compare.evidence import open_run
from detaudit.core.model import Layout, Leaf, RunManifest, Stats
from detaudit.trail.reader import TrailReader
from detaudit.trail.writer import TrailWriter

NAMES = ("rng.torch", "batch.0", "act.encoder", "loss", "param.w")
MANIFEST = RunManifest({"command": ["python", "train.py"], "threads": 2}, {"cpus": 2})


def layout(names: Sequence[str] = NAMES, **more: object) -> Layout:
    return Layout(tuple(Leaf(name, "float32", (2, 3)) for name in names), **more)  # type: ignore[arg-type]


def plain_digest(step: int, name: str) -> int:
    """A digest that depends on step and name alone."""
    return (step * 0x9E3779B97F4A7C15 + sum(name.encode()) * 0xBF58476D1CE4E5B9 + 1) % 2**64


def make_trail(
    path: Path,
    steps: int | Sequence[int] = 5,
    changes: Mapping[tuple[int, str], int] | None = None,
    layouts: Mapping[int, Layout] | None = None,
    base: Layout | None = None,
    sumsq: Mapping[tuple[int, str], float | None] | None = None,
    manifest: RunManifest = MANIFEST,
    end: str = "complete",
    notes: Sequence[dict[str, object]] = (),
) -> Path:
    """Write a trail. `changes` and `sumsq` replace the digest and the sum of squares at (step, leaf), `layouts` the
    layout of a step. With `sumsq` every step holds stats, empty ones where it says None. No end note when `end` is
    empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = TrailWriter(path, manifest)
    base = base or layout()
    for step in range(steps) if isinstance(steps, int) else steps:
        used = (layouts or {}).get(step, base)
        digests = [(changes or {}).get((step, name), plain_digest(step, name)) for name in used.names]
        stats = [_stats(digest, sumsq.get((step, name), 1.5))
                 for digest, name in zip(digests, used.names, strict=True)] if sumsq is not None else []  # fmt: skip
        writer.step(step, used, digests, stats)
    for note in notes:
        writer.note(**note)  # type: ignore[arg-type]
    if end:
        writer.note("end", outcome=end)
    writer.close()
    return path


def _stats(digest: int, sumsq: float | None) -> Stats:
    return Stats(0, 0.0, 0.0, 0.0, 0, 0) if sumsq is None else Stats(digest, sumsq, 0.0, 1.0, 0, 0)


def make_run(
    directory: Path, status: int | None = 0, ranks: Sequence[str] = ("main",), missing: str = "", **trail: object
) -> Path:
    """A run directory as the launcher leaves it: a trail a rank, and run.json unless `status` is None."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        make_trail(directory / f"{rank}.trail", **trail)  # type: ignore[arg-type]
    if status is not None:
        (directory / "run.json").write_text(json.dumps({"exit_status": status, "missing_reason": missing}))
    return directory


def make_pair(root: Path, a: Mapping[str, object] | None = None, b: Mapping[str, object] | None = None):
    """The evidence of two runs; equal unless told otherwise."""
    return tuple(
        open_run(make_run(root / label, **(how or {})), label)  # type: ignore[arg-type]
        for label, how in (("A", a), ("B", b))
    )


def trail_pair(root: Path, a: Mapping[str, object] | None = None, b: Mapping[str, object] | None = None):
    """Two open trails; equal unless told otherwise."""
    return tuple(
        TrailReader(make_trail(root / f"{label}.trail", **(how or {})))  # type: ignore[arg-type]
        for label, how in (("a", a), ("b", b))
    )
