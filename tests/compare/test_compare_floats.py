"""Floating formats without torch, against torch's own reading of every code, and ulp distances against counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detaudit.compare.floats import FORMATS, ordered
from detaudit.compare.tensors import Buffer, compare_buffers

SMALL = [name for name, form in FORMATS.items() if form.bits <= 16]
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def every_code(name):
    bits = FORMATS[name].bits
    return np.arange(1 << bits, dtype=np.uint32).astype(WORDS[bits])


@pytest.mark.parametrize("name", SMALL)
def test_every_code_reads_as_in_torch(name):
    codes = every_code(name)
    raw = torch.from_numpy(codes.view(f"i{codes.itemsize}").copy()).view(getattr(torch, name))
    np.testing.assert_array_equal(FORMATS[name].decode(codes), raw.to(torch.float64).numpy())


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_the_wide_formats_read_as_numpy_does(name):
    values = np.array([0.0, -0.0, 1.5, -3e-45, 1e38, np.inf, -np.inf, np.nan], name)
    words = values.view(WORDS[FORMATS[name].bits])
    np.testing.assert_array_equal(FORMATS[name].decode(words), values.astype(np.float64))


@pytest.mark.parametrize("name", FORMATS)
def test_epsilon_is_the_distance_from_one_to_the_next_value(name):
    form = FORMATS[name]
    one = torch.ones((), dtype=torch.float64).to(getattr(torch, name)).view(getattr(torch, f"int{form.bits}")).item()
    assert form.decode(np.array([one, one + 1], WORDS[form.bits])).tolist() == [1.0, 1.0 + form.epsilon]


@pytest.fixture(scope="module")
def ranks():
    """By format: each number's place among all numbers of the format, counted by sorting them."""
    found = {}
    for name in SMALL:
        decoded = FORMATS[name].decode(every_code(name))
        numbers = np.unique(decoded[~np.isnan(decoded)])  # -0.0 and 0.0 are one number
        found[name] = decoded, np.searchsorted(numbers, decoded)
    return found


@pytest.mark.parametrize("name", SMALL)
def test_the_order_of_the_integers_is_the_order_of_the_values(ranks, name):
    decoded, rank = ranks[name]
    numbers = ~np.isnan(decoded)
    keys = ordered(every_code(name), FORMATS[name])[numbers]
    base = keys.min()
    np.testing.assert_array_equal((keys - base).astype(np.int64), rank[numbers])


@given(st.data())
def test_ulp_of_small_formats_against_counting(ranks, data):
    name = data.draw(st.sampled_from(SMALL))
    decoded, rank = ranks[name]
    code = st.integers(0, (1 << FORMATS[name].bits) - 1).filter(lambda code: not np.isnan(decoded[code]))
    pairs = data.draw(st.lists(st.tuples(code, code), min_size=1, max_size=6))
    words = [np.array(side, WORDS[FORMATS[name].bits]).tobytes() for side in zip(*pairs, strict=True)]
    found = compare_buffers(*(Buffer(name, (len(pairs),), side) for side in words))
    counted = [abs(int(rank[a]) - int(rank[b])) for a, b in pairs if a != b]
    if not counted:
        assert found is None
    else:
        assert found.ulp == max(counted)
        assert counted and found.ulp_at == next(
            place for place, (a, b) in enumerate(pairs) if a != b and abs(int(rank[a]) - int(rank[b])) == found.ulp
        )


@pytest.mark.parametrize("name", ["float32", "float64"])
@given(start=st.floats(-(2.0**99), 2.0**99, width=32), steps=st.integers(1, 40), upward=st.booleans())
def test_ulp_of_wide_formats_against_nextafter(name, start, steps, upward):
    here = there = np.dtype(name).type(start)
    for _ in range(steps):
        there = np.nextafter(there, np.dtype(name).type(np.inf if upward else -np.inf))
    a, b = (Buffer(name, (), np.array(value).tobytes()) for value in (here, there))
    assert compare_buffers(a, b).ulp == compare_buffers(b, a).ulp == steps


def test_from_one_end_of_float64_to_the_other():
    ends = (Buffer("float64", (), np.array(value).tobytes()) for value in (-np.inf, np.inf))
    assert compare_buffers(*ends).ulp == 2 * 0x7FF0000000000000
