"""Stats beside a digest, against loops; independent of threads, layout and numpy's error state."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
import warnings

import digest_reference as reference
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.core.errors import UnsupportedLeafError
from detaudit.core.model import Stats
from detaudit.digest.host import dtype_name, tensor_digest
from detaudit.digest.stats import BLOCK, EMPTY, SEGMENT, bag_hash, leaf_stats, raw_bytes, sum_of_squares, tensor_stats

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
DTYPES = sorted(reference.WIDTHS)


def expected(tensor):
    return Stats(*reference.stats(dtype_name(tensor.dtype), raw_bytes(tensor)))


def filled(dtype, count, seed=0):
    raw = np.random.default_rng(seed).integers(0, 256, count * getattr(torch, dtype).itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(getattr(torch, dtype)) if count else torch.zeros(0, dtype=getattr(torch, dtype))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(0, 700), st.integers(0, 2**32 - 1))
def test_any_dtype_against_loops(dtype, count, seed):
    tensor = filled(dtype, count, seed)
    assert tensor_stats(tensor) == expected(tensor)


@pytest.mark.parametrize("count", [SEGMENT - 1, SEGMENT, SEGMENT + 257, 2 * SEGMENT + 3])
def test_segment_boundaries(count):
    tensor = torch.from_numpy(np.random.default_rng(count).standard_normal(count).astype(np.float32))
    assert tensor_stats(tensor) == expected(tensor)


def test_block_boundaries():
    numbers = np.random.default_rng(1).standard_normal(BLOCK + SEGMENT + 5)
    numbers[[0, BLOCK - 1, BLOCK]] = np.nan, np.inf, -np.inf
    finite = np.where(np.isfinite(numbers), numbers, 0.0)
    stats = tensor_stats(torch.from_numpy(numbers.copy()))
    assert stats.sumsq == sum_of_squares(finite) == reference.sum_of_squares(finite.tolist())
    assert (stats.low, stats.high, stats.nans, stats.infs) == (finite.min(), finite.max(), 1, 2)
    assert stats.bag == bag_hash(numbers.view(np.uint64))


@pytest.mark.parametrize("threads", [1, 2])
def test_thread_count_does_not_matter(threads):
    before = torch.get_num_threads()
    tensor = torch.from_numpy(np.random.default_rng(2).standard_normal(200_000).astype(np.float32))
    try:
        torch.set_num_threads(threads)
        assert tensor_stats(tensor).sumsq == reference.sum_of_squares(tensor.tolist())
    finally:
        torch.set_num_threads(before)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32), min_size=2, max_size=300), st.randoms(use_true_random=False))
def test_a_permutation_keeps_the_bag_and_changes_the_digest(values, chance):
    shuffled = values[:]
    chance.shuffle(shuffled)
    a, b = torch.tensor(values), torch.tensor(shuffled)
    left, right = tensor_stats(a), tensor_stats(b)
    assert left.bag == right.bag
    assert (left.low, left.high, left.nans, left.infs) == (right.low, right.high, right.nans, right.infs)
    assert (tensor_digest(a) == tensor_digest(b)) == (raw_bytes(a) == raw_bytes(b))


def test_the_seeds_own_trap():
    """A sum of squares alone is blind to signs and order; the digest and the bag tell which it was."""
    values = torch.arange(1.0, 100.0)
    flipped, swapped = values.clone(), values.clone()
    flipped[3] *= -1
    swapped[[3, 4]] = values[[4, 3]]
    assert tensor_stats(values).sumsq == tensor_stats(flipped).sumsq == tensor_stats(swapped).sumsq
    assert tensor_stats(values).bag == tensor_stats(swapped).bag != tensor_stats(flipped).bag
    assert len({tensor_digest(values), tensor_digest(flipped), tensor_digest(swapped)}) == 3


def test_bag_counts_how_often():
    assert tensor_stats(torch.tensor([1.0, 1.0])).bag != tensor_stats(torch.tensor([2.0, 2.0])).bag
    assert tensor_stats(torch.tensor([1.0])).bag != tensor_stats(torch.tensor([1.0, 1.0])).bag
    assert tensor_stats(torch.tensor([0.0])).bag != tensor_stats(torch.tensor([-0.0])).bag


def test_nan_and_inf_are_counted_and_left_out():
    tensor = torch.tensor([math.nan, 3.0, math.inf, -math.inf, -4.0, math.nan])
    stats = tensor_stats(tensor)
    assert (stats.sumsq, stats.low, stats.high, stats.nans, stats.infs) == (25.0, -4.0, 3.0, 2, 2)
    alone = tensor_stats(torch.tensor([math.nan, math.inf]))
    assert (alone.sumsq, alone.low, alone.high, alone.nans, alone.infs) == (0.0, 0.0, 0.0, 1, 1)


def test_negative_zero_does_not_reach_the_extremes():
    for values in ([-0.0], [0.0, -0.0], [-0.0, 0.0]):
        stats = tensor_stats(torch.tensor(values))
        assert math.copysign(1, stats.low) == math.copysign(1, stats.high) == 1
        assert math.copysign(1, stats.sumsq) == 1


def test_overflow_is_infinite_and_silent_under_any_error_state():
    tensor = torch.tensor([1e200, 1e200], dtype=torch.float64)
    with np.errstate(all="raise"):
        assert tensor_stats(tensor).sumsq == math.inf
    assert tensor_stats(tensor).infs == 0
    tiny = tensor_stats(torch.tensor([1e-200], dtype=torch.float64))
    assert (tiny.sumsq, tiny.low) == (0.0, 1e-200)


def test_bool_counts_as_zero_and_one_whatever_its_byte():
    tensor = torch.tensor([0, 1, 2, 255] * 50, dtype=torch.uint8).view(torch.bool)
    stats = tensor_stats(tensor)
    assert (stats.sumsq, stats.low, stats.high) == (150.0, 0.0, 1.0)
    assert stats.bag != tensor_stats(tensor.view(torch.uint8).bool()).bag


def test_layouts_of_the_same_values_agree():
    tensor = torch.randn(6, 10)
    for other in (tensor.t().contiguous().t(), tensor.clone().requires_grad_(), tensor.reshape(60)):
        assert tensor_stats(other) == tensor_stats(tensor)
    lazy = torch.randn(5, dtype=torch.complex64).conj()
    assert tensor_stats(lazy) == expected(lazy.resolve_conj())
    assert tensor_stats(lazy.imag) == tensor_stats(lazy.imag.clone())


def test_sparse_tensors_report_their_values():
    dense = torch.tensor([[0.0, 2.0], [-3.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()):
            stats = leaf_stats(sparse)
            assert (stats.sumsq, stats.low, stats.high) == (13.0, -3.0, 2.0)


NUMBERS = [
    True,
    3,
    -2.5,
    np.float32(1.5),
    np.arange(4),
    np.arange(4, dtype=">f4"),
    np.arange(4)[::2],
    2**70,
    -(10**400),
]
NUMBERS += [np.longdouble(1.5), np.array([1 + 2j]), np.array(["x"]), "text", None, object(), [1.0]]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: "object" if type(value) is object else repr(value))
def test_leaf_stats_of_plain_values(value):
    stats = leaf_stats(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc" and value.dtype.itemsize <= 8:
        assert stats.sumsq == float((np.abs(value.astype(np.float64)) ** 2).sum())
    elif isinstance(value, bool | int | float) and abs(value) < 2**1000:
        assert stats.sumsq == float(value) ** 2


def test_what_is_no_array_of_numbers_has_empty_stats():
    for value in ("text", None, [1.0], -(10**400), np.array(["x"]), torch.empty(3, device="meta")):
        assert leaf_stats(value) is EMPTY
    with pytest.raises(UnsupportedLeafError):
        tensor_stats(torch.empty(3, device="meta"))
    assert tensor_stats(torch.zeros(0, 3)) is EMPTY


def test_the_users_tensor_is_left_alone():
    tensor = torch.randn(100, requires_grad=True)
    state = torch.get_rng_state()
    tensor_stats(tensor)
    assert torch.equal(state, torch.get_rng_state())
    assert tensor.untyped_storage().resizable() and tensor.grad_fn is None


def test_read_only_arrays_pass():
    array = np.arange(5.0)
    array.setflags(write=False)
    assert leaf_stats(array).sumsq == 30.0


def test_memory_does_not_grow_with_the_leaf():
    """numpy reports to tracemalloc; what torch holds is one block of float64."""
    tensor = torch.zeros(6 * BLOCK, dtype=torch.uint8)
    tracemalloc.start()
    try:
        tensor_stats(tensor)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * BLOCK


def test_stats_are_plain_python_numbers():
    """They go through struct and JSON: numpy scalars would not."""
    for value in dataclasses.astuple(tensor_stats(torch.tensor([1.0, math.nan, math.inf]))):
        assert type(value) in (int, float)
