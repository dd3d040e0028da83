"""How far a handful of pairs can be trusted: the exact interval of a rate, and its wording.

The interval is that of Clopper and Pearson (Biometrika 26, 1934): the rates p for which neither "at least as many" nor
"at most as many" diverging pairs has a binomial probability below half of what the confidence leaves over. Both tails
are sums of exact binomial terms, monotone in p, so bisection finds the ends; no special functions are needed for the
numbers of pairs that anybody runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

CONFIDENCE = 0.95
_HALVINGS = 80
"""More than the 53 bits of a double: the last ones change nothing."""


def interval(diverged: int, pairs: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The Clopper-Pearson interval of the rate behind `diverged` of `pairs`.

    Raises ValueError unless 0 <= diverged <= pairs, pairs >= 1 and 0 < confidence < 1.
    """
    if pairs < 1 or not 0 <= diverged <= pairs:
        raise ValueError(f"{diverged} of {pairs} pairs is no rate")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} is not between 0 and 1")
    tail = (1 - confidence) / 2
    low = 0.0 if diverged == 0 else _root(lambda p: 1 - _at_most(diverged - 1, pairs, p) - tail)
    high = 1.0 if diverged == pairs else _root(lambda p: tail - _at_most(diverged, pairs, p))
    return low, high


def _at_most(count: int, pairs: int, rate: float) -> float:
    return math.fsum(math.comb(pairs, k) * rate**k * (1 - rate) ** (pairs - k) for k in range(count + 1))


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def in_words(diverged: int, pairs: int) -> str:
    """The rate with its interval, rounded outwards: `0 of 2 pairs diverged (95 % interval of the rate: 0 to 85 %)`."""
    low, high = interval(diverged, pairs)
    ends = f"{math.floor(100 * low)} to {math.ceil(100 * high)} %"
    word = "pair" if pairs == 1 else "pairs"
    return f"{diverged} of {pairs} {word} diverged (95 % interval of the rate: {ends})"
