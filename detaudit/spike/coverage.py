"""What a cube did not hold. Nothing of it may be called normal."""

from __future__ import annotations

from collections import Counter

import numpy as np

from detaudit.spike.cube import MetricCube
from detaudit.spike.deviation import RESOLUTION

_NAMED = 12


def gaps_of(cube: MetricCube, world_size: int = 0) -> list[str]:
    """Sentences on missing ranks, steps, rank-step holes, micro-steps and series without a single number."""
    return [
        *_missing_ranks(cube, world_size),
        *_missing_steps(cube),
        *_holes(cube),
        *_without_numbers(cube),
    ]


def missing_ranks(cube: MetricCube, world_size: int = 0) -> list[int]:
    """Ranks absent although a higher one (or a rank below `world_size`) is there."""
    expected = range(max(world_size, max(cube.ranks) + 1))
    return sorted(set(expected) - set(cube.ranks))


def _missing_ranks(cube: MetricCube, world_size: int) -> list[str]:
    missing = missing_ranks(cube, world_size)
    return [f"rank(s) {_listed(missing)} were not recorded"] if missing else []


def _missing_steps(cube: MetricCube) -> list[str]:
    if len(cube.steps) < 3:
        return []
    strides = Counter(np.diff(cube.steps).tolist())
    stride = min(strides, key=lambda size: (-strides[size], size))
    expected = range(cube.steps[0], cube.steps[-1] + 1, stride)
    missing = sorted(set(expected) - set(cube.steps))
    return [f"step(s) {_listed(missing)} were not recorded"] if missing and stride > 0 else []


def _holes(cube: MetricCube) -> list[str]:
    """Rank x step x micro-step combinations that some other rank, or the same rank at other steps, recorded."""
    recorded = np.asarray(cube.present.any(axis=1))
    expected = np.asarray(recorded.any(axis=0))[None, :, :]
    missing = np.argwhere(expected & ~recorded)
    if not len(missing):
        return []
    places = [f"rank {cube.ranks[r]} step {cube.steps[s]} micro-step {m}" for r, s, m in missing[:_NAMED]]
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return [f"{len(missing)} rank x micro-step(s) were not recorded: {', '.join(places)}{more}"]


def _without_numbers(cube: MetricCube) -> list[str]:
    present = cube.present.any(axis=(0, 2, 3))
    numbers = np.isfinite(cube.values).any(axis=(0, 2, 3))
    dead = [cube.targets[i].name for i in np.flatnonzero(present & ~numbers)]
    return [f"{len(dead)} target(s) never held a number: {_listed(dead)}"] if dead else []


def below_resolution(cube: MetricCube) -> float:
    """Share of finite norms below what the monitor's rounding keeps."""
    finite = np.isfinite(cube.values)
    total = int(finite.sum())
    with np.errstate(invalid="ignore"):
        return float(np.sum(np.abs(cube.values) < RESOLUTION)) / total if total else 0.0


def same_on_all_ranks(cube: MetricCube) -> bool:
    """Whether all ranks hold one and the same gradient: then it was reduced, and no rank can be blamed."""
    if len(cube.ranks) < 2:
        return False
    shared = cube.present.all(axis=0) & np.isfinite(cube.values).all(axis=0)
    if not shared.any():
        return False
    equal = (cube.values == cube.values[:1]).all(axis=0)
    return bool(equal[shared].mean() > 0.99)


def _listed(items: list[int] | list[str]) -> str:
    text = ", ".join(str(item) for item in items[:_NAMED])
    return text + (f" and {len(items) - _NAMED} more" if len(items) > _NAMED else "")
