from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spike_runs
from spike_arrays import noisy
from spike_runs import Spec

from detaudit.core.errors import UnreadableError
from detaudit.spike.detect import Options, detect
from detaudit.spike.devices import SHARED, SPECIFIC, UNSEEN
from detaudit.spike.growth import turning_points
from detaudit.spike.origin import DATA, HARDWARE, UNPROVEN, WEIGHTS
from detaudit.spike.select import Rules, select
from detaudit.spike.sources import Loaded, load


def phase1(spec: Spec, folder: Path) -> dict[str, Any]:
    written = spike_runs.write(spec, folder)
    return detect(load(written.path, written.kind), Options(**written.options))  # type: ignore[arg-type]


def of_cube(cube, **options: Any) -> dict[str, Any]:  # type: ignore[no-untyped-def]
    return detect(Loaded("x", "csv", cube, {}, (cube.metric,)), Options(**options))


def norms_table(*steps: list[float], targets: int = 1) -> dict[str, Any]:
    return {
        "targets": [f"w{i}" for i in range(targets)],
        "ranks": list(range(len(steps[0]))),
        "steps": list(range(10, 10 + len(steps))),
        "positions": list(range(len(steps))),
        "norms": [list(map(list, steps)) for _ in range(targets)],
    }


@pytest.mark.parametrize(("growing", "qualifies"), [(2, False), (3, True), (5, True)])
def test_sixty_per_cent_of_the_ranks_must_grow(growing: int, qualifies: bool) -> None:
    before = [1.0] * 5
    after = [2.0] * growing + [1.9] * (5 - growing)
    (point,) = turning_points(norms_table(before, after))
    assert (point.from_step, point.to_step, point.growing, point.compared, point.qualifies) == (
        10,
        11,
        growing,
        5,
        qualifies,
    )


def test_the_majority_is_an_option_because_scripts_and_seed_differ() -> None:
    table = norms_table([1.0, 1.0], [3.0, 1.0])
    assert not turning_points(table)[0].qualifies
    assert turning_points(table, majority=0.5)[0].qualifies


def test_missing_norms_are_left_out_of_the_share() -> None:
    (point,) = turning_points(norms_table([1.0, 1.0, None], [3.0, None, 9.0]))  # type: ignore[list-item]
    assert (point.growing, point.compared) == (1, 1)


def test_steps_that_are_no_neighbours_are_not_compared() -> None:
    table = norms_table([1.0], [5.0])
    table["positions"] = [0, 2]
    assert turning_points(table) == []


def test_each_pair_compares_one_target_with_itself() -> None:
    table = norms_table([1.0, 1.0], [1.0, 1.0], targets=2)
    table["norms"][1] = [[8.0, 8.0], [8.1, 8.1]]
    assert turning_points(table) == [], "a large target after a small one is no growth"


def test_contamination_leads_back_to_the_step_before(tmp_path: Path) -> None:
    result = select(phase1(Spec(gain=5.0), tmp_path))
    root = result["root_cause_coordinate"]
    assert (result["outcome"], result["exit_code"], result["mode"]) == ("root", 1, "single-device")
    assert (root["optimizer_step"], root["micro_step"], root["rank"], root["target_name"]) == (4, 1, 1, Spec().names[2])
    assert result["root_opt_step"] == root["opt_step"] == 4
    assert [p["to_step"] for p in result["turning_points"] if p["qualifies"]] == [5]
    assert "the root lies in step 4" in result["reasoning"][0]


def test_a_spike_of_all_ranks_is_not_moved_to_the_quiet_step_before_it(tmp_path: Path) -> None:
    result = select(phase1(Spec(scope="all", target=0, gain=1.0), tmp_path))
    assert result["root_opt_step"] == 4 and result["root_cause_coordinate"]["rank"] is None
    assert result["root_cause_coordinate"]["rank_scope"] == "all ranks"
    assert result["root_cause_coordinate"]["ranks"] and "nothing abnormal was seen in step 3" in result["reasoning"][0]


def test_the_earliest_is_chosen_not_the_largest(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 2))
    g[1, 2, 9, 1] *= 10
    g[3, 4, 15, 0] *= 1000
    result = select(of_cube(make_cube(g)))
    root = result["root_cause_coordinate"]
    assert (root["optimizer_step"], root["micro_step"], root["rank"]) == (9, 1, 1)


def test_inside_the_root_step_the_earliest_micro_step_is_chosen(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 4))
    g[1, 2, 9, 1] *= 10
    g[3, 4, 9, 3] *= 1000
    root = select(of_cube(make_cube(g)))["root_cause_coordinate"]
    assert (root["micro_step"], root["rank"]) == (1, 1)


def test_an_earlier_healed_blip_stays_listed_when_a_turning_point_rules(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((5, 6, 20, 2))
    g[1, 2, 3, 1] *= 10
    g[3, :, 12, 0] *= 100
    g[:, :, 13:] *= 5
    result = select(of_cube(make_cube(g)))
    assert result["root_opt_step"] == 12
    assert [row["optimizer_step"] for row in result["earlier_anomalies"]] == [3]


def test_the_root_moves_back_over_neighbouring_abnormal_steps(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((5, 6, 20, 2))
    g[3, 2, 11, 1] *= 30
    g[3, :, 12, 0] *= 100
    g[:, :, 13:] *= 5
    result = select(of_cube(make_cube(g)))
    root = result["root_cause_coordinate"]
    assert (root["optimizer_step"], root["micro_step"]) == (11, 1)
    assert any("moved one step earlier" in text for text in result["reasoning"])


def test_contaminated_weights_without_a_seen_cause_are_insufficient(tmp_path: Path) -> None:
    result = select(phase1(Spec(rank=2, missing=(2,), gain=5.0), tmp_path))
    assert (result["outcome"], result["exit_code"], result["root_cause_coordinate"]) == ("insufficient", 3, None)
    assert result["first_seen_coordinate"]["optimizer_step"] == 5 or "grad_reduced" in result["reasoning"][-1]


def test_changed_weights_on_recorded_ranks_alone_are_insufficient_too(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((5, 6, 20, 3))
    g[:, :, 13:] *= 5
    result = select(of_cube(make_cube(g)))
    assert result["outcome"] == "insufficient" and result["root_opt_step"] == 12
    assert "the weights had changed before it" in result["reasoning"][-1]


def test_reduced_gradients_that_spike_earlier_point_at_the_unseen(tmp_path: Path) -> None:
    spec = Spec(rank=3, missing=(3,), gain=5.0, reduced=True)
    result = select(phase1(spec, tmp_path))
    assert result["root_opt_step"] == 4 and "was not recorded" in result["reasoning"][-1]


def test_phase_one_without_anomalies(tmp_path: Path) -> None:
    clean = select(phase1(Spec(scope="none"), tmp_path / "a"))
    assert (clean["outcome"], clean["exit_code"]) == ("none seen", 0)
    partial = select(phase1(Spec(scope="none", missing=(1,)), tmp_path / "b"))
    assert (partial["outcome"], partial["exit_code"]) == ("insufficient", 3)


def test_an_open_question_of_phase_one_stays_open(tmp_path: Path) -> None:
    p1 = phase1(Spec(), tmp_path)
    p1 = {**p1, "outcome": "question", "questions": ["K?"]}
    result = select(p1)
    assert (result["outcome"], result["exit_code"], result["questions"]) == ("question", 3, ["K?"])


@pytest.mark.parametrize("broken", [{}, {"phase": 2, "groups": []}, {"phase": 1}])
def test_what_is_no_phase_one_result_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(UnreadableError, match="spike detect"):
        select(broken)


def both_sides(tmp_path: Path, ours: Spec, theirs: Spec) -> dict[str, Any]:
    return select(phase1(ours, tmp_path / "npu"), phase1(theirs, tmp_path / "gpu"))


def test_a_spike_the_benchmark_shares_is_marked_and_keeps_the_root(tmp_path: Path) -> None:
    result = both_sides(tmp_path, Spec(factor=60), Spec(factor=50))
    assert result["mode"] == "cross-device"
    (row,) = result["cross_device_verification"]
    assert row["verdict"] == SHARED and row["ratio"] == pytest.approx(1.2, rel=0.05)
    assert result["root_opt_step"] == 4


def test_a_spike_the_benchmark_saw_and_did_not_have_is_device_specific(tmp_path: Path) -> None:
    result = both_sides(tmp_path, Spec(), Spec(scope="none"))
    (row,) = result["cross_device_verification"]
    assert row["verdict"] == SPECIFIC and row["ratio"] > 10 and "not abnormal on the benchmark" in row["basis"]


def test_what_the_benchmark_did_not_record_is_not_called_specific(tmp_path: Path) -> None:
    result = both_sides(tmp_path, Spec(), Spec(scope="none", missing=(1,)))
    assert result["cross_device_verification"][0]["verdict"] == UNSEEN
    short = both_sides(tmp_path / "b", Spec(), Spec(scope="none", steps=3))
    assert short["cross_device_verification"][0]["verdict"] == UNSEEN


def test_the_first_coordinate_that_is_not_shared_is_taken(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 4))
    shared = g.copy()
    shared[1, 2, 9, 0] *= 50
    ours = shared.copy()
    ours[2, 3, 9, 2] *= 50
    result = select(of_cube(make_cube(ours)), of_cube(make_cube(shared)))
    assert [row["verdict"] for row in result["cross_device_verification"]] == [SHARED, SPECIFIC]
    root = result["root_cause_coordinate"]
    assert (root["micro_step"], root["rank"]) == (2, 2)
    assert result["earlier_anomalies"][0]["micro_step"] == 0


def test_growth_on_the_benchmark_marks_the_turning_point_and_moves_nothing(tmp_path: Path) -> None:
    result = both_sides(tmp_path, Spec(gain=5.0), Spec(gain=5.0, seed=4))
    qualified = [p for p in result["turning_points"] if p["qualifies"]]
    assert qualified[0]["shared_with_benchmark"] and result["root_opt_step"] == 4


def test_optimizer_state_that_moved_first_is_named(tmp_path: Path) -> None:
    p1 = phase1(Spec(), tmp_path)
    row = {
        "count": 3,
        "optimizer_step": 2,
        "rank": None,
        "scope": "all ranks",
        "target_name": "w",
        "deviation_ratio": 9.0,
        "trigger": "rise",
        "judged": 9,
    }
    p1["other_metrics"] = {
        "exp_avg_sq": row,
        "exp_avg": {"count": 0, "judged": 5},
        "grad_reduced": {**row, "optimizer_step": 4},
    }
    result = select(p1)
    assert [(r["metric"], r["optimizer_step"]) for r in result["earlier_in_other_metrics"]] == [("exp_avg_sq", 2)]
    alone = select({**p1, "groups": [], "anomalies": []})
    assert (alone["outcome"], alone["root_opt_step"]) == ("insufficient", 2)
    assert "exp_avg_sq is abnormal first" in alone["reasoning"][-1]


@pytest.mark.parametrize(("replayed", "verdict"), [(True, DATA), (False, HARDWARE), (None, UNPROVEN)])
def test_only_a_replay_tells_data_from_hardware(tmp_path: Path, replayed: bool | None, verdict: str) -> None:
    asked: list[Any] = []

    def replay(coordinate: Any) -> bool | None:
        asked.append((coordinate["rank"], coordinate["optimizer_step"], coordinate["micro_step"]))
        return replayed

    origin = select(phase1(Spec(), tmp_path), replay=replay)["origin"]
    assert origin["verdict"] == verdict and asked == [(1, 4, 1)]


def test_without_replay_one_rank_is_unproven_and_never_weights(tmp_path: Path) -> None:
    origin = select(phase1(Spec(), tmp_path))["origin"]
    assert (origin["verdict"], origin["candidates"]) == (UNPROVEN, [DATA, HARDWARE])
    assert "replay" in origin["would_decide"]


def test_all_ranks_in_one_micro_step_cannot_be_the_weights(tmp_path: Path) -> None:
    origin = select(phase1(Spec(scope="all", target=0), tmp_path))["origin"]
    assert WEIGHTS not in origin["candidates"] and "earlier micro-steps of that step are not" in origin["evidence"][0]


def test_all_ranks_with_one_micro_step_a_step_stay_open(tmp_path: Path) -> None:
    origin = select(phase1(Spec(scope="all", window=1, micro=0, target=0), tmp_path))["origin"]
    assert (origin["verdict"], origin["candidates"]) == (UNPROVEN, [DATA, WEIGHTS])


def test_a_single_recorded_rank_says_nothing_of_the_others(tmp_path: Path) -> None:
    origin = select(phase1(Spec(ranks=1, rank=0), tmp_path))["origin"]
    assert origin["candidates"] == [DATA, HARDWARE, WEIGHTS] and "only one rank" in origin["evidence"][0]


def test_the_input_is_not_changed(tmp_path: Path) -> None:
    p1 = phase1(Spec(gain=5.0), tmp_path)
    before = copy.deepcopy(p1)
    select(p1, p1, Rules(3.0, 0.9))
    assert p1 == before


def test_a_side_against_itself_is_shared_everywhere(tmp_path: Path) -> None:
    p1 = phase1(Spec(), tmp_path)
    assert {row["verdict"] for row in select(p1, p1)["cross_device_verification"]} == {SHARED}


def test_the_half_majority_of_the_scripts_would_blame_the_wrong_step(sample) -> None:  # type: ignore[no-untyped-def]
    p1 = detect(load(sample("gen_ddp_2rank_monitor_data.trend.db")))
    root = select(p1)["root_cause_coordinate"]
    assert (root["rank"], root["optimizer_step"], root["micro_step"]) == (1, 2, 1)
    half = select(p1, rules=Rules(majority=0.5))
    assert half["turning_points"][0]["qualifies"] and half["root_opt_step"] == 2, (
        "the quiet step before is still no root"
    )


def test_numbers_of_ranks_are_python_numbers(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 12, 2))
    g[1, 2, 9, 1] *= 10
    root = select(of_cube(make_cube(g, ranks=(3, 5, 7, 9), steps=tuple(range(100, 112)))))["root_cause_coordinate"]
    assert (root["rank"], root["optimizer_step"]) == (5, 109) and not isinstance(root["rank"], np.integer)


def test_one_cell_at_its_threshold_is_a_candidate_and_no_root(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 1), noise=0.02)
    g[2, 3, 11] = 2.08
    result = select(of_cube(make_cube(g)))
    assert (result["outcome"], result["exit_code"], result["root_cause_coordinate"]) == ("insufficient", 3, None)
    assert result["first_seen_coordinate"]["rank"] == 2 and "a candidate and no root" in result["reasoning"][-1]
    g[2, 3, 11] = 3.0
    assert select(of_cube(make_cube(g)))["root_cause_coordinate"]["rank"] == 2


def test_a_lone_cell_at_its_threshold_does_not_move_a_firm_root(make_cube) -> None:  # type: ignore[no-untyped-def]
    g = noisy((4, 6, 20, 1), noise=0.02)
    g[2, 3, 11] = 2.08
    g[1, 2:, 12] *= 50
    result = select(of_cube(make_cube(g)))
    root = result["root_cause_coordinate"]
    assert (root["optimizer_step"], root["rank"]) == (12, 1)
    assert [row["optimizer_step"] for row in result["earlier_anomalies"]] == [11]
