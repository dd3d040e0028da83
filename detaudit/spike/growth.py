"""The seed's rule across optimizer steps: when most ranks' final norm grows between neighbours, the step before is the
root: its abnormal gradient went into the weights.

The same target is compared on the same rank, which a list of each step's own top target does not do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

GROWTH = 2.0
MAJORITY = 0.6
"""The seed says 60 %; it is an option."""


@dataclass(frozen=True)
class TurningPoint:
    """One pair of neighbouring optimizer steps. `share` is growing / compared ranks on the target that grew on most."""

    from_step: int
    to_step: int
    from_position: int
    to_position: int
    target_name: str
    growing: int
    compared: int
    share: float
    median_growth: float
    qualifies: bool

    def row(self) -> dict[str, Any]:
        return asdict(self)


def turning_points(
    final_norms: Mapping[str, Any], growth: float = GROWTH, majority: float = MAJORITY
) -> list[TurningPoint]:
    """Every neighbouring pair in which some rank grew, in order of time. Takes the `final_norms` of a phase-1
    result."""
    steps, positions = final_norms.get("steps", []), final_norms.get("positions", [])
    found = []
    for i in range(len(steps) - 1):
        if positions[i + 1] != positions[i] + 1:
            continue
        best = max(
            (_pair(final_norms, p, i, growth) for p in range(len(final_norms["targets"]))),
            key=lambda pair: (pair[0] / pair[1] if pair[1] else 0.0, pair[2]),
            default=(0, 0, 0.0, ""),
        )
        growing, compared, median, target = best
        if not growing:
            continue
        share = growing / compared
        found.append(
            TurningPoint(
                steps[i],
                steps[i + 1],
                positions[i],
                positions[i + 1],
                target,
                growing,
                compared,
                round(share, 4),
                float(f"{median:.6g}"),
                share >= majority - 1e-9,
            )
        )
    return found


def _pair(final_norms: Mapping[str, Any], target: int, i: int, growth: float) -> tuple[int, int, float, str]:
    """Ranks that grew, ranks compared, median growth and name of one target between steps i and i + 1."""
    before, after = final_norms["norms"][target][i], final_norms["norms"][target][i + 1]
    ratios = sorted(
        b / a
        for a, b in zip(before, after, strict=True)
        if a is not None and b is not None and a > 0 and math.isfinite(b)
    )
    grew = sum(ratio >= growth for ratio in ratios)
    return grew, len(ratios), ratios[len(ratios) // 2] if ratios else 0.0, str(final_norms["targets"][target])
