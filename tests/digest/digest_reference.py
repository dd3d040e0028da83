"""The digest and the stats again, written from the words in `spec.py` and `stats.py` with Python integers and loops.

Shares nothing with the package but XXH3 itself.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

import xxhash

CODES = {"value": 0, "bool": 1, "uint8": 2, "int8": 3, "int16": 4, "int32": 5, "int64": 6, "float16": 7, "float32": 8}
CODES |= {"float64": 9, "complex32": 10, "complex64": 11, "complex128": 12, "bfloat16": 13, "uint16": 14, "uint32": 15}
CODES |= {"uint64": 16, "float8_e4m3fn": 17, "float8_e5m2": 18, "float8_e4m3fnuz": 19, "float8_e5m2fnuz": 20}
CODES |= {"float8_e8m0fnu": 21, "float4_e2m1fn_x2": 22, "sparse_coo": 64, "sparse_csr": 65, "sparse_csc": 66}
CODES |= {"sparse_bsr": 67, "sparse_bsc": 68}
"""The codes as they stand in the format, on purpose written out again: a renumbered one must fail here."""


def digest(dtype: str, shape: Iterable[int], data: bytes) -> int:
    """Steps 1 to 4 of the digest's words, for a leaf of raw bytes."""
    body = b""
    for start in range(0, len(data), 64 * 1024):
        body += xxhash.xxh3_64(data[start : start + 64 * 1024], seed=0).intdigest().to_bytes(8, "big")
    return _finish(1, dtype, list(shape), len(data), body)


def composite(layout: str, shape: Iterable[int], parts: list[int]) -> int:
    """A sparse leaf: format byte 2, and the leaf digests of its parts in place of chunk digests."""
    body = b"".join(part.to_bytes(8, "big") for part in parts)
    return _finish(2, layout, list(shape), len(body), body)


def _finish(form: int, dtype: str, dims: list[int], nbytes: int, body: bytes) -> int:
    head = bytes([form, CODES[dtype]]) + len(dims).to_bytes(2, "little") + (65536).to_bytes(4, "little")
    for dim in dims:
        head += dim.to_bytes(8, "little")
    head += nbytes.to_bytes(8, "little")
    assert len(head) % 8 == 0
    return xxhash.xxh3_64(head + body, seed=0).intdigest()


WIDTHS = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8}
WIDTHS |= {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 2, "complex64": 4, "complex128": 8}
WIDTHS |= {"float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1}
"""Bytes of an element, or of half an element of a complex type (it counts as two)."""

FORMATS = {"float16": "<e", "complex32": "<e", "float32": "<f", "complex64": "<f", "float64": "<d", "complex128": "<d"}


def words(dtype: str, data: bytes) -> list[int]:
    width = WIDTHS[dtype]
    return [int.from_bytes(data[start : start + width], "little") for start in range(0, len(data), width)]


def number(dtype: str, word: int) -> float:
    """The value of an element, given as an unsigned word, rounded to float64."""
    width = WIDTHS[dtype]
    if dtype == "bool":
        return float(word != 0)
    if dtype in FORMATS:
        return struct.unpack(FORMATS[dtype], word.to_bytes(width, "little"))[0]
    if dtype == "bfloat16":
        return struct.unpack("<f", (word << 16).to_bytes(4, "little"))[0]
    if dtype.startswith("float8"):
        return _float8(dtype, word)
    signed = dtype.startswith("int") and word >> (8 * width - 1)
    return float(word - (1 << 8 * width) if signed else word)


def _float8(dtype: str, word: int) -> float:
    if dtype == "float8_e8m0fnu":
        return math.nan if word == 255 else 2.0 ** (word - 127)
    if dtype == "float8_e5m2":
        return struct.unpack("<e", bytes([0, word]))[0]
    mantissa_bits, bias = {"float8_e4m3fn": (3, 7), "float8_e4m3fnuz": (3, 8), "float8_e5m2fnuz": (2, 16)}[dtype]
    if (word & 0x7F == 0x7F) if dtype == "float8_e4m3fn" else word == 0x80:
        return math.nan
    sign, exponent, mantissa = word >> 7, (word & 0x7F) >> mantissa_bits, word & ((1 << mantissa_bits) - 1)
    scale = 2.0**-mantissa_bits
    value = (1 + mantissa * scale) * 2.0 ** (exponent - bias) if exponent else mantissa * scale * 2.0 ** (1 - bias)
    return -value if sign else value


def splitmix(word: int) -> int:
    mask = 2**64 - 1
    z = (word + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def sum_of_squares(values: list[float]) -> float:
    """The words of `stats.py`: segments of 65,536, rows of 256, lanes added row by row, then halved."""
    total = 0.0
    for start in range(0, len(values), 65536):
        lanes = [0.0] * 256
        for offset, value in enumerate(values[start : start + 65536]):
            lanes[offset % 256] += value * value
        half = 128
        while half:
            for lane in range(half):
                lanes[lane] += lanes[lane + half]
            half //= 2
        total += lanes[0]
    return total


def stats(dtype: str, data: bytes) -> tuple[int, float, float, float, int, int]:
    """(bag, sumsq, low, high, nans, infs) of raw bytes."""
    bits = words(dtype, data)
    values = [number(dtype, word) for word in bits]
    finite = [value for value in values if math.isfinite(value)]
    return (
        sum(map(splitmix, bits)) % 2**64,
        sum_of_squares([value if math.isfinite(value) else 0.0 for value in values]),
        min(finite, default=0.0) + 0.0,
        max(finite, default=0.0) + 0.0,
        sum(map(math.isnan, values)),
        sum(map(math.isinf, values)),
    )
