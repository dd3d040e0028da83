"""Arrays of norms for tests."""

from __future__ import annotations

import numpy as np


def noisy(shape: tuple[int, ...], seed: int = 0, noise: float = 0.1) -> np.ndarray:
    """Log-normal norms around one."""
    return np.exp(np.random.default_rng(seed).normal(0, noise, shape))
