"""The exact interval, against values of scipy.stats.beta (1.17) and against scipy itself where it is installed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.explain.rates import in_words, interval

SCIPY = [
    (0, 1, 0.0, 0.975),
    (1, 1, 0.025, 1.0),
    (0, 3, 0.0, 0.7075982261787712),
    (1, 3, 0.0084037586596126, 0.9057006759497539),
    (2, 10, 0.0252107263268334, 0.5560954623076415),
    (18, 200, 0.05421425445609636, 0.13850820847382211),
    (200, 200, 0.9817246596448638, 1.0),
]


@pytest.mark.parametrize(("diverged", "pairs", "low", "high"), SCIPY)
def test_against_values_of_scipy(diverged, pairs, low, high):
    assert interval(diverged, pairs) == pytest.approx((low, high), abs=1e-12)


@settings(deadline=None)
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_against_scipy(rate, confidence):
    beta = pytest.importorskip("scipy.special").betaincinv
    diverged, pairs = rate
    tail = (1 - confidence) / 2
    low = beta(diverged, pairs - diverged + 1, tail) if diverged else 0.0
    high = beta(diverged + 1, pairs - diverged, 1 - tail) if diverged < pairs else 1.0
    assert interval(diverged, pairs, confidence) == pytest.approx((low, high), abs=1e-9)


@settings(deadline=None)
@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_equal_pairs_mirror_diverged_ones(rate):
    diverged, pairs = rate
    low, high = interval(diverged, pairs)
    assert low <= diverged / pairs <= high
    assert interval(pairs - diverged, pairs) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize("case", [(0, 0), (-1, 2), (3, 2), (1, 2, 0.0), (1, 2, 1.0)])
def test_no_rate(case):
    with pytest.raises(ValueError, match=r"no rate|not between"):
        interval(*case)


def test_words():
    assert in_words(0, 2) == "0 of 2 pairs diverged (95 % interval of the rate: 0 to 85 %)"
    assert in_words(1, 1) == "1 of 1 pair diverged (95 % interval of the rate: 2 to 100 %)"
