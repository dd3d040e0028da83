"""The threshold at B and the substitutes: collapsed, too close to say, and what takes the place of a suspect."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detaudit.core.errors import InconclusiveError
from detaudit.trainsect.collapse import detect
from detaudit.trainsect.filling import Filling, candidates, shard_ids, shards_in, substitute
from detaudit.trainsect.judge import threshold_of
from detaudit.trainsect.model import Evaluation
from detaudit.trainsect.shards import permuted
from tests.trainsect.trainsect_rig import record
from tests.trainsect.trainsect_toys import POOL, Single, order, shard_of


def threshold(bad, best=1.0):
    losses = [best + 0.001 * (i % 2) for i in range(12)] + list(bad)
    evaluations = [Evaluation(i, loss) for i, loss in enumerate(losses)]
    return threshold_of(detect(evaluations), evaluations)


def test_the_threshold_is_the_geometric_midpoint():
    found = threshold([4.0, 4.0])
    assert found.value == pytest.approx(2.0) and found.horizon == 13
    assert found.judge(2.5).collapsed and not found.judge(1.5).collapsed


@pytest.mark.parametrize(("loss", "uncertain"), [(2.0, True), (2.19, True), (2.21, False), (1.83, True), (1.81, False)])
def test_within_ten_percent_is_uncertain(loss, uncertain):
    assert threshold([4.0, 4.0]).judge(loss).uncertain is uncertain


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_not_finite_is_collapsed_and_never_enters_the_threshold(loss):
    found = threshold([4.0, loss])
    assert found.value == pytest.approx(2.0) and found.judge(loss).collapsed
    assert math.isfinite(threshold([loss, loss]).value)


def test_healthy_and_collapsed_too_close():
    with pytest.raises(InconclusiveError, match="less than 21 %"):
        threshold([1.19, 1.19])


FILLING = Filling("f", tuple(range(100, 120)), 1)


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 2))))
def test_a_substitute_does_not_depend_on_what_else_is_substituted(positions):
    recorded = dict.fromkeys(range(5), ((1, 2, 3), (4, 5, 6)))
    found = substitute(recorded, FILLING, positions, ())
    whole = {step: FILLING.step(step, recorded[step]) for step in recorded}
    for step, rows in found.items():
        assert [len(row) for row in rows] == [3, 3]
        for m, row in enumerate(rows):
            for p, sample in enumerate(row):
                expected = whole if (step, m, p) in positions else recorded
                assert sample == expected[step][m][p]
    assert set(found) == {step for step, _, _ in positions}


def test_permutations_keep_the_samples_and_the_sizes():
    batches = {3: ((1, 2), (3,)), 5: ((4, 5), (6,))}
    found = [permuted(batches, k) for k in range(3)]
    assert all(sorted(i for rows in each.values() for row in rows for i in row) == [1, 2, 3, 4, 5, 6] for each in found)
    assert all([len(r) for r in each[3]] == [2, 1] for each in found) and found[0] != found[1]


def test_what_came_before_the_checkpoint_is_tried_first():
    run, _ = record(Single(), order(bad={47: [23]}), shard_of=shard_of, pool=POOL)
    found = candidates(run, 40, shard_ids(run))
    assert "before step 40" in found[0].name and 23 not in found[0].ids
    assert any(each.name == "shard-0 alone" for each in found) and "whole pool" in found[-1].name
    assert all("before" not in each.name for each in candidates(run, 0, shard_ids(run)))
    places = shards_in(run, {47: run.steps[47].ids})
    assert (47, 0, 0) in places["shard-2"] and sum(map(len, places.values())) == 4
