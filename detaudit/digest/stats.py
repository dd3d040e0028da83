"""Numbers beside a digest: multiset hash, sum of squares, extremes, counts of NaN and Inf.

All are defined so that any device can reproduce them bit for bit; none depends on a thread count.

*Sum of squares.* Elements become float64 (exact for every type up to 32 bits; 64-bit integers are rounded to nearest).
Non-finite elements count as zero. The elements are cut into segments of 65,536, a segment into rows of 256. Lane j
adds the squares x*x of column j from the first row to the last, each product rounded before it is added (no fused
multiply-add). Then lane j takes lane j+128 in, then j+64, and so on to lane 0: the sum of the segment. Segment sums
are added in order. Missing elements of the last row are +0. A complex element counts as two.

*Bag.* The sum modulo 2^64 of mix(bits), where bits are an element's raw bytes as an unsigned integer, extended with
zeros, and mix is splitmix64's output function. It ignores order: equal bag and unequal digest means the same values
in another order, the very ambiguity of a plain sum of squares.

Sources: the seed's sum-of-squares checksum; splitmix64 from Steele, Lea, Flood, OOPSLA 2014 (the finaliser).
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from detaudit.core.errors import UnsupportedLeafError
from detaudit.core.model import Stats
from detaudit.digest.host import plain, view

LANES = 256
SEGMENT = 65536
EMPTY = Stats(bag=0, sumsq=0.0, low=0.0, high=0.0, nans=0, infs=0)

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def leaf_stats(value: object) -> Stats:
    """The stats of a tensor or number; EMPTY for a value that is no array of numbers."""
    if isinstance(value, bool | int | float):
        return tensor_stats(torch.tensor(value, dtype=torch.float64))
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.array(value))
    if not isinstance(value, torch.Tensor):
        return EMPTY
    try:
        return tensor_stats(value._values() if value.layout is torch.sparse_coo else value)
    except (UnsupportedLeafError, RuntimeError):
        return EMPTY  # the leaf itself is named as unsupported by its digest


def tensor_stats(tensor: torch.Tensor) -> Stats:
    """The stats of a dense tensor of any shape. Raises UnsupportedLeafError where the bytes cannot be read."""
    source = plain(tensor)
    if not source.nbytes:
        return EMPTY
    if source.is_complex():
        source = torch.view_as_real(source.detach())
    bag = bag_hash(_raw_words(source))
    numbers = _float64(source)
    finite = np.isfinite(numbers)
    nans = int(np.isnan(numbers).sum())
    infs = numbers.size - int(finite.sum()) - nans
    kept = numbers if nans + infs == 0 else np.where(finite, numbers, 0.0)
    seen = numbers if nans + infs == 0 else numbers[finite]
    low, high = (float(seen.min()), float(seen.max())) if seen.size else (0.0, 0.0)
    return Stats(bag, sum_of_squares(kept), low + 0.0, high + 0.0, nans, infs)


def sum_of_squares(numbers: np.ndarray) -> float:
    """The fixed-order sum of squares of a flat float64 array of finite numbers."""
    total = 0.0
    for start in range(0, numbers.size, SEGMENT):
        total += _segment_sum(numbers[start : start + SEGMENT])
    return total


def _segment_sum(segment: np.ndarray) -> float:
    rows = -(-segment.size // LANES)
    grid = np.zeros(rows * LANES, np.float64)
    np.multiply(segment, segment, out=grid[: segment.size])
    # numpy adds the rows of a C-ordered array one after the other; the golden vectors would show any other order.
    lanes = np.add.reduce(grid.reshape(rows, LANES), axis=0)
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = lanes[:half] + lanes[half:]
    return float(lanes[0])


def bag_hash(words: np.ndarray) -> int:
    """The order-free multiset hash of an array of unsigned words of any width."""
    total = 0
    for start in range(0, words.size, SEGMENT):
        z = words[start : start + SEGMENT].astype(np.uint64)
        z += np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total += int(np.add.reduce(z ^ (z >> np.uint64(31))))
    return total & 0xFFFFFFFFFFFFFFFF


def _raw_words(source: torch.Tensor) -> np.ndarray:
    return np.frombuffer(view(source), _WORDS[source.element_size()])


def _float64(source: torch.Tensor) -> np.ndarray:
    """A flat float64 copy of a plain real tensor, by a fresh tensor: the user's storage is never exported."""
    flat = source.detach().reshape(-1)
    wide = torch.empty(flat.shape, dtype=torch.float64)
    wide.copy_(flat)
    return wide.numpy()


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """A copy of a tensor's logical bytes. Raises UnsupportedLeafError."""
    source = plain(tensor)
    return ctypes.string_at(source.data_ptr(), source.nbytes) if source.nbytes else b""
