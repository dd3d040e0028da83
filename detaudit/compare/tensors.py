"""Two buffers of equal dtype and shape: where they differ, by how much, and in which way. numpy only.

`compare_buffers` reads top to bottom: the unequal elements by their bits (`_unequal`), their place (`_region`), the
first pair of values, distances (`_distances`: ulp, absolute, relative), whether one is a permutation of the other, and
the first differing 64 KiB.

*Rounding or not* (`_nearness`). Two sums of the same numbers in another order, or two products rounded in another
place, agree in the leading digits. Values count as apart by rounding only when each unequal pair is within the square
root of the format's epsilon of the larger of the two: half of the stored bits agree. What fails that and is still
smaller than 64 epsilon of the largest element of the buffers may be rounding after cancellation; it stays unclear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detaudit.compare.floats import COMPLEX, FORMATS, Bits, FloatFormat, ordered
from detaudit.compare.sums import heap_terms, reordered
from detaudit.core.buffers import Difference, Nearness, Region
from detaudit.core.errors import NotComparableError

CHUNK = 65536
CANCELLATION = 64
"""How many epsilons of the largest element a difference may have to be rounding after cancellation."""

INTEGERS: dict[str, Any] = {
    "bool": np.uint8,
    "value": np.uint8,
    **{
        name: np.dtype(name).type for name in ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
    },
}


@dataclass(frozen=True)
class Buffer:
    """Raw bytes in C order with torch's name of their dtype and their shape."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def compare_buffers(a: Buffer, b: Buffer, cancels: bool = True, sums: str = "") -> Difference | None:
    """How two buffers differ, None when all bits are equal: NaN equals the same NaN, and -0.0 differs from 0.0.

    `cancels` says that values may be differences of larger numbers; False (sums of numbers of one sign) leaves no
    unclear case. `sums` names the layout of a buffer of sums (`compare/sums.py`): the bound on what another order of
    their additions can make then decides what is rounding. Raises NotComparableError for another dtype or shape.
    """
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        raise NotComparableError(f"{described(a)} in A, {described(b)} in B")
    if a.data == b.data:
        return None
    left, right = _elements(a), _elements(b)
    where = _unequal(left, right)
    first = int(where[0])
    region, rows = _region(where, a)
    found = Difference(
        elements=a.elements,
        unequal=where.size,
        first=first,
        last=int(where[-1]),
        value_a=_shown(left[first], a.dtype),
        value_b=_shown(right[first], a.dtype),
        region=region,
        rows=rows,
        nearness=Nearness.EXACT,
        permutation=_same_multiset(left, right),
        chunk=first * left.dtype.itemsize // CHUNK,
        chunks=-(-len(a.data) // CHUNK),
    )
    found = _with_distances(found, left, right, where, a.dtype)
    if sums and a.dtype in FORMATS:
        return replace(found, nearness=_nearness_of_sums(found.nearness, left[where], right[where], where, a))
    return replace(found, nearness=Nearness.FAR) if found.nearness is Nearness.UNCLEAR and not cancels else found


def _nearness_of_sums(plain: Nearness, left: Bits, right: Bits, where: NDArray[np.intp], buffer: Buffer) -> Nearness:
    """What the number of additions makes of `plain`, the nearness by the values alone."""
    form = FORMATS[buffer.dtype]
    terms = heap_terms(where, buffer.elements) if len(buffer.shape) == 1 else None
    if plain is Nearness.SAME:
        return plain
    if terms is None:
        return Nearness.UNCLEAR if plain is Nearness.ROUNDING else plain
    if reordered(form.decode(left), form.decode(right), terms, form.epsilon):
        return Nearness.ROUNDING
    return Nearness.FAR if plain is Nearness.FAR else Nearness.BEYOND


def described(buffer: Buffer) -> str:
    return f"{buffer.dtype}{list(buffer.shape)}"


def _elements(buffer: Buffer) -> Bits:
    """The elements as unsigned words; an element of 16 bytes as a pair in a structure."""
    size = len(buffer.data) // buffer.elements
    dtype: Any = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: [("re", np.uint64), ("im", np.uint64)]}
    return np.frombuffer(buffer.data, dtype[size])


def _unequal(left: Bits, right: Bits) -> NDArray[np.intp]:
    return np.flatnonzero(left != right)


def _region(where: NDArray[np.intp], buffer: Buffer) -> tuple[Region, tuple[int, int] | None]:
    """The most telling description of a set of flat indices. Rows are those of the last dimension."""
    count, span = where.size, int(where[-1] - where[0]) + 1
    if count == buffer.elements:
        return (Region.ALL if count > 1 else Region.ONE), None
    if count == 1:
        return Region.ONE, None
    width = buffer.shape[-1]
    rows = np.unique(where // width)
    if len(buffer.shape) > 1 and width > 1 and count == rows.size * width:
        return Region.ROWS, (int(rows[0]), int(rows[-1]))
    return (Region.CONTIGUOUS if count == span else Region.SCATTERED), None


def _same_multiset(left: Bits, right: Bits) -> bool:
    return bool(np.array_equal(np.sort(left), np.sort(right)))


def _shown(word: Any, dtype: str) -> str:
    one = np.array([word])
    if dtype in COMPLEX:
        real, imaginary = (_shown(part, COMPLEX[dtype]) for part in _components(one, dtype))
        return f"({real}, {imaginary})"
    if dtype in FORMATS:
        return repr(float(FORMATS[dtype].decode(one)[0]))
    return str(one.view(INTEGERS[dtype])[0]) if dtype in INTEGERS else f"0x{int(word):02x}"


def _components(words: Bits, dtype: str) -> Bits:
    """The components of complex elements, real and imaginary in turn."""
    return words.view(f"u{FORMATS[COMPLEX[dtype]].bits // 8}")


def _with_distances(found: Difference, left: Bits, right: Bits, where: NDArray[np.intp], dtype: str) -> Difference:
    if dtype in INTEGERS:
        return replace(found, largest=_integer_distance(left[where], right[where], dtype))
    if dtype not in FORMATS and dtype not in COMPLEX:
        return found
    form = FORMATS[COMPLEX.get(dtype, dtype)]
    parts = 1
    x, y = left, right
    if dtype in COMPLEX:
        parts, x, y = 2, _components(left, dtype), _components(right, dtype)
        where = _unequal(x, y)
    pair = _Pair(x[where], y[where], form)
    far = pair.ulp()
    largest, relative = pair.largest(), pair.relative()
    place = int(np.argmax(far)) if far.size else None
    return replace(
        found,
        ulp=None if place is None else int(far[place]),
        ulp_at=None if place is None else int(where[pair.numbers][place]) // parts,
        largest=largest,
        relative=relative,
        nonfinite=int(np.count_nonzero(~pair.finite)),
        nearness=_nearness(pair, largest, relative, (x, y)),
    )


def _integer_distance(a: Bits, b: Bits, dtype: str) -> float:
    x, y = a.view(INTEGERS[dtype]), b.view(INTEGERS[dtype])
    # In the width of the type: the difference of two 64-bit integers fits 64 unsigned bits, not 64 signed ones.
    return float(np.where(x > y, a - b, b - a).max())


class _Pair:
    """The unequal elements of two buffers of one floating format. `numbers` marks pairs without NaN."""

    def __init__(self, a: Bits, b: Bits, form: FloatFormat) -> None:
        self.form = form
        self._words = a, b
        self.a, self.b = form.decode(a), form.decode(b)
        self.numbers = ~(np.isnan(self.a) | np.isnan(self.b))
        self.finite = np.isfinite(self.a) & np.isfinite(self.b)
        self.same = (np.isnan(self.a) & np.isnan(self.b)) | (self.a == self.b)

    def ulp(self) -> NDArray[np.uint64]:
        x, y = (ordered(words[self.numbers], self.form) for words in self._words)
        return np.where(x > y, x - y, y - x)

    def _apart(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Half the distance and half the larger magnitude of each finite pair: halves do not overflow."""
        a, b = self.a[self.finite] / 2, self.b[self.finite] / 2
        return np.abs(a - b), np.maximum(np.abs(a), np.abs(b))

    def largest(self) -> float | None:
        distance, _ = self._apart()
        return 2 * float(distance.max()) if distance.size else None

    def relative(self) -> float | None:
        distance, size = self._apart()
        if not distance.size:
            return None
        return float(np.divide(distance, size, out=np.zeros_like(distance), where=size > 0).max())


def _nearness(pair: _Pair, largest: float | None, relative: float | None, whole: Sequence[Bits]) -> Nearness:
    if pair.same.all():
        return Nearness.SAME
    if not (pair.finite | pair.same).all() or largest is None or relative is None:
        return Nearness.FAR
    if relative <= math.sqrt(pair.form.epsilon):
        return Nearness.ROUNDING
    numbers = [np.abs(decoded[np.isfinite(decoded)]) for decoded in map(pair.form.decode, whole)]
    top = max((float(part.max()) for part in numbers if part.size), default=0.0)
    return Nearness.UNCLEAR if largest <= CANCELLATION * pair.form.epsilon * top else Nearness.FAR
