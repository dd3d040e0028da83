"""Floating formats without torch: bits to float64, and to integers whose difference counts units in the last place.

Every format here is sign and magnitude, with the magnitude's bits in the order of its values, so that the value next
to a value is the next integer (IEEE 754-2019, 5.10; OCP 8-bit floating point, revision 1.0; OCP microscaling, revision
1.0 for e8m0). Both zeros are one integer: their distance is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
"""An array of unsigned words, one an element."""


@dataclass(frozen=True)
class FloatFormat:
    """`bits` an element, of which `fraction` of the significand are stored."""

    bits: int
    fraction: int
    decode: Callable[[Bits], NDArray[np.float64]]
    signed: bool = True

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next value."""
        return float(2.0**-self.fraction)


def ordered(words: Bits, form: FloatFormat) -> NDArray[np.uint64]:
    """Integers in the order of the values, both zeros 2^63: their difference is the distance in ulp. NaN has none."""
    wide = words.astype(np.uint64)
    if not form.signed:
        return wide
    sign = np.uint64(1) << np.uint64(form.bits - 1)
    magnitude = wide & (sign - np.uint64(1))
    middle = np.uint64(1) << np.uint64(63)
    return np.where(wide & sign, middle - magnitude, middle + magnitude)


def _view(dtype: type[np.floating[Any]]) -> Callable[[Bits], NDArray[np.float64]]:
    def decode(words: Bits) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore"):  # widening a signalling NaN
            return words.view(dtype).astype(np.float64)

    return decode


def _bfloat16(words: Bits) -> NDArray[np.float64]:
    return _view(np.float32)(words.astype(np.uint32) << np.uint32(16))


def _table(values: list[float]) -> Callable[[Bits], NDArray[np.float64]]:
    table = np.array(values, np.float64)
    return lambda words: table[words]


def _float8(fraction: int, bias: int, nan: Callable[[int], bool], infinity: int | None) -> list[float]:
    """The value of each of 256 codes: 1 sign bit, 7 - fraction exponent bits."""
    values = []
    for code in range(256):
        magnitude = code & 0x7F
        exponent, digits = magnitude >> fraction, magnitude & ((1 << fraction) - 1)
        value = float(digits if exponent == 0 else digits + (1 << fraction))
        value *= 2.0 ** (max(exponent, 1) - bias - fraction)
        value = float("nan") if nan(code) else float("inf") if magnitude == infinity else value
        values.append(-value if code & 0x80 else value)
    return values


FORMATS: dict[str, FloatFormat] = {
    "float16": FloatFormat(16, 10, _view(np.float16)),
    "bfloat16": FloatFormat(16, 7, _bfloat16),
    "float32": FloatFormat(32, 23, _view(np.float32)),
    "float64": FloatFormat(64, 52, _view(np.float64)),
    "float8_e4m3fn": FloatFormat(8, 3, _table(_float8(3, 7, lambda code: code & 0x7F == 0x7F, None))),
    "float8_e5m2": FloatFormat(8, 2, _table(_float8(2, 15, lambda code: code & 0x7F > 0x7C, 0x7C))),
    "float8_e4m3fnuz": FloatFormat(8, 3, _table(_float8(3, 8, lambda code: code == 0x80, None))),
    "float8_e5m2fnuz": FloatFormat(8, 2, _table(_float8(2, 16, lambda code: code == 0x80, None))),
    "float8_e8m0fnu": FloatFormat(
        8, 0, _table([2.0 ** (code - 127) if code < 255 else float("nan") for code in range(256)]), signed=False
    ),
}

COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""The format of the two components of an element."""
