"""The random set: exact coordinates whenever the data determine them, nothing where they do not.

Labels come from amplitude and noise before detection (`spike_runs.truth`). The full set, with the rates of the rules as
the seed words them, is printed by `benchmarks/spike.py truth`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import spike_seed_rules
from spike_runs import CLEAN, DETERMINED, FREE, INSUFFICIENT, Spec, random_spec, truth
from spike_scoring import EXACT, WITHHELD, answer, failed, score, tabulate


@pytest.mark.parametrize("seed", range(40))
def test_a_random_case_keeps_its_promise(tmp_path: Path, seed: int) -> None:
    spec = random_spec(seed)
    label = truth(spec)
    scored = score(spec, label, answer(spec, tmp_path))
    if label.label != FREE:
        assert not failed(label.label, scored.outcome), (label, scored)


@pytest.mark.slow
def test_the_whole_random_set(tmp_path: Path) -> None:
    scores = []
    for seed in range(40, 540):
        spec = random_spec(seed)
        label = truth(spec)
        scored = score(spec, label, answer(spec, tmp_path / str(seed)))
        scores.append((label.label, scored.outcome))
        if label.label in (DETERMINED, INSUFFICIENT):
            assert not failed(label.label, scored.outcome), (seed, label, scored)
    table = tabulate(scores)
    assert table[DETERMINED][EXACT] > 250
    assert table[CLEAN]["false alarm"] <= 4, "one per cent of about a hundred runs, at a probability of 0.99"


@pytest.mark.parametrize("layout", ["csv", "csv_v2", "trend_flat", "trend_micro"])
@pytest.mark.parametrize("window", [1, 2, 3, 8])
def test_every_layout_and_window(tmp_path: Path, layout: str, window: int) -> None:
    spec = Spec(layout=layout, window=window, micro=window - 1, steps=7)
    label = truth(spec)
    assert label.label == DETERMINED
    assert score(spec, label, answer(spec, tmp_path)).outcome == EXACT


@pytest.mark.parametrize(
    "change",
    [
        {"value": "nan"},
        {"value": "inf"},
        {"restart": True},
        {"tiny_targets": 2},
        {"pp_local": True},
        {"slope": 0.02},
        {"common_noise": 0.1},
        {"gain": 5.0},
        {"gain": 2.0, "gain_steps": 2},
        {"factor": 10.0},
        {"factor": 1000.0},
        {"mode": "independent"},
        {"missing": (3,)},
        {"target": 0, "decay": 0.99},
        {"step": 0},
        {"step": 7},
        {"micro": 0},
        {"ranks": 2},
        {"ranks": 1, "rank": 0},
    ],
    ids=str,
)
def test_every_variant_of_the_recipe(tmp_path: Path, change: dict[str, object]) -> None:
    spec = Spec(**{"steps": 8, **change})  # type: ignore[arg-type]
    label = truth(spec)
    assert label.label == DETERMINED
    scored = score(spec, label, answer(spec, tmp_path))
    assert scored.outcome == EXACT, scored


@pytest.mark.parametrize("gain", [1.0, 5.0])
def test_a_spike_on_a_rank_that_was_not_recorded_is_never_pinned_on_another(tmp_path: Path, gain: float) -> None:
    spec = Spec(rank=2, missing=(2,), gain=gain)
    label = truth(spec)
    assert label.label == INSUFFICIENT
    assert score(spec, label, answer(spec, tmp_path)).outcome == WITHHELD


def test_labels_do_not_depend_on_detection() -> None:
    weak = truth(Spec(factor=1.5))
    assert weak.label == FREE and weak.margin < 0
    assert truth(Spec(scope="none")).label == CLEAN
    assert truth(Spec(scope="all", step=0)).label == FREE, "a cold start looks the same"


def test_the_seeds_rules_as_worded_go_wrong_where_ours_do_not() -> None:
    """Facts 2: a spike of all ranks is blamed on the quiet step before, small windows are never expanded."""
    everyone = Spec(scope="all", target=0, seed=1, window=4, steps=8, micro=3)
    assert spike_seed_rules.score(everyone, truth(everyone)) != EXACT
    pair = Spec(window=2, micro=1)
    assert spike_seed_rules.score(pair, truth(pair)) != EXACT
    textbook = Spec(ranks=8, window=16, steps=6, rank=5, step=3, micro=7, gain=3, target=0, decay=0.1)
    assert spike_seed_rules.score(textbook, truth(textbook)) == EXACT, "the case the rules were made for"
