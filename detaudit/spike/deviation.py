"""How far a gradient stands from what its own rank and target did before, and how far it may by chance.

Work is in log norms. A cheap screen over the whole cube (medians of blocks of eight steps) proposes cells; each
proposed cell is then judged against its own history: the eight steps before it, of the same rank and target. The
threshold is the quantile of Student's t at the stated rate of false alarms per run, spread over all judged cells
(Bonferroni), times the robust scale of step-to-step differences, and never less than the minimum ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detaudit.spike.order_statistics import MAD_TO_SIGMA, median_last, median_of, t_quantile

Logs = npt.NDArray[np.float32]
Index = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]

HISTORY = 8
"""Steps of history a cell is judged against."""
ENOUGH_HISTORY = 3
"""With fewer steps before it a cell is judged against the steps after it as well."""
MIN_REFERENCE = 3
"""Values that a reference must hold; below that the other ranks at the same place are added."""
RESOLUTION = 5e-7
"""The monitor rounds to six decimals by default: smaller norms are written 0.0 and carry no information."""
SCALE_FLOOR = 0.02
QUARTER_TO_SIGMA = 1 / 0.31864
"""For normal noise the standard deviation is this times the lower quartile of the absolute deviation."""
EFFICIENCY = 0.37
"""Of the median absolute deviation, relative to the sample deviation: scales the degrees of freedom."""
FEW_STEPS, MANY_STEPS = 6, 12
QUARTER_EFFICIENCY = 0.25
"""The same for the lower quartile."""
_CHUNK = 1 << 22
_SAMPLE = 4096


def log_norms(values: npt.NDArray[np.float64]) -> Logs:
    """log(max(norm, resolution)) as float32; NaN where the norm is not finite."""
    with np.errstate(invalid="ignore"):
        logs = np.log(np.maximum(values, RESOLUTION)).astype(np.float32)
    logs[~np.isfinite(values)] = np.nan
    return logs


def micro_profile(logs: Logs) -> Logs:
    """Usual log offset of each micro-step of a window, shape [K]; zero when fewer than five windows were seen."""
    ranks, _, steps, size = logs.shape
    if size < 2 or ranks * steps < 5:
        return np.zeros(size, dtype=np.float32)
    windows = logs.reshape(-1, size)
    windows = windows[:: max(1, len(windows) // 200_000)]
    offsets = windows - median_last(windows)[:, None]
    profile = median_last(offsets.T)
    return np.where(np.isfinite(profile), profile, 0).astype(np.float32)


@dataclass(frozen=True)
class Scale:
    """Robust standard deviation of log norms, per target [P] and micro-step [K], and its degrees of freedom."""

    sigma: npt.NDArray[np.float64]
    freedom: float
    samples: int


def noise_scale(logs: Logs) -> Scale | None:
    """Scale from differences between neighbouring steps: trends, level shifts and lone spikes hardly move it.

    The scale of a cell is that of its micro-step times that of its target relative to all; targets are shrunk towards
    all as ten degrees of freedom. With fewer than twelve steps an event on all ranks may sit in most of the
    differences: then the lower quartile takes the place of the median, the quietest micro-step bounds the others (an
    abnormal sum disturbs its own micro-step and the later ones), and targets are held within a factor of three of all,
    or, below six steps, not told apart. With a single step, differences between ranks, or else micro-steps, serve.
    None when there is nothing to compare.
    """
    ranks, targets, steps, size = logs.shape
    if steps > 1:
        stride = max(1, ranks * (steps - 1) // _SAMPLE)
        moves = np.abs(np.diff(logs, axis=2)[:, :, ::stride])
        moves = np.moveaxis(moves, (1, 3), (0, 1)).reshape(targets, size, -1)
    elif ranks > 1:
        moves = np.moveaxis(np.abs(np.diff(logs, axis=0)), (1, 3), (0, 1)).reshape(targets, size, -1)
    elif size > 1:
        moves = np.abs(np.diff(logs, axis=3)).reshape(targets, 1, -1)
    else:
        return None
    by_target_moves = moves.reshape(targets, -1)
    if steps < MANY_STEPS:
        quiet, count = _quiet_scale(np.moveaxis(moves, 1, 0).reshape(moves.shape[1], -1))
        if count < 3:
            return None
        relative = np.ones(targets)
        if steps >= FEW_STEPS:
            by_target, each = _quarter_scale(by_target_moves)
            relative = _shrunk(
                by_target, np.asarray(QUARTER_EFFICIENCY * each, dtype=np.float64), float(np.median(by_target))
            )
            relative = np.clip(relative, 1 / 3, 3)
        sigma = np.maximum(quiet[None, :] * relative[:, None], SCALE_FLOOR)
        return Scale(np.broadcast_to(sigma, (targets, size)), max(QUARTER_EFFICIENCY * count, 3.0), count)
    pooled, total = _median_scale(moves.reshape(1, -1))
    if total[0] < 3:
        return None
    by_micro, _ = _median_scale(np.moveaxis(moves, 1, 0).reshape(moves.shape[1], -1))
    by_micro = np.where(np.isfinite(by_micro), by_micro, pooled[0])
    by_target, each = _median_scale(by_target_moves)
    relative = _shrunk(by_target, np.asarray(EFFICIENCY * each, dtype=np.float64), float(pooled[0]))
    sigma = by_micro[None, :] * relative[:, None]
    freedom = min(EFFICIENCY * total[0], 10 + EFFICIENCY * float(np.median(each)))
    return Scale(np.maximum(sigma, SCALE_FLOOR), max(freedom, 3.0), int(total[0]))


def _shrunk(scale: npt.NDArray[np.float64], freedom: npt.NDArray[np.float64], pooled: float) -> npt.NDArray[np.float64]:
    """Scales relative to the pooled one, each shrunk towards it as ten degrees of freedom."""
    pooled = pooled if math.isfinite(pooled) and pooled > 0 else SCALE_FLOOR
    own = np.where(np.isfinite(scale), scale, pooled)
    return np.asarray(np.sqrt((freedom * own**2 + 10 * pooled**2) / (freedom + 10)) / pooled, dtype=np.float64)


def _median_scale(moves: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    count = np.sum(~np.isnan(moves), axis=-1)
    return median_last(moves).astype(np.float64) * MAD_TO_SIGMA / math.sqrt(2), count


def _quarter_scale(moves: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Scale from the lower quartile of the last axis, and the number of values."""
    count = np.sum(~np.isnan(moves), axis=-1)
    place = np.maximum((count - 1) // 4, 0)[:, None]
    quarter = np.take_along_axis(np.sort(moves, axis=-1), place, -1)[:, 0].astype(np.float64)
    return quarter * QUARTER_TO_SIGMA / math.sqrt(2), count


def _quiet_scale(moves: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.float64], int]:
    """Lower-quartile scale of each row of [K, n], held between the smallest of them and 1.5 times it: sums are noisier
    late in a window, but not by more. Rows of fewer than eight values are taken together. Also the number of values."""
    quarter, count = _quarter_scale(moves)
    total = int(count.sum())
    if (count < 8).any():
        quarter, _ = _quarter_scale(moves.reshape(1, -1))
    least = float(np.min(quarter))
    return np.clip(quarter, least, 1.5 * least), total


def screen(logs: Logs, scale: Scale, ratio: float) -> tuple[Index, Logs]:
    """Cells worth judging: far from the median of their own or of the previous block of eight steps. Beside them the
    largest such distance of every rank and step, shape [R, S] (NaN where nothing was recorded)."""
    ranks, targets, steps, _size = logs.shape
    bar = np.maximum(0.7 * math.log(ratio), 3 * scale.sigma).astype(np.float32)[None, :, :]
    found: list[npt.NDArray[np.int64]] = []
    heat = np.full((ranks, steps), np.nan, dtype=np.float32)
    previous: Logs | None = None
    for first in range(0, steps, HISTORY):
        block = logs[:, :, first : first + HISTORY, :]
        own = median_last(block.reshape(ranks, targets, -1)).astype(np.float32)
        low = own if previous is None else np.fmin(own, previous)
        high = own if previous is None else np.fmax(own, previous)
        with np.errstate(invalid="ignore"):
            far = (block > (low[:, :, None] + bar)[:, :, None, :]) | (block < (high[:, :, None] - bar)[:, :, None, :])
        cells = np.argwhere(far)
        cells[:, 2] += first
        found.append(cells)
        heat[:, first : first + HISTORY] = np.fmax.reduce(block - low[:, :, None, None], axis=(1, 3))
        previous = own
    cells = np.concatenate(found) if found else np.zeros((0, 4), dtype=np.int64)
    return (cells[:, 0], cells[:, 1], cells[:, 2], cells[:, 3]), heat


@dataclass(frozen=True)
class Residuals:
    """Judged cells: log distance from the reference, the reference itself (log), and how many values gave it.

    `before` is the distance from earlier steps alone, `beside` from the other micro-steps of the same step; NaN where
    there are none.
    """

    distance: npt.NDArray[np.float64]
    reference: npt.NDArray[np.float64]
    count: npt.NDArray[np.int64]
    before: npt.NDArray[np.float64]
    beside: npt.NDArray[np.float64]


def residuals(logs: Logs, index: Index, values: Logs | None = None) -> Residuals:
    """Distance of the given cells from their own history. `values` replaces the cells' own logs where given."""
    own_values = logs[index] if values is None else values
    if not len(own_values):
        none = np.zeros(0)
        return Residuals(none, none, np.zeros(0, dtype=np.int64), none, none)
    width = (HISTORY + logs.shape[3]) * max(logs.shape[3], 1) + logs.shape[0]
    chunk = max(1, _CHUNK // width)
    parts = [
        _residuals(logs, tuple(axis[at : at + chunk] for axis in index), own_values[at : at + chunk])  # type: ignore[arg-type]
        for at in range(0, len(own_values), chunk)
    ]
    return Residuals(
        distance=np.concatenate([part.distance for part in parts]),
        reference=np.concatenate([part.reference for part in parts]),
        count=np.concatenate([part.count for part in parts]),
        before=np.concatenate([part.before for part in parts]),
        beside=np.concatenate([part.beside for part in parts]),
    )


def _residuals(logs: Logs, index: Index, values: Logs) -> Residuals:
    rank, target, step, micro = index
    steps, size = logs.shape[2], logs.shape[3]
    early = step < ENOUGH_HISTORY
    offsets = np.arange(HISTORY + 1)
    at = np.where(early[:, None], offsets[None, :], step[:, None] - 1 - offsets[None, :])
    usable = (at >= 0) & (at < steps) & (at != step[:, None])
    usable[:, HISTORY] &= early
    history = logs[rank[:, None], target[:, None], np.clip(at, 0, steps - 1), :]
    history = np.where(usable[:, :, None], history, np.nan).reshape(len(values), -1)
    same = logs[rank, target, step, :].copy()
    same[np.arange(len(values)), micro] = np.nan
    reference = history
    if steps < FEW_STEPS:
        reference = np.concatenate([reference, same], axis=1)
    few = np.sum(~np.isnan(reference), axis=1) < MIN_REFERENCE
    if few.any() and logs.shape[0] > 1:
        peers = np.moveaxis(logs[:, target, step, micro], 0, 1).copy()
        peers[np.arange(len(values)), rank] = np.nan
        reference = np.concatenate([reference, np.where(few[:, None], peers, np.nan)], axis=1)
    middle = median_last(reference).astype(np.float64)
    earlier = np.where(at < step[:, None], 1.0, np.nan).repeat(size, axis=1)
    return Residuals(
        distance=values - middle,
        reference=middle,
        count=np.sum(~np.isnan(reference), axis=1),
        before=values - median_last(history * earlier),
        beside=values - median_last(same),
    )


def thresholds(
    scale: Scale, index: Index, count: npt.NDArray[np.int64], cells: int, rate: float, ratio: float
) -> npt.NDArray[np.float64]:
    """The log distance that each cell must exceed. pi / (2 n) is the variance of a median of n values."""
    factor = t_quantile(rate / 2 / max(cells, 1), scale.freedom)
    sigma = scale.sigma[index[1], index[3]] * np.sqrt(1 + math.pi / 2 / np.maximum(count, 1))
    return np.maximum(factor * sigma, math.log(ratio))


def peer_distance(logs: Logs, rank: int, target: int, step: int, micro: int) -> float:
    """Median distance of the other ranks at one cell from their own histories; NaN without other ranks."""
    others = np.array([r for r in range(logs.shape[0]) if r != rank], dtype=np.int64)
    if not len(others):
        return math.nan
    where = (others, *(np.full(len(others), i, dtype=np.int64) for i in (target, step, micro)))
    return median_of(residuals(logs, where).distance)  # type: ignore[arg-type]
