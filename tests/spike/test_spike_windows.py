from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spike_arrays import noisy
from spike_runs import accumulate

from detaudit.core.errors import UsageError
from detaudit.spike.contribution import contributions, lower_bounds
from detaudit.spike.windows import (
    CUMULATIVE,
    INDEPENDENT,
    UNDECIDED,
    common_moves,
    declared_window,
    find_accumulation,
    find_window,
    sawtooth_fit,
)


def flat(make_cube, window: int, steps: int, ranks: int = 4, targets: int = 8, seed: int = 0, mode: str = CUMULATIVE):  # type: ignore[no-untyped-def]
    g = noisy((ranks, targets, steps, window), seed)
    n = accumulate(g, np.random.default_rng(seed)) if mode == CUMULATIVE else g
    return make_cube(n.reshape(ranks, targets, steps * window, 1), micro_declared=False)


@pytest.mark.parametrize("window", [2, 3, 4, 6, 8, 10, 16])
@pytest.mark.parametrize("seed", range(3))
def test_the_sawtooth_shows_every_window_also_those_a_threefold_reset_cannot_see(
    make_cube, window: int, seed: int
) -> None:  # type: ignore[no-untyped-def]
    found = find_window(flat(make_cube, window, 6, seed=seed), (), True)
    assert (found.size, found.evidence) == (window, "heuristic")
    assert found.starts == tuple(range(0, 6 * window, window)) and 0.5 < found.confidence < 1


@pytest.mark.parametrize("seed", range(20))
def test_a_flat_series_without_a_pattern_has_no_window_and_asks(make_cube, seed: int) -> None:  # type: ignore[no-untyped-def]
    found = find_window(flat(make_cube, 4, 6, seed=seed, mode=INDEPENDENT), (), True)
    assert (found.size, found.evidence, found.starts) == (1, "none", ())
    assert "--window" in found.question and "cannot be told apart" in found.note


def test_one_ranks_spike_and_a_jump_of_all_do_not_hide_the_window(make_cube) -> None:  # type: ignore[no-untyped-def]
    cube = flat(make_cube, 4, 8)
    cube.values[1, :, 9:12] *= 50
    cube.values[:, :, 16:] *= 5
    assert find_window(cube, (), True).size == 4


def test_recorded_reduced_steps_come_before_any_heuristic(make_cube) -> None:  # type: ignore[no-untyped-def]
    cube = flat(make_cube, 3, 4)
    found = find_window(cube, (0, 3, 6, 9), True)
    assert (found.evidence, found.size, found.starts, found.confidence) == ("grad_reduced", 3, (0, 3, 6, 9), 1.0)
    uneven = find_window(cube, (0, 5, 6), True)
    assert (uneven.size, uneven.starts) == (6, (0, 5, 6))
    assert cube.refold(uneven.starts).present[0, 0].tolist() == [[True] * 5 + [False], [True] + [False] * 5, [True] * 6]


def test_reduced_at_every_step_means_step_level(make_cube) -> None:  # type: ignore[no-untyped-def]
    cube = flat(make_cube, 3, 4)
    assert find_window(cube, cube.steps, True).size == 1


def test_a_declared_micro_step_column_decides(make_cube) -> None:  # type: ignore[no-untyped-def]
    found = find_window(make_cube(noisy((2, 2, 3, 5))), (0,), True)
    assert (found.size, found.evidence, found.starts) == (5, "declared", ())


def test_steps_of_csv_without_micro_steps_are_steps(make_cube) -> None:  # type: ignore[no-untyped-def]
    found = find_window(flat(make_cube, 4, 6), (), False)
    assert (found.size, found.question) == (1, "")


@pytest.mark.parametrize("size", [0, 13])
def test_an_impossible_declared_window_is_refused(make_cube, size: int) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="does not fit 12"):
        declared_window(flat(make_cube, 3, 4), size)


def test_a_declared_window_folds(make_cube) -> None:  # type: ignore[no-untyped-def]
    cube = flat(make_cube, 3, 4)
    window = declared_window(cube, 3)
    folded = cube.refold(window.starts)
    assert folded.values.shape == (4, 8, 4, 3)
    assert np.array_equal(folded.values.reshape(4, 8, 12, 1), cube.values)


def test_moves_are_medians_over_ranks_and_targets(make_cube) -> None:  # type: ignore[no-untyped-def]
    cube = make_cube(np.array([1, 2, 8.0]).reshape(1, 1, 3, 1) * np.ones((3, 2, 1, 1)))
    cube.values[0] = math.nan
    assert common_moves(cube.values[..., 0]).tolist() == pytest.approx([math.log(2), math.log(4)])


def test_a_pure_sawtooth_is_explained_wholly_and_its_multiple_is_not() -> None:
    moves = np.log(np.tile(np.sqrt(np.arange(1, 5)), 6))
    moves = np.diff(moves)
    assert sawtooth_fit(moves, 4) == pytest.approx(1)
    assert max(sawtooth_fit(moves, size) for size in (2, 3, 5, 8, 12)) < 0.7


@pytest.mark.parametrize("window", [2, 3, 8])
@pytest.mark.parametrize("mode", [CUMULATIVE, INDEPENDENT])
def test_cumulative_and_independent_are_told_apart(make_cube, window: int, mode: str) -> None:  # type: ignore[no-untyped-def]
    g = noisy((3, 6, 5, window))
    cube = make_cube(accumulate(g, np.random.default_rng(1)) if mode == CUMULATIVE else g)
    assert find_accumulation(cube, find_window(cube, (), False)).mode == mode


def test_backends_of_the_facts_ddp_accumulates_fsdp2_does_not(make_cube) -> None:  # type: ignore[no-untyped-def]
    for series, mode in (([0.855, 1.493, 1.988], CUMULATIVE), ([0.855, 0.747, 0.583], INDEPENDENT)):
        cube = make_cube(np.array(series).reshape(1, 1, 1, 3) * np.ones((1, 1, 12, 1)))
        assert find_accumulation(cube, find_window(cube, (), False)).mode == mode


def test_too_little_or_contradicting_evidence_is_a_question(make_cube) -> None:  # type: ignore[no-untyped-def]
    one = make_cube(np.array([1.0, 1.2]).reshape(1, 1, 1, 2))
    spiked = make_cube(np.array([[1, 1.1, 50], [1, 0.9, 50], [1, 1.05, 48]]).reshape(1, 3, 1, 3))
    for cube in (one, spiked):
        found = find_accumulation(cube, find_window(cube, (), False))
        assert found.mode == UNDECIDED and "--accumulation" in found.question


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 16))
def test_a_contribution_lies_between_the_bounds_that_norms_allow(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(0, np.exp(rng.normal(0, 2, (1, size, 1))), (3, size, 5))
    sums = np.cumsum(vectors, axis=1)
    norms = np.linalg.norm(sums, axis=2)
    added = contributions(norms)
    slack = 1e-9 * norms[:, 1:]
    assert np.all(added[:, 1:] >= np.abs(np.diff(norms)) - slack)
    assert np.all(added[:, 1:] <= norms[:, 1:] + norms[:, :-1] + slack)
    index = tuple(np.broadcast_arrays(np.arange(3)[:, None], np.arange(size)[None, :]))
    low = lower_bounds(norms, index)
    assert np.all(low <= np.linalg.norm(vectors, axis=2) + 1e-9 * norms)


def test_contributions_of_orthogonal_gradients_are_exact_and_a_fall_is_evidence() -> None:
    assert contributions(np.sqrt([1.0, 5.0, 14.0])).tolist() == pytest.approx([1, 2, 3])
    assert contributions(np.array([5.0, 2.0])).tolist() == pytest.approx([5, 3])


def test_nothing_is_known_behind_a_sum_that_is_no_number() -> None:
    added = contributions(np.array([1.0, math.inf, math.inf, 5.0]))
    assert added[1] == math.inf and np.isnan(added[2:]).all()
