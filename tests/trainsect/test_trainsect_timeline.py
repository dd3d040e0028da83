"""The checkpoint search: right interval, few probes, and no silence about reversals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detaudit.trainsect.timeline import MONOTONE, NON_MONOTONE, bracket, most_probes


@given(st.integers(1, 300), st.data())
def test_a_monotone_predicate_is_bracketed_in_few_probes(count, data):
    boundary = data.draw(st.integers(0, count))
    points = [10 * i for i in range(count)]
    found = bracket(points, 10 * count, lambda step: step < 10 * boundary)
    assert found.start == (10 * boundary - 10 if boundary else None) and found.stop == 10 * boundary
    assert found.confidence == MONOTONE and len(found.probes) <= most_probes(count)


def test_both_endpoints_and_the_neighbours_are_probed():
    found = bracket(range(0, 640, 10), 640, lambda step: step <= 200)
    assert {0, 630, 190, 200, 210, 220} <= {step for step, _ in found.probes}


def test_a_reversal_is_reported_with_the_union():
    truth = {0: True, 10: True, 20: False, 30: True, 40: False, 50: False}
    found = bracket(list(truth), 60, truth.__getitem__)
    assert found.confidence == NON_MONOTONE and (20, 30) in found.reversals
    assert (found.start, found.stop) == (10, 40)


@pytest.mark.parametrize(("points", "horizon"), [([], 10), ([10, 20], 10)])
def test_no_checkpoint_before_the_horizon(points, horizon):
    assert bracket(points, horizon, lambda step: True).start is None


def test_one_checkpoint():
    assert bracket([0], 50, lambda step: True).stop == 50
