"""The collapse detector on made curves: hits, false alarms, and what it must refuse to say."""

import math
import random

import pytest

from detaudit.core.errors import UsageError
from detaudit.trainsect.collapse import CollapseKind, detect
from detaudit.trainsect.model import Evaluation


def curve(n=40, noise=0.02, seed=0, shape=lambda i, n: 1.0):
    rng = random.Random(seed)
    losses = [(0.5 + 2 * math.exp(-6 * i / n)) * math.exp(rng.gauss(0, noise)) * shape(i, n) for i in range(n)]
    return [Evaluation(10 * i, loss) for i, loss in enumerate(losses)]


def share(kind, shape, **settings):
    return sum(detect(curve(seed=s, shape=shape, **settings)).kind is kind for s in range(100)) / 100


def test_a_step_up_is_found_where_it_lies():
    for seed in range(100):
        found = detect(curve(seed=seed, shape=lambda i, n: 3.0 if i >= 25 else 1.0))
        assert found.kind is CollapseKind.COLLAPSE and found.onset == (240, 250) and found.bad_step == 390


@pytest.mark.parametrize(
    "shape",
    [
        lambda i, n: 2.0 if i >= n - 1 else 1.0,
        lambda i, n: 2.0 if i >= n - 2 else 1.0,
        lambda i, n: 1.0 if i < 20 else 1 + 0.15 * (i - 20),
        lambda i, n: math.nan if i >= 30 else 1.0,
        lambda i, n: math.inf if i >= 30 else 1.0,
        lambda i, n: 1e6 if i >= 20 else 1.0,
    ],
    ids=["last", "last two", "ramp", "nan tail", "inf tail", "violent"],
)
def test_collapses_are_found(shape):
    assert share(CollapseKind.COLLAPSE, shape) == 1.0


def test_a_healthy_curve_is_no_collapse():
    assert share(CollapseKind.NO_COLLAPSE, lambda i, n: 1.0) >= 0.99
    assert share(CollapseKind.COLLAPSE, lambda i, n: 1.0) <= 0.01


def test_a_spike_that_comes_back_is_transient():
    assert share(CollapseKind.TRANSIENT, lambda i, n: 4.0 if i in (20, 21) else 1.0) >= 0.99


def test_a_drop_of_the_learning_rate_is_no_collapse():
    assert share(CollapseKind.COLLAPSE, lambda i, n: 0.4 if i >= 20 else 1.0) == 0


def test_a_violent_collapse_does_not_hide_itself():
    """With the noise of the whole curve, an alternating collapse would raise its own threshold."""

    def wild(i, n):
        return (50.0 if i % 2 else 5.0) if i >= 12 else 1.0

    found = detect(curve(n=30, shape=wild))
    assert found.kind is CollapseKind.COLLAPSE and found.noise < 0.1


def test_a_small_rise_in_noise_is_uncertain_never_clean():
    found = [detect(curve(noise=0.06, seed=s, shape=lambda i, n: 1.28 if i >= 30 else 1.0)) for s in range(50)]
    risen = [each for each in found if math.log(1.15) < each.final_excess <= each.tau]
    assert risen and all(each.kind is CollapseKind.UNCERTAIN for each in risen)


def test_too_few_evaluations():
    assert detect(curve(n=7)).kind is CollapseKind.INSUFFICIENT
    assert detect([]).kind is CollapseKind.INSUFFICIENT


def test_nothing_finite_is_insufficient_not_clean():
    assert detect([Evaluation(i, math.nan) for i in range(20)]).kind is CollapseKind.INSUFFICIENT


def test_bad_from_the_first_evaluation_on_is_insufficient():
    losses = [1.0] + [5.0 + 0.01 * i for i in range(19)]
    assert detect([Evaluation(i, x) for i, x in enumerate(losses)]).kind is CollapseKind.INSUFFICIENT


def test_nan_is_recorded_as_not_finite():
    found = detect(curve(shape=lambda i, n: math.nan if i >= 38 else 1.0))
    assert found.nonfinite == (380, 390) and "not finite" in found.reason


def test_losses_below_zero():
    rng = random.Random(1)
    losses = [-1 - i / 20 + rng.gauss(0, 0.02) for i in range(30)] + [3.0] * 10
    found = detect([Evaluation(i, x) for i, x in enumerate(losses)])
    assert found.kind is CollapseKind.COLLAPSE and found.scale == "mad" and found.onset == (29, 30)


def test_healthy_is_relative_to_the_best_so_far():
    found = detect(curve(shape=lambda i, n: 3.0 if i >= 25 else 1.0))
    assert found.healthy_at(0) and found.healthy_at(240) and not found.healthy_at(250)
    assert found.healthy_at(245) is None


def test_evaluations_out_of_order_are_refused():
    with pytest.raises(UsageError, match="step 5 after step 10"):
        detect([Evaluation(10, 1.0), Evaluation(5, 1.0)])


def test_binseg_agrees():
    pytest.importorskip("ruptures", reason="ruptures is an extra")
    found = detect(curve(shape=lambda i, n: 3.0 if i >= 25 else 1.0))
    assert "agree" in found.cross_check
