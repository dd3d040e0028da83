"""Collapse of a run, from its evaluation losses alone. Training losses are never read: a spike there is no collapse.

`detect` reads top to bottom: `signal_of` (log losses, non-finite ones replaced), `excess_of` (drawdown over the best so
far), `noise_of` (up to the best evaluation, or a violent collapse hides itself), the gate, `suffix_onset`, and where
ruptures is installed its Binseg as a cross-check. The result is a first bracket and the known-bad point, no cause.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Any

from detaudit.core.errors import UsageError
from detaudit.trainsect.model import Evaluation

FEWEST = 8
RELATIVE = 0.15
NOISE_FACTOR = 6.0
_NORMAL = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""


class CollapseKind(StrEnum):
    COLLAPSE = "COLLAPSE"
    NO_COLLAPSE = "NO-COLLAPSE"
    TRANSIENT = "TRANSIENT"
    UNCERTAIN = "UNCERTAIN"
    INSUFFICIENT = "INSUFFICIENT"


@dataclass(frozen=True)
class Collapse:
    """What the evaluation curve shows. `onset` is a half-open range of steps (last evaluation before the rise, first
    risen one]; `noise`, `tau` and `final_excess` are in natural-log units, or in MADs where `scale` is `mad`."""

    kind: CollapseKind
    reason: str
    evaluations: int
    scale: str = "log"
    noise: float = 0.0
    tau: float = 0.0
    final_excess: float = 0.0
    best_step: int | None = None
    best_loss: float | None = None
    bad_step: int | None = None
    onset: tuple[int, int] | None = None
    onset_index: int | None = None
    nonfinite: tuple[int, ...] = ()
    excess: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    cross_check: str = ""

    def healthy_at(self, step: int) -> bool | None:
        """Whether the recorded drawdown at `step` lies below the onset threshold; None without an evaluation there.
        Step 0 is healthy: nothing has been trained yet that could have collapsed."""
        if step == 0:
            return True
        if step not in self.steps:
            return None
        return self.excess[self.steps.index(step)] < self.tau / 2


def detect(evaluations: Sequence[Evaluation], *, relative: float = RELATIVE, binseg: bool = True) -> Collapse:
    """The collapse of a curve in step order. `relative` is the smallest lasting rise that counts (0.15 = 15 %).

    Raises UsageError for evaluations out of order, or several of one step with unequal losses."""
    points = _checked(evaluations)
    count = len(points)
    finite = [loss for _, loss in points if math.isfinite(loss)]
    nonfinite = tuple(step for step, loss in points if not math.isfinite(loss))
    if count < FEWEST:
        return _insufficient(f"{count} evaluations; a collapse needs at least {FEWEST}", count, nonfinite)
    if not finite:
        return _insufficient("no evaluation loss is finite: there is no healthy part to compare with", count, nonfinite)
    steps = tuple(step for step, _ in points)
    signal, scale = signal_of([loss for _, loss in points])
    excess = excess_of(signal)
    best = min(range(count), key=lambda i: (signal[i], i))
    before = _healthy_part(excess, best, relative)
    noise = noise_of(signal[: before + 1])
    rise = math.log1p(relative) if scale == "log" else NOISE_FACTOR
    tau = max(rise, NOISE_FACTOR * noise)
    onset = suffix_onset(excess, tau)
    kind, reason = _judge(excess, tau, rise, onset, nonfinite, steps)
    bracket, cross = None, ""
    if kind is CollapseKind.COLLAPSE:
        bracket, cross = _bracket(excess, tau, noise, onset, steps, binseg)
    return Collapse(
        kind=kind,
        reason=reason,
        evaluations=count,
        scale=scale,
        noise=noise,
        tau=tau,
        final_excess=excess[-1],
        best_step=steps[best],
        best_loss=points[best][1],
        bad_step=steps[-1] if kind is CollapseKind.COLLAPSE else None,
        onset=bracket,
        onset_index=onset if kind is CollapseKind.COLLAPSE else None,
        nonfinite=nonfinite,
        excess=tuple(excess),
        steps=steps,
        cross_check=cross,
    )


def _checked(evaluations: Sequence[Evaluation]) -> list[tuple[int, float]]:
    points: dict[int, float] = {}
    last = -1
    for entry in evaluations:
        if entry.step < last:
            raise UsageError(
                f"evaluations out of order: step {entry.step} after step {last}; record them in step order"
            )
        known = points.get(entry.step)
        if known is not None and known != entry.loss and not (math.isnan(known) and math.isnan(entry.loss)):
            # One state, two losses: the evaluation data differ. The first stands; the diagnosis looks at the digests.
            continue
        points[entry.step] = entry.loss
        last = entry.step
    return list(points.items())


def _insufficient(reason: str, count: int, nonfinite: tuple[int, ...]) -> Collapse:
    return Collapse(CollapseKind.INSUFFICIENT, reason, count, nonfinite=nonfinite)


def signal_of(losses: Sequence[float]) -> tuple[list[float], str]:
    """Log losses, or losses over the MAD of their differences where one is <= 0. Non-finite ones become ten times the
    largest finite loss (in the raw scale: the largest plus ten MADs)."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    if min(finite) > 0:
        ceiling = 10 * max(finite)
        return [math.log(loss if math.isfinite(loss) else ceiling) for loss in losses], "log"
    steps = [abs(b - a) for a, b in pairwise(finite)]
    mad = (median(steps) if steps else 0.0) or max(1e-12, max(map(abs, finite)))
    ceiling = max(finite) + 10 * NOISE_FACTOR * mad
    return [(loss if math.isfinite(loss) else ceiling) / mad for loss in losses], "mad"


def excess_of(signal: Sequence[float]) -> list[float]:
    """e_i = max(0, x_i - min over j < i of x_j); e_0 = 0."""
    excess, best = [], math.inf
    for value in signal:
        excess.append(max(0.0, value - best) if best < math.inf else 0.0)
        best = min(best, value)
    return excess


def _healthy_part(excess: Sequence[float], best: int, relative: float) -> int:
    """Index of the last evaluation the noise is taken from. The global best, unless a transient spike lies before it:
    second differences are robust to that (a median), so nothing else needs to be left out."""
    return best if best >= 3 else min(3, len(excess) - 1) if max(excess[:4]) <= math.log1p(relative) else best


def noise_of(signal: Sequence[float]) -> float:
    """1.4826 * median |second difference| / sqrt(6): first differences overestimate the noise of a decaying curve."""
    second = [abs(a - 2 * b + c) for a, b, c in zip(signal, signal[1:], signal[2:], strict=False)]
    return _NORMAL * median(second) / math.sqrt(6) if second else 0.0


def suffix_onset(excess: Sequence[float], tau: float) -> int:
    """First index of the longest suffix whose excess stays above tau/2; len(excess) when there is none."""
    index = len(excess)
    while index > 0 and excess[index - 1] > tau / 2:
        index -= 1
    return index


def binseg_onset(excess: Sequence[float], tau: float, noise: float) -> int | None:
    """Left edge of the maximal suffix of Binseg segments with mean above tau/2; None without ruptures (an extra).

    jump=1 and min_size=1: the default jump of 5 misses changes (its author says so, deepcharles/ruptures#324)."""
    if importlib.util.find_spec("ruptures") is None:
        return None
    import numpy

    ruptures: Any = importlib.import_module("ruptures")
    clipped = numpy.minimum(numpy.asarray(excess, dtype=float), 4 * tau)
    penalty = 3 * math.log(len(excess)) * max(noise, tau / 6) ** 2
    edges = [0, *ruptures.Binseg(model="l2", jump=1, min_size=1).fit(clipped).predict(pen=penalty)]
    onset = len(excess)
    for left, right in reversed(list(pairwise(edges))):
        if clipped[left:right].mean() <= tau / 2:
            break
        onset = int(left)
    return onset


def _judge(
    excess: Sequence[float], tau: float, rise: float, onset: int, nonfinite: Sequence[int], steps: Sequence[int]
) -> tuple[CollapseKind, str]:
    last = excess[-1]
    numbers = f"final excess {last:.4g}, threshold {tau:.4g}"
    if last > tau:
        if onset <= 1 and excess[0] == 0 and len(excess) - onset >= len(excess) - 1:
            return (
                CollapseKind.INSUFFICIENT,
                f"the loss rises from the first evaluation on: no healthy part ({numbers})",
            )
        text = ", not finite at the end" if nonfinite and nonfinite[-1] == steps[-1] else ""
        return CollapseKind.COLLAPSE, f"the evaluation loss rose and stayed{text} ({numbers})"
    if last > rise:
        return CollapseKind.UNCERTAIN, f"the rise lies below the detection limit that the noise sets ({numbers})"
    if max(excess) > tau:
        return CollapseKind.TRANSIENT, f"the evaluation loss rose and came back ({numbers})"
    return CollapseKind.NO_COLLAPSE, f"the evaluation loss stays near its best ({numbers})"


def _bracket(
    excess: Sequence[float], tau: float, noise: float, onset: int, steps: Sequence[int], binseg: bool
) -> tuple[tuple[int, int], str]:
    """The steps between which the rise began, widened over both detectors where they differ by more than one."""
    other = binseg_onset(excess, tau, noise) if binseg else None
    first, last = onset, onset
    if other is None:
        cross = "suffix rule alone (ruptures is not installed)" if binseg else "suffix rule alone"
    elif abs(other - onset) <= 1:
        cross = f"suffix rule and Binseg agree (evaluations {onset} and {other})"
    else:
        first, last = min(onset, other), max(onset, other)
        cross = f"suffix rule and Binseg disagree (evaluations {onset} and {other}); the bracket covers both"
    return (steps[max(0, first - 1)], steps[min(last, len(steps) - 1)]), cross
