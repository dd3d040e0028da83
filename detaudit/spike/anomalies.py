"""Phase 1 on one cube: every abnormal cell in order of time, and the groups they form.

`find` lists its stages: contributions -> log norms -> screen -> judge -> non-finite cells -> order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detaudit.spike.contribution import contributions, lower_bounds
from detaudit.spike.cube import MetricCube
from detaudit.spike.deviation import (
    ENOUGH_HISTORY,
    MIN_REFERENCE,
    Index,
    Logs,
    Scale,
    log_norms,
    micro_profile,
    noise_scale,
    peer_distance,
    residuals,
    screen,
    thresholds,
)
from detaudit.spike.windows import CUMULATIVE

RISE, DROP, NAN, INF = "rise", "drop", "nan", "inf"
SHARED = 0.5
"""Peers that moved by at least this share of the distance (in log) moved along."""


@dataclass(frozen=True)
class Anomalies:
    """Abnormal cells, sorted by step, micro-step, then falling distance. All arrays are parallel.

    `distance` is log(contribution / reference), infinite for non-finite cells; `contribution` is the gradient norm of
    the micro-batch alone. `judged` counts cells that had a reference, `unjudged` those that had none.
    `start_transient` counts first-step cells that are high on every rank: a cold start looks the same.
    """

    rank: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    micro: npt.NDArray[np.int64]
    distance: npt.NDArray[np.float64]
    reference: npt.NDArray[np.float64]
    contribution: npt.NDArray[np.float64]
    threshold: npt.NDArray[np.float64]
    trigger: npt.NDArray[np.str_]
    judged: int
    unjudged: int
    start_transient: int
    scale: Scale | None
    logs: Logs
    heat: Logs | None = None

    def __len__(self) -> int:
        return len(self.rank)


def find(cube: MetricCube, mode: str, rate: float = 0.01, ratio: float = 2.0, drops: bool = True) -> Anomalies:
    """Abnormal cells of a folded cube. `mode` is cumulative or independent; `rate` the false alarms per run under
    log-normal noise; `ratio` the smallest factor that counts. `drops` is False where the window is unknown: the resets
    of an unseen accumulation would be taken for them."""
    added = contributions(cube.values) if mode == CUMULATIVE else cube.values
    logs = log_norms(added)
    if mode == CUMULATIVE:
        logs -= micro_profile(logs)
    broken = _non_finite(cube)
    scale = noise_scale(logs)
    judgeable = int(np.sum(~np.isnan(logs)))
    if scale is None:
        return _assemble(cube, added, logs, [broken], 0, judgeable, 0, None)
    index, heat = screen(logs, scale, ratio)
    values = logs[index]
    if mode == CUMULATIVE:
        values = _behind_abnormal_sums(cube, index, values)
    found = residuals(logs, index, values)
    bar = thresholds(scale, index, found.count, judgeable, rate, ratio)
    known = found.count >= MIN_REFERENCE
    _, _, step, micro = index
    with np.errstate(invalid="ignore"):
        rise = known & (found.distance > bar)
        late = step >= ENOUGH_HISTORY
        # A gradient that merely failed to decay yet is no rise: it must also stand above the steps before it.
        rise &= late | np.isnan(found.before) | (found.before > math.log(ratio))
        drop = known & late & (found.distance < -bar) & drops
    if mode == CUMULATIVE:
        drop &= micro == 0  # later contributions fall by anti-correlation alone
    first = rise & (step == 0) & ~(found.beside > math.log(ratio))
    transient = _shared_by_peers(logs, index, found.distance, first)
    rise &= ~transient
    parts = [broken]
    for mask, name in ((rise, RISE), (drop, DROP)):
        where = tuple(axis[mask] for axis in index)
        parts.append((where, found.distance[mask], found.reference[mask], bar[mask], name))
    return _assemble(cube, added, logs, parts, judgeable, int(np.sum(~known)), int(transient.sum()), scale, heat)


_Part = tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray, np.ndarray, "str | np.ndarray"]


def _non_finite(cube: MetricCube) -> _Part:
    """NaN and infinite norms, except in series that never hold a number: those were not measured at all."""
    bad = cube.present & ~np.isfinite(cube.values)
    if not bad.any():
        empty = np.zeros(0)
        return tuple(np.zeros(0, dtype=np.int64) for _ in range(4)), empty, empty, empty, ""
    measured = np.asarray(np.isfinite(cube.values).any(axis=(0, 2, 3)))
    bad &= measured[None, :, None, None]
    index = np.nonzero(bad)
    distance = np.full(len(index[0]), math.inf)
    names = np.where(np.isnan(cube.values[index]), NAN, INF)
    return index, distance, np.full(len(distance), math.nan), np.full(len(distance), math.nan), names


def _behind_abnormal_sums(cube: MetricCube, index: Index, values: Logs) -> Logs:
    """Behind a proposed cell of the same window only the lower bound of a contribution is evidence."""
    rank, target, step, micro = index
    window = (rank * cube.values.shape[1] + target) * cube.values.shape[2] + step
    order = np.lexsort((micro, window))
    behind = np.zeros(len(order), dtype=bool)
    behind[order[1:]] = window[order[1:]] == window[order[:-1]]
    if not behind.any():
        return values
    result = values.copy()
    result[behind] = log_norms(lower_bounds(cube.values, tuple(axis[behind] for axis in index)))
    return result


def _shared_by_peers(
    logs: Logs, index: Index, distance: npt.NDArray[np.float64], candidates: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which candidates the other ranks share; a lone rank counts as sharing, having no one to differ from."""
    shared = np.zeros(len(candidates), dtype=bool)
    for i in np.flatnonzero(candidates):
        peers = peer_distance(logs, *(int(axis[i]) for axis in index))
        shared[i] = math.isnan(peers) or peers > SHARED * distance[i]
    return shared


def _assemble(
    cube: MetricCube,
    added: np.ndarray,
    logs: Logs,
    parts: list[_Part],
    judged: int,
    unjudged: int,
    transient: int,
    scale: Scale | None,
    heat: Logs | None = None,
) -> Anomalies:
    index = [np.concatenate([part[0][axis] for part in parts]).astype(np.int64) for axis in range(4)]
    distance = np.concatenate([part[1] for part in parts])
    reference = np.exp(np.concatenate([part[2] for part in parts]))
    bar = np.concatenate([part[3] for part in parts])
    trigger = np.concatenate([np.broadcast_to(np.asarray(part[4], dtype="<U4"), len(part[1])) for part in parts])
    rank, target, step, micro = index
    order = np.lexsort((target, rank, -np.abs(distance), micro, step))
    contribution = added[rank, target, step, micro]
    return Anomalies(
        rank=rank[order],
        target=target[order],
        step=step[order],
        micro=micro[order],
        distance=distance[order],
        reference=reference[order],
        contribution=contribution[order],
        threshold=bar[order],
        trigger=trigger[order],
        judged=judged,
        unjudged=unjudged,
        start_transient=transient,
        scale=scale,
        logs=logs,
        heat=heat,
    )
