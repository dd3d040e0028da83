"""Two buffers: count, place, values, region, permutation, chunk, and whether it is rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from detaudit.compare.tensors import CHUNK, INTEGERS, Buffer, compare_buffers
from detaudit.core.buffers import Nearness, Region
from detaudit.core.errors import NotComparableError
from detaudit.digest.spec import CHUNK as DIGEST_CHUNK
from detaudit.digest.spec import DTYPE_CODES
from detaudit.dump.manifest import ITEM_SIZES


def buffer(values, dtype="float32"):
    values = np.asarray(values, dtype)
    return Buffer(dtype, values.shape, values.tobytes())


def changed(values, places, by=1.0, dtype="float32"):
    """The difference between values and values with `by` added at flat places."""
    left = np.array(values, dtype)
    right = left.copy()
    right.reshape(-1)[list(places)] += np.dtype(dtype).type(by)
    return compare_buffers(buffer(left, dtype), buffer(right, dtype))


arrays = hnp.arrays(
    st.sampled_from(["uint8", "int16", "float32", "float64", "complex64", "complex128"]),
    hnp.array_shapes(min_dims=0, max_dims=3, max_side=6),
)


@given(arrays)
def test_a_buffer_against_itself_is_nothing(values):
    same = Buffer(str(values.dtype), values.shape, values.tobytes())
    assert compare_buffers(same, same) is None


@given(st.data())
def test_reversing_the_sides_reverses_the_values_only(data):
    left = data.draw(arrays)
    right = data.draw(hnp.arrays(left.dtype, left.shape))
    a, b = (Buffer(str(left.dtype), left.shape, side.tobytes()) for side in (left, right))
    forth, back = compare_buffers(a, b), compare_buffers(b, a)
    if forth is None:
        assert back is None and a.data == b.data
    else:
        assert (forth.value_a, forth.value_b) == (back.value_b, back.value_a)
        swapped = {**back.__dict__, "value_a": back.value_b, "value_b": back.value_a}
        assert forth.__dict__ == swapped


@given(st.data())
def test_counts_against_a_loop(data):
    left = data.draw(hnp.arrays("int16", st.integers(1, 30), elements=st.integers(0, 3)))
    right = data.draw(hnp.arrays("int16", left.shape, elements=st.integers(0, 3)))
    found = compare_buffers(buffer(left, "int16"), buffer(right, "int16"))
    unequal = [place for place in range(len(left)) if left[place] != right[place]]
    if not unequal:
        assert found is None
        return
    assert (found.unequal, found.first, found.last) == (len(unequal), unequal[0], unequal[-1])
    assert (found.value_a, found.value_b) == (str(left[unequal[0]]), str(right[unequal[0]]))
    assert found.largest == max(abs(int(left[place]) - int(right[place])) for place in unequal)
    assert found.permutation == (sorted(left.tolist()) == sorted(right.tolist()))
    assert found.ulp is None and found.nearness is Nearness.EXACT


class TestRegion:
    GRID = np.ones((4, 5))

    @pytest.mark.parametrize(
        ("places", "region", "rows"),
        [
            ([7], Region.ONE, None),
            ([3, 4, 5, 6], Region.CONTIGUOUS, None),
            ([0, 7], Region.SCATTERED, None),
            (range(5, 10), Region.ROWS, (1, 1)),
            ([*range(5), *range(10, 15)], Region.ROWS, (0, 2)),
            (range(20), Region.ALL, None),
            (range(1, 20), Region.CONTIGUOUS, None),
        ],
    )
    def test_of_a_grid(self, places, region, rows):
        found = changed(self.GRID, places)
        assert (found.region, found.rows, found.unequal) == (region, rows, len(list(places)))

    def test_a_column_is_no_row(self):
        assert changed(np.ones((4, 1)), [1, 2]).region is Region.CONTIGUOUS

    def test_a_scalar(self):
        assert changed(1.0, [0]).region is Region.ONE


class TestPermutation:
    def test_the_same_elements_in_another_order(self):
        values = np.arange(50, dtype="float32")
        found = compare_buffers(buffer(values), buffer(values[::-1]))
        assert found.permutation and found.unequal == 50

    def test_equal_as_a_set_is_not_enough(self):
        assert not compare_buffers(buffer([1, 1, 2]), buffer([1, 2, 2])).permutation

    def test_bits_count_not_values(self):
        assert not compare_buffers(buffer([0.0, 1.0]), buffer([1.0, -0.0])).permutation

    @pytest.mark.parametrize("dtype", ["complex64", "complex128"])
    def test_complex_elements_move_whole(self, dtype):
        values = np.array([1 + 2j, 3 + 4j], dtype)
        parts = np.array([1 + 4j, 3 + 2j], dtype)
        assert compare_buffers(buffer(values, dtype), buffer(values[::-1], dtype)).permutation
        assert not compare_buffers(buffer(values, dtype), buffer(parts, dtype)).permutation


class TestChunk:
    def test_is_the_digests_own(self):
        assert CHUNK == DIGEST_CHUNK

    @pytest.mark.parametrize(("place", "chunk"), [(0, 0), (16383, 0), (16384, 1), (40000, 2)])
    def test_first_differing(self, place, chunk):
        found = changed(np.zeros(40001), [place])
        assert (found.chunk, found.chunks) == (chunk, 3)


class TestNearness:
    @given(st.lists(st.floats(1, 2, width=32), min_size=300, max_size=300), st.randoms(use_true_random=False))
    def test_sums_in_another_order_are_rounding(self, terms, chance):
        shuffled = list(terms)
        chance.shuffle(shuffled)
        sums = [np.cumsum(np.array(side, "float32"))[-1:] for side in (terms, shuffled)]
        found = compare_buffers(buffer(sums[0]), buffer(sums[1]))
        assert found is None or found.nearness is Nearness.ROUNDING

    def test_the_seed_s_roots_are_far_apart(self):
        found = compare_buffers(buffer([1.0, 592.7081298828125]), buffer([1.0, 695.7353515625]))
        assert found.nearness is Nearness.FAR and found.first == 1
        assert (found.value_a, found.value_b) == ("592.7081298828125", "695.7353515625")

    @pytest.mark.parametrize("cancels", [True, False])
    def test_a_small_difference_beside_a_large_element(self, cancels):
        a, b = buffer([1e4, 1e-3]), buffer([1e4, 2e-3])
        found = compare_buffers(a, b, cancels)
        assert found.nearness is (Nearness.UNCLEAR if cancels else Nearness.FAR)

    def test_one_far_pair_outweighs_many_near_ones(self):
        values = np.linspace(1, 2, 100).astype("float32")
        right = np.nextafter(values, np.float32(9))
        assert compare_buffers(buffer(values), buffer(right)).nearness is Nearness.ROUNDING
        right[50] *= 1.5
        assert compare_buffers(buffer(values), buffer(right)).nearness is Nearness.FAR

    def test_another_sign_is_not_rounding(self):
        assert compare_buffers(buffer([1.0]), buffer([-1.0])).nearness is Nearness.FAR

    @pytest.mark.parametrize("other", [np.nan, np.inf, -np.inf])
    def test_a_number_that_became_none_is_far(self, other):
        found = compare_buffers(buffer([1.0, 2.0]), buffer([1.0, other]))
        assert found.nearness is Nearness.FAR and found.nonfinite == 1 and found.largest is None
        assert (found.ulp is None) == bool(np.isnan(other))

    def test_zeros_of_two_signs_and_nans_of_two_payloads_are_the_same_values(self):
        payloads = np.array([0x7FC00000, 0x7FC00001], np.uint32).view("float32")
        found = compare_buffers(buffer([0.0, payloads[0]]), buffer([-0.0, payloads[1]]))
        assert found.unequal == 2 and found.nearness is Nearness.SAME and found.ulp == 0

    def test_the_largest_numbers_do_not_overflow(self):
        top = np.finfo("float64").max
        found = compare_buffers(buffer([top], "float64"), buffer([np.nextafter(top, 0)], "float64"))
        assert found.nearness is Nearness.ROUNDING and found.ulp == 1

    def test_nan_equals_the_same_nan(self):
        assert compare_buffers(buffer([np.nan]), buffer([np.nan])) is None


def number(shown):
    """The number behind a printed value."""
    return complex(*map(float, shown[1:-1].split(","))) if shown.startswith("(") else float(shown)


class TestTypes:
    @pytest.mark.parametrize("name", sorted(ITEM_SIZES))
    def test_every_dtype_that_can_be_dumped_can_be_compared(self, name):
        """Against torch's reading of the first value, where torch has the type."""
        size = ITEM_SIZES[name]
        a, b = bytes(3 * size), bytes(size) + b"\x01" * size + bytes(size)
        found = compare_buffers(Buffer(name, (3,), a), Buffer(name, (3,), b))
        assert (found.unequal, found.first) == (1, 1)
        if name not in ("value", "float4_e2m1fn_x2"):
            raw = torch.frombuffer(bytearray(b), dtype=torch.uint8).view(getattr(torch, name))[1]
            wide = raw.to(torch.complex128 if raw.is_complex() else torch.float64)
            assert number(found.value_b) == wide.item()

    def test_the_sizes_are_torch_s_and_no_composite_is_there(self):
        for name, size in ITEM_SIZES.items():
            assert name in DTYPE_CODES
            assert name == "value" or getattr(torch, name).itemsize == size
        assert {name for name in DTYPE_CODES if not name.startswith("sparse")} == set(ITEM_SIZES)

    def test_complex_ulp_is_by_component_and_its_place_by_element(self):
        values = np.array([1 + 1j, 1 + 1j], "complex64")
        moved = values.copy()
        moved.imag[1] = np.nextafter(np.float32(1), np.float32(2))
        found = compare_buffers(buffer(values, "complex64"), buffer(moved, "complex64"))
        assert (found.unequal, found.first, found.ulp, found.ulp_at) == (1, 1, 1, 1)

    @pytest.mark.parametrize("dtype", sorted(set(INTEGERS) - {"bool", "value"}))
    def test_the_ends_of_an_integer_type(self, dtype):
        ends = np.iinfo(dtype)
        found = compare_buffers(buffer([ends.min], dtype), buffer([ends.max], dtype))
        assert found.largest == float(int(ends.max) - int(ends.min))
        assert (found.value_a, found.value_b) == (str(ends.min), str(ends.max))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Buffer("float32", (3,), bytes(12)), "float32[4] in A, float32[3] in B"),
        (Buffer("float32", (2, 2), bytes(16)), "float32[2, 2] in B"),
        (Buffer("int32", (4,), bytes(16)), "int32[4] in B"),
    ],
)
def test_another_dtype_or_shape_is_not_comparable(other, words):
    with pytest.raises(NotComparableError, match=words.replace("[", r"\[").replace("]", r"\]")) as caught:
        compare_buffers(Buffer("float32", (4,), bytes(16)), other)
    assert caught.value.exit_code == 3


def test_an_empty_buffer():
    assert compare_buffers(Buffer("float32", (0, 3), b""), Buffer("float32", (0, 3), b"")) is None
