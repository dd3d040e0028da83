"""Bytes of plain Python values: a tagged encoding that is exact, ordered and free of addresses.

Floats go in as their 8 IEEE bytes, integers as hexadecimal text, containers with their length; a non-empty list or
tuple of 64-bit integers (the state of a random generator) as their 8-byte words. What has no such encoding raises
UnsupportedLeafError with the type's name: it is named in the trail, never guessed at.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.spec import digest_bytes

MAX_DEPTH = 24


def encode_value(value: object, depth: int = 0) -> bytes:
    """The canonical bytes of a plain value. Raises UnsupportedLeafError for anything without one."""
    if depth > MAX_DEPTH:
        raise UnsupportedLeafError(f"nested deeper than {MAX_DEPTH} levels")
    scalar = _encode_scalar(value)
    if scalar is not None:
        return scalar
    return _encode_container(value, depth)


def _encode_scalar(value: object) -> bytes | None:
    match value:
        case None:
            return b"N"
        case bool():
            return b"T" if value else b"F"
        case Enum():
            # A Flag made of unknown bits has no name; its value tells it apart.
            return _tagged(b"e", f"{type(value).__qualname__}.{value.name or repr(value.value)}".encode())
        case int():
            # Hexadecimal: Python refuses decimal text of more than 4,300 digits.
            return _tagged(b"i", f"{int(value):x}".encode())
        case float():
            return b"f" + struct.pack("<d", value)
        case complex():
            return b"c" + struct.pack("<dd", value.real, value.imag)
        case str():
            return _tagged(b"s", value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray() | memoryview():
            return _tagged(b"b", bytes(value))
        case Decimal() | Fraction() | PurePath() | date() | time() | timedelta() | range():
            return _tagged(b"r", f"{type(value).__name__}:{value}".encode())
    return None


def _encode_container(value: object, depth: int) -> bytes:
    match value:
        case Mapping():
            return _items(b"m", [encode_value(k, depth + 1) + encode_value(v, depth + 1) for k, v in value.items()])
        case Set():
            # A set has no order of its own, and its iteration order is exactly what PYTHONHASHSEED moves.
            return _items(b"S", sorted(encode_value(item, depth + 1) for item in value))
        case slice():
            return _items(b"x", [encode_value(part, depth + 1) for part in (value.start, value.stop, value.step)])
        case list() | tuple() if value and set(map(type, value)) == {int}:
            return _encode_integers(value)
        case Sequence():
            return _items(b"l", [encode_value(item, depth + 1) for item in value])
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [encode_value(f.name) + encode_value(getattr(value, f.name), depth + 1) for f in fields(value)]
        return _items(b"d", pairs)
    nested = _encode_array(value)
    if nested is not None:
        return nested
    raise UnsupportedLeafError(f"a {type(value).__module__}.{type(value).__qualname__} has no exact byte encoding")


def _encode_integers(value: Sequence[int]) -> bytes:
    try:
        return b"q" + struct.pack(f"<Q{len(value)}q", len(value), *value)
    except struct.error:
        return _items(b"l", [encode_value(item) for item in value])


def _encode_array(value: object) -> bytes | None:
    """numpy arrays and scalars, without importing numpy: it is there if the value is."""
    dtype, tobytes = getattr(value, "dtype", None), getattr(value, "tobytes", None)
    if not callable(tobytes) or getattr(dtype, "hasobject", True):
        return None
    shape = ",".join(map(str, getattr(value, "shape", ())))
    return _tagged(b"a", f"{getattr(dtype, 'str', dtype)}[{shape}]".encode() + b"\0" + tobytes())


def _tagged(tag: bytes, payload: bytes) -> bytes:
    return tag + struct.pack("<Q", len(payload)) + payload


def _items(tag: bytes, encoded: Sequence[bytes]) -> bytes:
    return tag + struct.pack("<Q", len(encoded)) + b"".join(encoded)


def digest_value(value: object) -> int:
    """The leaf digest of a plain value (dtype `value`). Raises UnsupportedLeafError."""
    data = encode_value(value)
    return digest_bytes("value", (len(data),), data)
