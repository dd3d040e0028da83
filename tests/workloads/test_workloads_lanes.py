"""The sampler's PRNG: golden words, lane independence, range."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.workloads.lanes import LANES, LanePrng, lane_seeds

CPU = torch.device("cpu")


def xorshift32(word):
    """Marsaglia's 32-bit xorshift on plain integers."""
    word ^= word << 13 & 0xFFFFFFFF
    word ^= word >> 17
    return word ^ (word << 5 & 0xFFFFFFFF)


def test_marsaglia_s_own_first_word():
    assert xorshift32(2463534242) == 723471715


def test_golden_state():
    prng = LanePrng(0, CPU)
    prng.uniform(LANES)
    assert prng.state.tolist()[:4] == [1260073672, 2264774879, 1322782904, 3535391168]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 400))
def test_numbers_are_those_of_128_plain_generators(seed, count):
    prng = LanePrng(seed, CPU)
    words, drawn = lane_seeds(seed), []
    while len(drawn) < count:
        words = [xorshift32(word) for word in words]
        drawn += [(word >> 8) * 2.0**-24 for word in words]
    assert prng.uniform(count).tolist() == drawn[:count]
    assert prng.state.tolist() == words


def test_the_state_is_128_uint32_lanes_and_a_copy():
    prng = LanePrng(3, CPU)
    before = prng.state
    assert before.dtype == torch.uint32 and before.shape == (LANES,)
    kept = before.clone()
    prng.uniform(5)
    assert torch.equal(before, kept)


@given(st.integers(0, 2**64 - 1))
def test_no_lane_is_zero(seed):
    assert all(0 < word < 2**32 for word in lane_seeds(seed))


def test_seeds_and_lanes_differ():
    assert len({word for seed in range(50) for word in lane_seeds(seed)}) == 50 * LANES
    assert lane_seeds(1) != lane_seeds(1 + 2**32)


def test_numbers_are_uniform_in_zero_to_one():
    numbers = LanePrng(1, CPU).uniform(50 * LANES)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean().item() - 0.5) < 0.02


def test_reseeding_restarts():
    prng = LanePrng(1, CPU)
    first = prng.uniform(10)
    prng.reseed(1)
    assert torch.equal(prng.uniform(10), first)
