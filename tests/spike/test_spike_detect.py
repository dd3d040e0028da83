from __future__ import annotations

import json
import math
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import spike_runs
from spike_arrays import noisy
from spike_runs import Spec, accumulate

from detaudit.core.errors import UnreadableError, UsageError
from detaudit.spike.anomalies import DROP, INF, NAN, RISE, find
from detaudit.spike.detect import Options, detect
from detaudit.spike.groups import ALL_RANKS, ONE_RANK, UNKNOWN_RANK, groups_of
from detaudit.spike.sources import Loaded, load, recognise
from detaudit.spike.windows import CUMULATIVE, INDEPENDENT


def cells(cube, found) -> list[tuple[int, int, int, int, str]]:  # type: ignore[no-untyped-def]
    return [
        (
            cube.steps[found.step[i]],
            int(found.micro[i]),
            cube.ranks[found.rank[i]],
            int(found.target[i]),
            str(found.trigger[i]),
        )
        for i in range(len(found))
    ]


@pytest.mark.parametrize("mode", [CUMULATIVE, INDEPENDENT])
def test_the_injected_cell_is_the_only_one(make_cube, mode: str) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 10, 4))
    g[2, 3, 7, 1] *= 40
    cube = make_cube(accumulate(g, np.random.default_rng(0)) if mode == CUMULATIVE else g)
    assert cells(cube, find(cube, mode)) == [(7, 1, 2, 3, RISE)]


def test_what_follows_a_spike_inside_its_window_is_no_second_spike(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 10, 16))
    g[2, :, 7, 2] *= 200
    cube = make_cube(accumulate(g, np.random.default_rng(0)))
    assert {cell[:3] for cell in cells(cube, find(cube, CUMULATIVE))} == {(7, 2, 2)}


def test_a_huge_later_gradient_is_still_seen_behind_an_abnormal_sum(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 10, 4))
    g[2, 3, 7, 1:3] = [40, 400]
    cube = make_cube(accumulate(g, np.random.default_rng(0)))
    assert [cell[1] for cell in cells(cube, find(cube, CUMULATIVE))] == [1, 2]


def test_anomalies_come_in_order_of_time_not_of_size(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 1))
    g[1, 2, 9] *= 10
    g[3, 4, 15] *= 1000
    cube = make_cube(g)
    assert [cell[0] for cell in cells(cube, find(cube, INDEPENDENT))] == [9, 15]


def test_a_vanishing_gradient_is_a_drop_and_the_return_from_a_spike_is_not_the_first_event(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 1))
    g[1, 2, 9] = 0.0
    g[2, 5, 12:] *= 20
    cube = make_cube(g)
    found = cells(cube, find(cube, INDEPENDENT))
    assert found[0] == (9, 0, 1, 2, DROP)
    assert found[1] == (12, 0, 2, 5, RISE)


def test_a_norm_below_the_resolution_is_no_drop(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 1))
    g[:, 5] *= 1e-9
    assert len(find(make_cube(np.round(g, 6)), INDEPENDENT)) == 0


@pytest.mark.parametrize(("value", "trigger"), [(math.nan, NAN), (math.inf, INF)])
def test_a_number_that_breaks_is_an_anomaly(make_cube, value: float, trigger: str) -> None:  # type: ignore[no-untyped-def]
    g = noisy((3, 4, 9, 2))
    g[1, 2, 5, 1] = value
    cube = make_cube(g)
    assert cells(cube, find(cube, INDEPENDENT)) == [(5, 1, 1, 2, trigger)]


def test_a_series_that_never_held_a_number_was_not_measured(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((3, 4, 9, 2))
    g[:, 1] = math.nan
    assert len(find(make_cube(g), INDEPENDENT)) == 0


def test_an_absent_cell_is_no_nan(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((3, 4, 9, 2))
    absent = np.zeros(g.shape, dtype=bool)
    absent[1, :, 5:] = True
    assert len(find(make_cube(g, absent=absent), INDEPENDENT)) == 0


def test_a_cold_start_is_told_from_a_spike(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 2)) * np.exp(2.5 * np.exp(-np.arange(20) / 1.5))[:, None]
    found = find(make_cube(g), INDEPENDENT)
    assert len(found) == 0 and found.start_transient > 0
    g = noisy((4, 6, 20, 2))
    g[2, 3, 0, 0] *= 30
    assert cells(make_cube(g), find(make_cube(g), INDEPENDENT)) == [(0, 0, 2, 3, RISE)]


def test_slow_growth_is_no_spike(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 200, 1), noise=0.05) * np.exp(0.02 * np.arange(200))[:, None]
    assert len(find(make_cube(g), INDEPENDENT)) == 0


@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        (INDEPENDENT, (2, 6, 3, 4)),
        (INDEPENDENT, (4, 10, 30, 2)),
        (CUMULATIVE, (1, 14, 2, 3)),
        (CUMULATIVE, (4, 10, 12, 8)),
    ],
)
def test_spike_free_runs_stay_quiet_at_the_stated_rate(make_cube, mode: str, shape: tuple[int, ...]) -> None:  # type: ignore[no-untyped-def]
    alarms = 0
    for seed in range(150):
        g = noisy(shape, seed, 0.15)
        cube = make_cube(accumulate(g, np.random.default_rng(seed)) if mode == CUMULATIVE else g)
        alarms += len(find(cube, mode)) > 0
    # At one per cent, seven or more of 150 has a probability below 1e-3.
    assert alarms < 7


def test_the_rate_and_the_ratio_are_the_users(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 10, 30, 1), noise=0.04)
    g[1, 2, 20] = 1.9
    cube = make_cube(g)
    assert len(find(cube, INDEPENDENT)) == 0
    assert len(find(cube, INDEPENDENT, ratio=1.5)) == 1
    assert len(find(cube, INDEPENDENT, rate=0.4, ratio=1.01)) >= 1


def group(make_cube, change, blame: bool = True, mode: str = INDEPENDENT, micro: int = 4):  # type: ignore[no-untyped-def]
    g = noisy((6, 5, 10, micro))
    change(g)
    cube = make_cube(accumulate(g, np.random.default_rng(0)) if mode == CUMULATIVE else g)
    found = find(cube, mode)
    return cube, found, groups_of(cube, found, blame, 10, mode)


def test_one_rank_is_blamed_and_all_ranks_are_not(make_cube) -> None:  # type: ignore[no-untyped-def]
    def one(g: np.ndarray) -> None:
        g[4, 1:, 6, 2] *= 30

    def everyone(g: np.ndarray) -> None:
        g[:, 1:, 6, 2] *= 30

    _, _, (first,) = group(make_cube, one)
    assert (first.rank, first.scope, first.step, first.micro) == (4, ONE_RANK, 6, 2)
    _, _, (first,) = group(make_cube, everyone)
    assert (first.rank, first.scope, len(first.ranks)) == (None, ALL_RANKS, 6)
    _, _, (first,) = group(make_cube, one, blame=False)
    assert (first.rank, first.scope) == (None, UNKNOWN_RANK)


def test_peers_just_below_the_threshold_take_the_blame_away(make_cube) -> None:  # type: ignore[no-untyped-def]
    def lopsided(g: np.ndarray) -> None:
        g[:, 2, 6, 2] = 1.9
        g[4, 2, 6, 2] = 2.6

    _, _, groups = group(make_cube, lopsided)
    assert groups and groups[0].rank is None


def test_equal_deviations_are_led_by_the_first_in_backward_order(make_cube) -> None:  # type: ignore[no-untyped-def]
    def several(g: np.ndarray) -> None:
        g[4, :, 6, 2] *= np.array([1, 30, 31, 33, 6])

    _, found, (first,) = group(make_cube, several)
    assert (int(found.target[first.lead]), first.first_target, first.targets) == (1, 1, 4)


def test_changed_weights_fill_the_window_and_one_bad_batch_does_not(make_cube) -> None:  # type: ignore[no-untyped-def]
    def batch(g: np.ndarray) -> None:
        g[:, :, 6, 0] *= 20

    def weights(g: np.ndarray) -> None:
        g[:, :, 6:] *= 20

    for mode in (INDEPENDENT, CUMULATIVE):
        assert not group(make_cube, batch, mode=mode)[2][0].whole_window
        assert group(make_cube, weights, mode=mode)[2][0].whole_window
    assert not group(make_cube, weights, micro=1)[2][0].whole_window


def run(spec: Spec, folder: Path, **options: object) -> dict[str, object]:
    written = spike_runs.write(spec, folder)
    return detect(load(written.path, written.kind), Options(**{**written.options, **options}))  # type: ignore[arg-type]


def test_the_result_carries_the_seeds_keys_and_is_strict_json(tmp_path: Path) -> None:
    result = run(Spec(), tmp_path)
    assert result["phase"] == 1 and {
        "db_path",
        "sharding_analysis",
        "target_rank_norms",
        "summary",
        "anomalies",
    } <= set(result)
    sharding = result["sharding_analysis"]
    assert (sharding["accumulation_window"], sharding["pass_unit"]) == (4, "micro_step (cumulative)")
    first = result["anomalies"][0]
    assert {
        "rank",
        "step",
        "micro_step",
        "optimizer_step",
        "target_name",
        "norm",
        "delta",
        "deviation_ratio",
        "suspect_final_norm",
        "trigger",
    } <= set(first)
    assert (first["optimizer_step"], first["micro_step"], first["rank"]) == (4, 1, 1)
    assert list(result["target_rank_norms"]) == ["4"] and set(result["target_rank_norms"]["4"]["rank_norms"]) == set(
        "0123"
    )
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    one = json.dumps(run(Spec(reduced=True), tmp_path / "x"))
    shutil.rmtree(tmp_path / "x")
    assert json.dumps(run(Spec(reduced=True), tmp_path / "x")) == one


@pytest.mark.parametrize("layout", ["csv", "csv_v2", "trend_flat", "trend_micro"])
def test_reduced_gradients_are_analysed_beside_never_inside(tmp_path: Path, layout: str) -> None:
    result = run(Spec(layout=layout), tmp_path)
    assert result["summary"]["metric"] == "grad_unreduced"
    assert result["other_metrics"]["grad_reduced"]["optimizer_step"] == 4
    assert result["other_metrics"]["grad_reduced"]["rank"] is None


def test_only_reduced_gradients_show_the_step_and_blame_nobody(tmp_path: Path) -> None:
    written = spike_runs.write(Spec(), tmp_path)
    for path in tmp_path.rglob("grad_unreduced*"):
        path.unlink()
    result = detect(load(written.path))
    assert result["groups"][0]["optimizer_step"] == 4 and result["groups"][0]["rank"] is None
    assert any("never which rank" in text for text in result["not_seen"])


def test_activations_first_in_the_database_are_not_taken_for_gradients(tmp_path: Path) -> None:
    result = run(Spec(layout="trend_micro"), tmp_path)
    assert (
        result["sharding_analysis"]["available_metrics"][0] == "actv"
        and result["summary"]["metric"] == "grad_unreduced"
    )


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_null_and_clipped_values_in_a_database_are_the_answer_not_a_crash(tmp_path: Path, value: str) -> None:
    lead = run(Spec(layout="trend_flat", value=value), tmp_path)["groups"][0]["lead"]
    assert (lead["optimizer_step"], lead["micro_step"], lead["rank"], lead["trigger"]) == (4, 1, 1, value)
    assert lead["deviation_ratio"] is None


def test_what_was_not_seen_keeps_a_quiet_run_from_being_called_normal(tmp_path: Path) -> None:
    assert run(Spec(scope="none"), tmp_path / "a")["outcome"] == "none seen"
    quiet = run(Spec(scope="none", missing=(2,)), tmp_path / "b")
    assert (quiet["outcome"], quiet["exit_code"], quiet["missing_ranks"]) == ("insufficient", 3, [2])
    silent = run(Spec(scope="none", silent_targets=1), tmp_path / "c")
    assert silent["outcome"] == "insufficient" and "never held a number" in silent["not_seen"][0]


def test_missing_steps_and_holes_are_named(tmp_path: Path) -> None:
    written = spike_runs.write(Spec(scope="none", reduced=False), tmp_path)
    for path in tmp_path.rglob("*rank1-*/grad_unreduced_3-3.csv"):
        path.unlink()
    for path in tmp_path.rglob("grad_unreduced_5-5.csv"):
        path.unlink()
    result = detect(load(written.path))
    text = " ".join(result["not_seen"])
    assert "step(s) 5 were not recorded" in text and "rank 1 step 3 micro-step 0" in text
    assert result["outcome"] == "insufficient"


@pytest.mark.parametrize(("steps", "ranks"), [(1, 1), (1, 6), (2, 1)])
def test_one_step_or_one_rank_does_not_break(tmp_path: Path, steps: int, ranks: int) -> None:
    result = run(Spec(steps=steps, ranks=ranks, scope="none", window=1), tmp_path)
    assert result["outcome"] in ("none seen", "insufficient")
    if (steps, ranks) == (1, 1):
        assert result["outcome"] == "insufficient" and "no cell has a history" in result["not_seen"][-1]
        assert len(result["absolute_candidates"]) == 8


def test_all_nan_is_insufficient(tmp_path: Path) -> None:
    result = run(Spec(silent_targets=8, scope="none"), tmp_path, accumulation="cumulative")
    assert (result["outcome"], result["anomalies"]) == ("insufficient", [])


def test_undecided_accumulation_is_a_question_in_the_json(tmp_path: Path) -> None:
    result = run(Spec(ranks=1, layers=1, steps=1, window=2, scope="none", seed=3), tmp_path)
    asked = result["outcome"] == "question"
    assert asked == bool(result["questions"])
    told = run(
        Spec(ranks=1, layers=1, steps=1, window=2, scope="none", seed=3), tmp_path / "b", accumulation="cumulative"
    )
    assert told["outcome"] != "question" and told["sharding_analysis"]["accumulation_evidence"] == "given by the user"


def test_the_users_window_folds_a_flat_database(tmp_path: Path) -> None:
    spec = Spec(layout="trend_flat", reduced=False, mode="independent", steps=10)
    unknown = run(spec, tmp_path / "a")
    lead = unknown["groups"][0]["lead"]
    assert (lead["step"], lead["optimizer_step"], lead["micro_step"]) == (17, None, None)
    assert "--window" in unknown["questions"][0]
    known = run(spec, tmp_path / "b", window=4)
    lead = known["groups"][0]["lead"]
    assert (lead["step"], lead["optimizer_step"], lead["micro_step"]) == (17, 4, 1)


def test_the_positive_case_of_the_reference(tmp_path: Path) -> None:
    spec = Spec(
        ranks=8, window=16, steps=6, layout="trend_flat", reduced=False, rank=5, step=3, micro=7, factor=50, gain=3
    )
    result = run(spec, tmp_path)
    lead = result["groups"][0]["lead"]
    assert (lead["rank"], lead["optimizer_step"], lead["micro_step"], lead["target_name"]) == (5, 3, 7, spec.names[2])


def test_the_shared_csv_sample(tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "Dec01_07-38-18-rank1-1d53e1da"
    folder.mkdir()
    shutil.copy(sample("gen_ddp_rank1_grad_unreduced_2-3.csv"), folder / "grad_unreduced_2-3.csv")
    result = detect(load(tmp_path))
    lead = result["groups"][0]["lead"]
    assert (lead["rank"], lead["optimizer_step"], lead["micro_step"]) == (1, 2, 1)
    assert result["sharding_analysis"]["accumulation"] == "cumulative"
    assert "rank(s) 0 were not recorded" in result["not_seen"]


def test_the_shared_trend_sample_has_window_three_not_six(sample) -> None:  # type: ignore[no-untyped-def]
    result = detect(load(sample("gen_ddp_2rank_monitor_data.trend.db")))
    sharding = result["sharding_analysis"]
    assert (sharding["accumulation_window"], sharding["window_evidence"]) == (3, "grad_reduced")
    lead = result["groups"][0]["lead"]
    assert (lead["rank"], lead["optimizer_step"], lead["micro_step"]) == (1, 2, 1)
    assert {row["rank"] for row in result["anomalies"]} == {1}


def test_optimizer_state_and_drift_are_analysed_too(tmp_path: Path) -> None:
    written = spike_runs.write(Spec(scope="none", reduced=False, window=1), tmp_path)
    for rank in range(4):
        folder = next(tmp_path.glob(f"*rank{rank}-*"))
        for step in range(8):
            factor = 90 if step >= 5 else 1
            for metric, value in (
                ("exp_avg_sq", 0.5 * factor),
                ("param_origin", 10 + step * 0.01),
                ("param_updated", 10.01 + step * 0.01),
            ):
                body = "".join(f"0,{name},{step},{value + rank * 1e-4}\n" for name in Spec().names)
                (folder / f"{metric}_{step}-{step}.csv").write_text("vpp_stage,name,step,norm\n" + body)
    result = detect(load(written.path))
    assert result["other_metrics"]["exp_avg_sq"]["optimizer_step"] == 5
    assert result["other_metrics"]["parameter_drift"]["count"] == 0
    assert (result["outcome"], result["groups"]) == ("anomalies", [])


def test_inputs_are_recognised_and_mixtures_refused(tmp_path: Path) -> None:
    csv = spike_runs.write(Spec(steps=1, ranks=1, scope="none"), tmp_path / "csv").path
    assert recognise(csv) == recognise(next(csv.rglob("*.csv"))) == recognise(str(csv / "*")) == "csv"
    with pytest.raises(UnreadableError, match="holds no monitor CSV"):
        recognise(_empty(tmp_path))
    (csv / "step0" / "rank0").mkdir(parents=True)
    (csv / "step0" / "rank0" / "dump.json").write_text("{}")
    with pytest.raises(UnreadableError, match="csv and dump"):
        recognise(csv)
    assert load(csv, "csv").kind == "csv"


def _empty(root: Path) -> Path:
    path = root / "empty"
    path.mkdir()
    return path


def test_a_metric_that_is_not_there_is_refused(tmp_path: Path) -> None:
    written = spike_runs.write(Spec(steps=2, ranks=1, scope="none"), tmp_path)
    with pytest.raises(UsageError, match="metric 'actv' is not in"):
        load(written.path, metric="actv")


def test_a_database_made_from_dumps_is_analysed(tmp_path: Path) -> None:
    """Facts 2.2.4: such a database ended in "no such column: grad_unreduced"."""
    written = spike_runs.write(Spec(layout="trend_flat", window=1, micro=0, reduced=False, steps=12), tmp_path)
    db = sqlite3.connect(written.path)
    db.execute("UPDATE monitoring_metrics SET metric_name = 'forward' WHERE metric_name = 'actv'")
    db.execute("UPDATE monitoring_metrics SET metric_name = 'parameters_grad' WHERE metric_name = 'grad_unreduced'")
    db.commit()
    db.close()
    lead = detect(load(written.path))["groups"][0]["lead"]
    assert (lead["rank"], lead["step"]) == (1, 4)


def test_tables_stay_bounded_and_say_what_they_left_out(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((3, 40, 1000, 1), noise=0.02)
    g[:, :, 500::2] *= np.where(np.arange(250) % 7 == 0, 50, 1)[:, None]
    result = detect(Loaded("x", "csv", make_cube(g), {}, ("grad_unreduced",)))
    assert result["summary"]["anomalies_total"] > result["summary"]["anomalies_listed"]
    assert len(result["heat"]["steps"]) <= 240 and result["heat"]["steps_per_column"] == 5
    assert len(result["groups"]) <= 200


def test_resets_of_an_unseen_window_are_no_drops(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((2, 6, 2, 30), noise=0.05)
    flat = accumulate(g, np.random.default_rng(0)).reshape(2, 6, 60, 1)[:, :, :33]
    cube = make_cube(flat, micro_declared=False)
    result = detect(Loaded("x", "trend.db", cube, {}, ("grad_unreduced",), flat=True))
    assert result["sharding_analysis"]["window_evidence"] == "none"
    assert (result["anomalies"], result["outcome"]) == ([], "insufficient")
    assert "the window is unknown" in result["not_seen"][0]
    assert len(find(cube, INDEPENDENT)) > 0, "they would be drops if the window were known to be one"
