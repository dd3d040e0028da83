from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spike_arrays import noisy

from detaudit.spike.deviation import (
    RESOLUTION,
    log_norms,
    micro_profile,
    noise_scale,
    peer_distance,
    residuals,
    screen,
    thresholds,
)
from detaudit.spike.order_statistics import iqr, median_last, median_of, t_quantile


@pytest.mark.parametrize(
    ("tail", "freedom", "value"),
    [
        (0.025, 4, 2.776445),
        (0.005, 10, 3.169273),
        (0.001, 30, 3.385185),
        (1e-6, 8, 12.110199),
        (0.05, 1, 6.313752),
        (0.05, 2, 2.919986),
    ],
)
def test_student_quantiles_against_published_tables(tail: float, freedom: float, value: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(value, rel=2e-3)


def test_many_degrees_of_freedom_are_normal() -> None:
    assert t_quantile(0.001, 1e6) == pytest.approx(NormalDist().inv_cdf(0.999))
    assert t_quantile(1e-30, 1e6) == 8.0


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-9, 0.4), st.floats(3, 500))
def test_quantiles_grow_with_rarity_and_shrink_with_evidence(tail: float, freedom: float) -> None:
    assert t_quantile(tail / 2, freedom) > t_quantile(tail, freedom) >= t_quantile(tail, freedom * 2) * 0.999


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.floats(-1e3, 1e3), st.just(math.nan)), min_size=1, max_size=30))
def test_medians_leave_gaps_out(values: list[float]) -> None:
    kept = [v for v in values if not math.isnan(v)]
    found = float(median_last(np.array(values)))
    if kept:
        assert found == pytest.approx(float(np.median(kept))) and median_of(np.array(values)) == pytest.approx(found)
    else:
        assert math.isnan(found) and math.isnan(median_of(np.array(values)))


def test_the_interquartile_range_needs_two_values() -> None:
    assert math.isnan(iqr(np.array([1.0]))) and iqr(np.array([0.0, 1, 2, 3, 4])) == 2


def test_values_below_the_resolution_all_look_alike() -> None:
    logs = log_norms(np.array([0.0, 1e-9, RESOLUTION, math.nan, math.inf]))
    assert logs[0] == logs[1] == logs[2] and np.isnan(logs[3:]).all()


@pytest.mark.parametrize(("steps", "size"), [(3, 4), (5, 1), (8, 1), (30, 4)])
def test_the_scale_is_that_of_the_noise(steps: int, size: int) -> None:
    scale = noise_scale(log_norms(noisy((8, 20, steps, size), noise=0.2)))
    assert scale is not None
    assert float(np.median(scale.sigma)) == pytest.approx(0.2, rel=0.25)


def test_a_trend_a_level_shift_and_a_spike_hardly_move_the_scale() -> None:
    clean = noisy((4, 10, 40, 1), noise=0.1)
    moved = clean * np.exp(0.05 * np.arange(40))[:, None]
    moved[:, :, 20:] *= 10
    moved[1, :, 7] *= 1000
    one, other = noise_scale(log_norms(clean)), noise_scale(log_norms(moved))
    assert one is not None and other is not None
    assert float(np.max(other.sigma / one.sigma)) < 1.6


def test_a_noisy_target_keeps_its_own_scale_in_a_long_run() -> None:
    values = noisy((4, 10, 60, 1), noise=0.05)
    values[:, 3] = noisy((4, 1, 60, 1), 5, 0.8)[:, 0]
    scale = noise_scale(log_norms(values))
    assert scale is not None and scale.sigma[3, 0] > 0.5 and np.median(scale.sigma) < 0.08


def test_an_event_on_all_ranks_of_a_short_run_does_not_become_its_own_scale() -> None:
    values = noisy((8, 14, 6, 16), noise=0.05)
    values[:, 6, 1, 12] *= 10
    values[:, :, 2:4] *= 5
    scale = noise_scale(log_norms(values))
    assert scale is not None and scale.sigma[6, 12] < 0.3


def test_one_step_uses_ranks_and_one_value_has_no_scale() -> None:
    assert noise_scale(log_norms(noisy((6, 5, 1, 1)))) is not None
    assert noise_scale(log_norms(noisy((1, 3, 1, 4)))) is not None
    assert noise_scale(log_norms(noisy((1, 5, 1, 1)))) is None


def test_the_micro_profile_is_the_usual_offset_and_zero_without_windows() -> None:
    logs = log_norms(noisy((4, 6, 5, 3), noise=0.01) * np.array([1.0, 2.0, 4.0]))
    assert micro_profile(logs).tolist() == pytest.approx([-math.log(2), 0, math.log(2)], abs=0.02)
    assert micro_profile(logs[:1, :, :2]).tolist() == [0, 0, 0]


def test_the_screen_proposes_the_spike_and_draws_the_heat() -> None:
    values = noisy((3, 4, 20, 1), noise=0.05)
    values[2, 1, 13] *= 30
    logs = log_norms(values)
    scale = noise_scale(logs)
    assert scale is not None
    index, heat = screen(logs, scale, 2.0)
    assert [tuple(int(axis[i]) for axis in index) for i in range(len(index[0]))] == [(2, 1, 13, 0)]
    assert heat.shape == (3, 20) and np.unravel_index(int(np.argmax(heat)), heat.shape) == (2, 13)


def index_of(*cells: tuple[int, int, int, int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(axis, dtype=np.int64) for axis in zip(*cells, strict=True))


def test_a_cell_is_judged_against_the_eight_steps_before_it_alone() -> None:
    values = np.ones((1, 1, 30, 1))
    values[0, 0, 10:] = 100
    found = residuals(log_norms(values), index_of((0, 0, 10, 0), (0, 0, 9, 0), (0, 0, 29, 0)))
    assert found.distance.tolist() == pytest.approx([math.log(100), 0, 0], abs=1e-5)
    assert found.count.tolist() == [8, 8, 8]


def test_early_cells_use_what_follows_and_say_what_came_before() -> None:
    values = np.ones((1, 1, 12, 1))
    values[0, 0, :2, 0] = [8, 4]
    found = residuals(log_norms(values), index_of((0, 0, 0, 0), (0, 0, 1, 0)))
    assert found.distance.tolist() == pytest.approx([math.log(8), math.log(4)], abs=1e-5)
    assert math.isnan(found.before[0]) and found.before[1] == pytest.approx(-math.log(2), abs=1e-5)


def test_with_little_of_its_own_a_cell_borrows_from_other_ranks() -> None:
    values = np.ones((9, 1, 1, 1))
    values[4] = 20
    found = residuals(log_norms(values), index_of((4, 0, 0, 0)))
    assert found.distance[0] == pytest.approx(math.log(20), abs=1e-5) and found.count[0] == 8


def test_thresholds_are_never_below_the_ratio_and_rise_with_the_number_of_cells() -> None:
    scale = noise_scale(log_norms(noisy((4, 6, 20, 1), noise=0.3)))
    assert scale is not None
    index, count = index_of((0, 0, 5, 0)), np.array([8])
    few, many = (float(thresholds(scale, index, count, n, 0.01, 2.0)[0]) for n in (10, 10**7))
    assert math.log(2) < few < many
    quiet = noise_scale(log_norms(noisy((4, 6, 20, 1), noise=0.001)))
    assert quiet is not None and thresholds(quiet, index, count, 10**6, 0.01, 2.0)[0] == pytest.approx(math.log(2))


def test_peers_that_moved_along_are_seen() -> None:
    values = noisy((5, 1, 20, 1), noise=0.02)
    values[:, 0, 12] *= 10
    assert peer_distance(log_norms(values), 0, 0, 12, 0) == pytest.approx(math.log(10), abs=0.1)
    assert abs(peer_distance(log_norms(values), 0, 0, 11, 0)) < 0.1
    assert math.isnan(peer_distance(log_norms(values[:1]), 0, 0, 12, 0))
