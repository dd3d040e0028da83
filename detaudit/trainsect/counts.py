"""k of n with its exact 95 % interval (Clopper and Pearson 1934), and the controls that carry such counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Any

LEVEL = 0.95


def interval(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Two-sided interval of a share, by bisection on the binomial tails. 8 of 8 supports no more than 0.63."""
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no count")
    half = (1 - level) / 2
    low = 0.0 if k == 0 else _root(lambda p: _at_least(k, n, p) - half)
    high = 1.0 if k == n else _root(lambda p: half - _at_least(n - k, n, 1 - p))
    return low, high


def _at_least(k: int, n: int, p: float) -> float:
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


@dataclass(frozen=True)
class Control:
    """One control: `k` of `n` replays collapsed, `expected` of them had to. None for `passed`: it could not be run."""

    name: str
    k: int
    n: int
    expected: str
    passed: bool | None
    text: str = ""

    def value(self) -> dict[str, Any]:
        low, high = interval(self.k, self.n) if self.n else (0.0, 1.0)
        return {
            "name": self.name,
            "collapsed": self.k,
            "of": self.n,
            "interval": [round(low, 4), round(high, 4)],
            "expected": self.expected,
            "passed": self.passed,
            "text": self.text,
        }


def control(name: str, collapsed: list[bool], expected: str, text: str = "") -> Control:
    """`expected` is `all`, `none` or `any` (reported, decides nothing)."""
    k, n = sum(collapsed), len(collapsed)
    passed = None if not n else {"all": k == n, "none": k == 0, "any": True}[expected]
    return Control(name, k, n, expected, passed, text)
