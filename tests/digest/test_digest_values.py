"""Plain values: exact, ordered, without addresses; what has no encoding is refused by name."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import random
import struct
import subprocess
import sys
from collections import OrderedDict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath

import digest_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.values import MAX_DEPTH, digest_value, encode_value


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.IntFlag):
    ONE = 1


@dataclasses.dataclass
class Point:
    x: float
    y: float


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=12,
)


def fingerprint(value):
    """A value as nested tuples in which equality means what the encoding means: exact type class, bits and order."""
    if isinstance(value, dict):
        return ("m", tuple((fingerprint(key), fingerprint(item)) for key, item in value.items()))
    if isinstance(value, list):
        return ("l", tuple(map(fingerprint, value)))
    if isinstance(value, float):
        return ("f", struct.pack("<d", value))
    return (type(value).__name__, value)


@settings(max_examples=200, deadline=None)
@given(values, values)
def test_encodings_are_equal_exactly_when_the_values_are(left, right):
    assert (encode_value(left) == encode_value(right)) == (fingerprint(left) == fingerprint(right))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers() | st.integers(-(2**63), 2**63 - 1), max_size=6), st.lists(st.integers(), max_size=6))
def test_lists_of_integers_of_any_size(left, right):
    assert (encode_value(left) == encode_value(right)) == (left == right)
    assert encode_value(left) == encode_value(tuple(left))


DIFFERENT = [
    0,
    0.0,
    -0.0,
    False,
    None,
    "",
    b"",
    "0",
    b"0",
    [],
    {},
    set(),
    1,
    1.0,
    True,
    "1",
    1 + 0j,
    [1],
    [True],
    [1.0],
]
DIFFERENT += [[[1]], [1, 1], {1: 1}, {1}, Decimal("1"), Decimal("1.0"), Fraction(1), range(1), slice(1), Colour.RED]
DIFFERENT += [Level.LOW, Bits.ONE, Bits(8), Bits(16), Bits(0), PurePosixPath("1"), Point(1, 1), Point(1.0, 1.0)]
DIFFERENT += [datetime.timedelta(1), datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1), 2**64, 2**63, -(2**63)]
DIFFERENT += [slice(0, 1), np.array([1]), np.array([1.0]), np.array([[1]]), np.array(1, np.int8), [2**63]]
DIFFERENT += ["ab", ["a", "b"], [["a"], "b"], [["a", "b"]], float("nan"), float("inf"), -float("inf"), 10**5000]


def test_different_values_differ():
    encoded = [encode_value(value) for value in DIFFERENT]
    assert len(set(encoded)) == len(encoded)


def test_nan_payloads_count():
    payloads = [struct.unpack("<d", struct.pack("<Q", word))[0] for word in (0x7FF8000000000000, 0x7FF8000000000001)]
    assert digest_value(payloads[0]) != digest_value(payloads[1])


def test_dict_order_matters_and_set_order_does_not():
    assert encode_value({"a": 1, "b": 2}) != encode_value({"b": 2, "a": 1})
    assert encode_value({"a": 1, "b": 2}) == encode_value(OrderedDict(a=1, b=2))
    names = [f"name{index}" for index in range(50)]
    assert encode_value(set(names)) == encode_value(frozenset(reversed(names)))


def test_sets_do_not_depend_on_the_hash_seed():
    code = "from detaudit.digest.values import digest_value; print(digest_value({'a', 'b', 'c', ('d', 1)}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_sequences_of_any_class_are_their_items():
    assert encode_value([0.5, "x"]) == encode_value((0.5, "x")) == encode_value(deque([0.5, "x"]))


def test_digest_is_a_leaf_of_dtype_value():
    data = encode_value({"lr": 0.1})
    assert digest_value({"lr": 0.1}) == reference.digest("value", (len(data),), data)


GOLDEN = {
    "float": (0.1, b"f" + struct.pack("<d", 0.1)),
    "integer": (255, b"i" + struct.pack("<Q", 2) + b"ff"),
    "negative": (-255, b"i" + struct.pack("<Q", 3) + b"-ff"),
    "text": ("é", b"s" + struct.pack("<Q", 2) + "é".encode()),
    "integers": ([1, -2], b"q" + struct.pack("<Qqq", 2, 1, -2)),
    "list": ([None, True], b"l" + struct.pack("<Q", 2) + b"NT"),
    "mapping": ({"a": None}, b"m" + struct.pack("<Q", 1) + b"s" + struct.pack("<Q", 1) + b"aN"),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_encodings(case):
    value, expected = GOLDEN[case]
    assert encode_value(value) == expected


def test_golden_digests():
    assert f"{digest_value({'lr': 0.1, 'betas': (0.9, 0.999), 'amsgrad': False}):016x}" == "417903bc1dc37585"
    assert f"{digest_value(random.Random(0).getstate()):016x}" == "7662ae30f871c3b7"


def test_arrays_count_dtype_shape_and_logical_order():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert encode_value(array) == encode_value(np.asfortranarray(array))
    assert (
        len(
            {
                encode_value(other)
                for other in [array, array.T, array.reshape(3, 2), array.astype(np.int32), array.view(np.uint16)]
            }
        )
        == 5
    )
    assert encode_value(np.array([0.0])) != encode_value(np.array([-0.0]))


class Opaque:
    pass


@pytest.mark.parametrize(
    "value", [Opaque(), Opaque, len, iter([]), np.array([Opaque()]), [1, {"deep": Opaque()}], {Opaque()}]
)
def test_unknown_objects_are_refused_by_name(value):
    with pytest.raises(UnsupportedLeafError, match="has no exact byte encoding"):
        encode_value(value)


def test_slices_do_not_hide_objects():
    with pytest.raises(UnsupportedLeafError, match="Opaque"):
        encode_value(slice(Opaque()))


def test_a_cycle_is_refused():
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(UnsupportedLeafError, match=f"deeper than {MAX_DEPTH}"):
        encode_value(cycle)


def test_reading_a_generators_state_consumes_nothing():
    generator = random.Random(5)
    digest_value(generator.getstate())
    assert generator.random() == random.Random(5).random()
