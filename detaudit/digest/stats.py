"""Numbers beside a digest: multiset hash, sum of squares, extremes, counts of NaN and Inf.

All are defined so that any device can reproduce them bit for bit; none depends on a thread count.

*Sum of squares.* Elements become float64 (exact for every type up to 32 bits; 64-bit integers are rounded to nearest).
Non-finite elements count as zero. The elements are cut into segments of 65,536, a segment into rows of 256. Lane j
adds the squares x*x of column j from the first row to the last, each product rounded before it is added (no fused
multiply-add). Then lane j takes lane j+128 in, then j+64, and so on to lane 0: the sum of the segment. Segment sums
are added in order. Missing elements of the last row are +0. A complex element counts as two, a bool as 0 or 1.

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
from detaudit.digest.host import SPARSE_PARTS, plain, view

LANES = 256
SEGMENT = 65536
BLOCK = 4 * SEGMENT
MASK = 0xFFFFFFFFFFFFFFFF
EMPTY = Stats(bag=0, sumsq=0.0, low=0.0, high=0.0, nans=0, infs=0)

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def leaf_stats(value: object) -> Stats:
    """The stats of a tensor, array or number; EMPTY for what is not made of numbers or has no exact float64 reading
    in torch (float4, long double)."""
    if isinstance(value, bool | int | float):
        value = np.float64(value) if abs(value) < 2**1023 or isinstance(value, float) else None
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc" and value.dtype.itemsize <= 16:
        value = _from_numpy(value)
    if not isinstance(value, torch.Tensor):
        return EMPTY
    try:
        if value.layout in SPARSE_PARTS:
            value = getattr(value.detach(), SPARSE_PARTS[value.layout][1][-1])()
        return tensor_stats(value)
    except (UnsupportedLeafError, RuntimeError):
        return EMPTY  # the leaf itself is named as unsupported by its digest


def _from_numpy(array: np.ndarray | np.generic) -> torch.Tensor | None:
    try:
        # A copy, so that read-only arrays pass; in native byte order, the only one torch knows.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError:
        return None


def tensor_stats(tensor: torch.Tensor) -> Stats:
    """The stats of a dense tensor of any shape, in blocks: memory stays below 16 MiB whatever the size.

    Raises UnsupportedLeafError where the bytes cannot be read, RuntimeError where torch cannot convert the dtype.
    """
    source = plain(tensor).detach()
    if not source.nbytes:
        return EMPTY
    if source.is_complex():
        source = torch.view_as_real(source)
    flat, words = source.reshape(-1), _raw_words(source)
    bag = nans = infs = 0
    total, lows, highs = 0.0, [], []
    for start in range(0, words.size, BLOCK):
        bag += bag_hash(words[start : start + BLOCK])
        numbers = _float64(flat[start : start + BLOCK], words[start : start + BLOCK])
        finite = np.isfinite(numbers)
        seen = numbers
        if not finite.all():
            seen = numbers[finite]
            missing = int(np.isnan(numbers).sum())
            nans, infs = nans + missing, infs + numbers.size - seen.size - missing
            numbers = np.where(finite, numbers, 0.0)
        total = sum_of_squares(numbers, total)
        if seen.size:
            lows.append(float(seen.min()))
            highs.append(float(seen.max()))
    # Adding +0.0 turns -0.0 into +0.0: which of the two a minimum returns depends on the order of the search.
    return Stats(bag & MASK, total, min(lows, default=0.0) + 0.0, max(highs, default=0.0) + 0.0, nans, infs)


def sum_of_squares(numbers: np.ndarray, total: float = 0.0) -> float:
    """The fixed-order sum of squares of a flat float64 array of finite numbers, added to `total`. Overflow gives inf,
    whatever numpy's error state in the user's program."""
    with np.errstate(all="ignore"):
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
    return total & MASK


def _raw_words(source: torch.Tensor) -> np.ndarray:
    return np.frombuffer(view(source), _WORDS[source.element_size()])


def _float64(flat: torch.Tensor, words: np.ndarray) -> np.ndarray:
    """A float64 copy of a flat real tensor, by a fresh tensor: the user's storage is never exported."""
    if flat.dtype is torch.bool:
        return (words != 0).astype(np.float64)  # a bool byte of 2 is true, which a device may read as 2
    wide = torch.empty(flat.shape, dtype=torch.float64)
    wide.copy_(flat)
    return wide.numpy()


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """A copy of a tensor's logical bytes. Raises UnsupportedLeafError."""
    source = plain(tensor)
    return ctypes.string_at(source.data_ptr(), source.nbytes) if source.nbytes else b""
