"""What one micro-batch added, from norms of the sum so far.

Of S_i = S_{i-1} + g_i only the norms are known, so that | |S_i| - |S_{i-1}| | <= |g_i| <= |S_i| + |S_{i-1}|. The
estimate is the one for orthogonal gradients, sqrt(|S_i|^2 - |S_{i-1}|^2), which lies between the bounds; a falling norm
gives its lower bound (a fall is evidence too, not zero). Behind an abnormal sum the estimate sees little more than the
correlation with that sum, so there only the lower bound counts.
"""

from __future__ import annotations

import numpy as np

from detaudit.spike.cube import Floats


def contributions(norms: Floats) -> Floats:
    """Per-micro-batch gradient norms from accumulated ones; micro-steps are the last axis. NaN where unknown."""
    if norms.shape[-1] < 2:
        return norms
    result = np.array(norms, dtype=np.float64)
    before, after = norms[..., :-1], norms[..., 1:]
    with np.errstate(invalid="ignore", over="ignore"):
        # (a - b)(a + b) keeps the small difference of two large sums.
        estimate = np.sqrt(np.abs(after - before)) * np.sqrt(np.where(after > before, after + before, before - after))
    estimate[~np.isfinite(before)] = np.nan  # after an infinite or NaN sum nothing is known of what came later
    result[..., 1:] = estimate
    return result


def lower_bounds(norms: Floats, index: tuple[np.ndarray, ...]) -> Floats:
    """| |S_i| - |S_{i-1}| | at the given cells (r, p, s, m); |S_0| itself for the first micro-step."""
    *window, micro = index
    after = norms[(*window, micro)]
    before = np.where(micro > 0, norms[(*window, np.maximum(micro - 1, 0))], 0.0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(after - before), dtype=np.float64)
