"""Shared fixtures: the real-format samples beside the checkout, and small cubes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from detaudit.spike.cube import MetricCube, Target

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "msprobe-samples"


@pytest.fixture
def sample() -> Callable[[str], Path]:
    """A real-format sample by name; skips where the samples are not beside the checkout."""

    def find(name: str) -> Path:
        path = SAMPLES / name
        if not path.exists():
            pytest.skip(f"sample {name} is not at {SAMPLES}: the samples are not part of the repository")
        return path

    return find


@pytest.fixture
def make_cube() -> Callable[..., MetricCube]:
    """A cube from an array [R, P, S, K]; NaN cells count as recorded unless `absent` says otherwise."""

    def make(
        values: np.ndarray,
        metric: str = "grad_unreduced",
        micro_declared: bool = True,
        absent: np.ndarray | None = None,
        steps: Sequence[int] = (),
        ranks: Sequence[int] = (),
    ) -> MetricCube:
        values = np.asarray(values, dtype=np.float64)
        present = np.ones(values.shape, dtype=bool) if absent is None else ~absent
        return MetricCube(
            metric,
            tuple(ranks) or tuple(range(values.shape[0])),
            tuple(Target(f"layers.{i}.weight") for i in range(values.shape[1])),
            tuple(steps) or tuple(range(values.shape[2])),
            np.where(present, values, np.nan),
            present,
            micro_declared and values.shape[3] > 1,
        )

    return make
