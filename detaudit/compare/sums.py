"""Are two sums no further apart than the order of their additions could make them? numpy only.

For terms of one sign, a float sum of t terms in any order and grouping is off by at most (t - 1) u (1 + o(1)) of its
value, u being half the format's epsilon (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 4.2). Two
orders are so apart by at most t epsilon of the larger result. A sum of two terms has one order, since addition is
commutative: it must be equal to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEAP = "heap"
"""Nodes of a binary tree in heap order: the root at 1, the children of i at 2i and 2i+1, each inner node their sum."""

LAYOUTS = (HEAP,)


def heap_terms(nodes: NDArray[np.intp], elements: int) -> NDArray[np.int64] | None:
    """How many leaves each node sums up, 1 for a leaf and the unused place 0; None where `elements` is no power of two:
    that is no such tree."""
    if elements < 2 or elements & (elements - 1):
        return None
    depth = np.frexp(np.maximum(nodes, 1).astype(np.float64))[1] - 1
    terms = (elements // 2) >> depth.astype(np.int64)
    return np.where(nodes == 0, 1, terms)


def reordered(a: NDArray[Any], b: NDArray[Any], terms: NDArray[np.int64], epsilon: float) -> bool:
    """Whether each pair of float64 values may be one sum of so many terms in two orders."""
    if not (np.isfinite(a) & np.isfinite(b)).all():
        return False
    bound = np.where(terms <= 2, 0.0, terms * epsilon)
    return bool((np.abs(a - b) <= bound * np.maximum(np.abs(a), np.abs(b))).all())
