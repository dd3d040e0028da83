"""Order statistics over arrays with gaps, and the quantile of Student's t that the thresholds rest on."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

MAD_TO_SIGMA = 1.4826
"""For normal noise the standard deviation is this times the median absolute deviation."""


def median_last(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Median over the last axis, NaN left out; NaN where nothing is left. Sorts, so NaN end up last."""
    ordered = np.sort(values, axis=-1)
    count = np.sum(~np.isnan(ordered), axis=-1)
    low = np.maximum((count - 1) // 2, 0)[..., None]
    high = np.minimum(count // 2, values.shape[-1] - 1)[..., None]
    below = np.take_along_axis(ordered, low, -1)[..., 0].astype(np.float64)
    return np.asarray((below + np.take_along_axis(ordered, high, -1)[..., 0]) / 2, dtype=np.float64)


def median_of(values: npt.NDArray[np.floating]) -> float:
    """Median of everything that is not NaN; NaN when nothing is."""
    kept = values[~np.isnan(values)]
    return float(np.median(kept)) if len(kept) else math.nan


def iqr(values: npt.NDArray[np.floating]) -> float:
    """Interquartile range by linear interpolation; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    q1, q3 = np.percentile(values, [25, 75])
    return float(q3 - q1)


def t_quantile(tail: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees exceeds with probability `tail`.

    Hill 1970, Algorithm 396 (CACM 13:10), which takes the two-sided probability 2 * tail; within 1e-3 relative for
    freedom >= 3. Falls back to the normal quantile above 1e4 degrees.
    """
    if not 0 < tail < 0.5 or freedom < 1:
        raise AssertionError(f"tail {tail}, freedom {freedom}")
    if freedom > 1e4:
        return NormalDist().inv_cdf(1 - tail) if tail > 1e-15 else 8.0
    n, p = freedom, 2 * tail
    if n < 2.000001:
        return math.sqrt(2 / (p * (2 - p)) - 2) if n > 1.999999 else 1 / math.tan(p * math.pi / 2)
    a = 1 / (n - 0.5)
    b = (48 / a) / a
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * p) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(p / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (
            n + 2
        ) + 1 / y
    return math.sqrt(n * y)
