from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spike_dumps import SIDES, DumpSpec, Effect, write

from detaudit.spike.contrast import FLOOR, Cell, compare, main_tensor, near_zero
from detaudit.spike.layers import Layer, anchors_of, backward_order, layer_path, layers_of, structure_of
from detaudit.spike.read_dump import METRICS, DumpPlace, TensorStats, find_dumps, read_dump
from detaudit.spike.starts import longest_run
from detaudit.spike.trace import trace


def run(spec: DumpSpec, root: Path, sides: str = "ABCD", micro_step: int | None = None) -> dict[str, Any]:
    folders = write(spec, root)
    result = trace({side: read_dump(find_dumps(folders[side])[0]) for side in sides}, micro_step)
    json.dumps(result, allow_nan=False)
    return result


def layer(n: int | None) -> str | None:
    return None if n is None else f"decoder.layers.{n}"


@pytest.mark.parametrize("seed", range(6))
def test_sides_that_differ_by_device_and_sample_alone_are_consistent(tmp_path: Path, seed: int) -> None:
    result = run(DumpSpec(seed=seed), tmp_path)
    assert (result["outcome"], result["exit_code"]) == ("consistent", 0)
    for direction in ("forward", "backward"):
        assert result["conclusion"][direction]["verdict"] == "consistent"
        assert result["conclusion"]["uncompared_layers"][direction] == []
    assert result["drilldown"] is None and result["anchors_used"][:3] == ["input_layernorm", "self_attention", "mlp"]


@pytest.mark.parametrize("start", [0, 3, 7])
@pytest.mark.parametrize("factor", [1.1, 3.0, 0.5])
def test_a_forward_divergence_begins_at_its_shallowest_layer(tmp_path: Path, start: int, factor: float) -> None:
    growth = 1.2 if factor > 1 else 0.8
    result = run(DumpSpec(effects=(Effect(layers=tuple(range(start, 8)), factor=factor, growth=growth),)), tmp_path)
    forward = result["conclusion"]["forward"]
    assert (forward["verdict"], forward["start"], forward["confirmed"]) == ("diverges", layer(start), True)
    assert forward["peak_layer"] == layer(7), "the largest is not the start"
    assert result["conclusion"]["priority"]["direction"] == "forward" and result["exit_code"] == 1


@pytest.mark.parametrize("start", [7, 4, 0])
def test_a_backward_divergence_begins_at_its_deepest_layer(tmp_path: Path, start: int) -> None:
    effect = Effect("backward", tuple(range(start, -1, -1)), 1.5, 1.3)
    conclusion = run(DumpSpec(effects=(effect,)), tmp_path)["conclusion"]
    assert conclusion["backward"]["start"] == layer(start) and conclusion["forward"]["verdict"] == "consistent"
    assert "by itself" in conclusion["priority"]["text"]


def test_a_forward_divergence_outranks_a_larger_backward_one(tmp_path: Path) -> None:
    effects = (Effect(layers=tuple(range(5, 8)), factor=1.2), Effect("backward", tuple(range(7, -1, -1)), 30.0))
    conclusion = run(DumpSpec(effects=effects), tmp_path)["conclusion"]
    assert conclusion["priority"]["start"] == layer(5) and "amplifies" in conclusion["priority"]["text"]


def test_the_first_flag_and_the_main_segment_are_both_reported(tmp_path: Path) -> None:
    """Facts 2.2.5: +20 % at layer 2, then 5 to 7. The scripts said 5, the seed says the first F!."""
    result = run(DumpSpec(effects=(Effect(layers=(2,), factor=1.2), Effect(layers=(5, 6, 7), factor=1.5))), tmp_path)
    forward = result["conclusion"]["forward"]
    assert forward["start"] == layer(2)
    assert forward["metric_starts"]["Norm"] == {
        "first_flagged": layer(2),
        "main_segment_start": layer(5),
        "lone_flags": [],
    }


def test_a_lone_early_flag_that_nothing_confirms_stays_a_candidate(tmp_path: Path) -> None:
    everywhere = Effect(layers=(1,), factor=1.3, metrics=("Mean",))
    result = run(DumpSpec(effects=(everywhere, Effect(layers=(4, 5, 6, 7), factor=1.5))), tmp_path)
    forward = result["conclusion"]["forward"]
    # All anchors of layer 1 show it, so it is confirmed; with one anchor alone it is not.
    assert forward["start"] == layer(1)
    single = DumpSpec(
        effects=(
            Effect(layers=(1,), factor=1.3, metrics=("Mean",), inside="input_layernorm"),
            Effect(layers=(4, 5, 6, 7)),
        )
    )
    forward = run(single, tmp_path / "b")["conclusion"]["forward"]
    assert forward["start"] == layer(4) and forward["earlier_candidates"] == [layer(1)]
    assert forward["metric_starts"]["Mean"]["lone_flags"] == [layer(1)]


def test_a_lone_flag_without_anything_else_is_unconfirmed_not_dissolved(tmp_path: Path) -> None:
    effect = Effect(layers=(3,), factor=1.3, metrics=("Norm",), inside="input_layernorm")
    forward = run(DumpSpec(effects=(effect,)), tmp_path)["conclusion"]["forward"]
    assert (forward["verdict"], forward["start"], forward["confirmed"]) == ("diverges (unconfirmed)", layer(3), False)


def test_other_metrics_move_the_start_earlier_until_none_does(tmp_path: Path) -> None:
    effects = (
        Effect(layers=tuple(range(4, 8)), factor=1.4, metrics=("Norm",)),
        Effect(layers=tuple(range(3, 8)), factor=1.4, metrics=("Max",)),
        Effect(layers=tuple(range(2, 8)), factor=1.4, metrics=("Min",)),
    )
    forward = run(DumpSpec(effects=effects), tmp_path)["conclusion"]["forward"]
    assert forward["start"] == layer(2)
    assert [move["metric"] for move in forward["search"]] == ["Norm", "Min"]
    assert [move["start"] for move in forward["search"]] == [layer(4), layer(2)]
    assert set(forward["disagreements"]) == {f"Norm→{layer(4)}", f"Max→{layer(3)}"}


@pytest.mark.parametrize(
    "effect", [Effect(layers=(4, 5, 6, 7), factor=0.5), Effect(layers=(4, 5, 6, 7), factor=1.0, flip=True)]
)
def test_drops_and_flipped_signs_are_flagged(tmp_path: Path, effect: Effect) -> None:
    """Facts 2.2.5: neither was, the rule being one-sided on magnitudes."""
    result = run(DumpSpec(effects=(effect,)), tmp_path)
    assert result["conclusion"]["forward"]["start"] == layer(4)
    if effect.flip:
        cells = result["anchors"][0]["layers"][4]["metrics"]
        assert cells["Min"]["f_anomaly"] < 0 and cells["Min"]["f_flag"] and not cells["Norm"]["f_flag"]


def test_operators_inside_a_layer_may_differ_while_its_outputs_do_not(tmp_path: Path) -> None:
    effects = (Effect(layers=(3,), inside="self_attention.core"), Effect(layers=(4, 5, 6, 7)))
    result = run(DumpSpec(effects=effects), tmp_path)
    forward = result["conclusion"]["forward"]
    assert (forward["start"], forward["start_by_outputs"]) == (layer(3), layer(4))
    assert result["drilldown"]["earliest"]["key"].startswith("Torch.matmul.3")
    assert result["drilldown"]["source_line"] == "model/self_attention.core_attention.py, line 13, in forward"
    alone = run(DumpSpec(effects=effects[:1]), tmp_path / "b")
    assert (alone["outcome"], alone["conclusion"]["forward"]["start"]) == ("divergence", layer(3))


def test_the_drill_down_lists_operators_in_execution_order(tmp_path: Path) -> None:
    result = run(
        DumpSpec(effects=(Effect(layers=(2,), inside="mlp.linear_fc2"), Effect(layers=(2,), factor=9, inside="mlp"))),
        tmp_path,
    )
    drilled = result["drilldown"]
    orders = [op["order"] for op in drilled["operators"]]
    assert orders == sorted(orders) and drilled["layer"] == layer(2)
    assert "fc1" in drilled["operators"][[op["flagged"] for op in drilled["operators"]].index(True) + 1]["key"]
    assert drilled["largest"]["largest_ratio"] > drilled["earliest"]["largest_ratio"] and not drilled["unmatched"]


def test_operators_called_through_other_namespaces_pair_up(tmp_path: Path) -> None:
    drilled = run(DumpSpec(effects=(Effect(layers=(2, 3)),)), tmp_path)["drilldown"]
    norm = next(op for op in drilled["operators"] if "rms_norm" in op["key"])
    assert norm["flagged"] and norm["why"] == "" and drilled["unmatched_count"] == 0


def test_without_control_group_the_result_says_so_and_never_says_normal(tmp_path: Path) -> None:
    clean = run(DumpSpec(bias=0.0), tmp_path / "a", "AB")
    assert (clean["mode"], clean["exit_code"]) == ("A/B only", 3) and "systematic bias" in clean["control_warning"]
    assert clean["conclusion"]["forward"]["verdict"] == "undecided"
    hit = run(DumpSpec(bias=0.0, effects=(Effect(layers=(4, 5)),)), tmp_path / "b", "AB")
    assert hit["conclusion"]["forward"]["start"] == layer(4) and hit["exit_code"] == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"drop": (("B", "layers.3.mlp."),)}, "missing in B"),
        ({"drop": (("C", "layers.3.mlp."),)}, "missing in C"),
        ({"drop": (("A", "layers.3.mlp."),)}, "missing in A"),
        ({"resize": (("B", "layers.3.mlp."),)}, "elements in B"),
        ({"null": (("B", "layers.3.mlp."),)}, "null"),
        ({"nan": (("D", "layers.3.mlp."),)}, "not finite"),
    ],
)
def test_what_cannot_be_compared_is_named_and_never_normal(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    conclusion = run(DumpSpec(**change), tmp_path)["conclusion"]
    for direction in ("forward", "backward"):
        gaps = conclusion["uncompared_layers"][direction]
        assert {gap["layer"] for gap in gaps} == {layer(3)} and {gap["anchor"] for gap in gaps} == {"mlp"}
        assert all(why in gap["why"] for gap in gaps), gaps
        assert conclusion[direction]["verdict"] == "undecided"


def test_nan_in_a_alone_is_a_divergence_by_itself(tmp_path: Path) -> None:
    result = run(DumpSpec(nan=(("A", "layers.5."), ("A", "layers.6."))), tmp_path)
    forward = result["conclusion"]["forward"]
    assert (forward["verdict"], forward["start"]) == ("diverges", layer(5))
    assert forward["non_finite_layers"] == [layer(5), layer(6)]


def test_a_parent_that_one_side_lacks_falls_back_to_what_both_have(tmp_path: Path) -> None:
    result = run(DumpSpec(drop=(("B", "layers.3.mlp.MLP."),)), tmp_path)
    row = next(a for a in result["anchors"] if a["name"] == "mlp")["layers"][3]
    assert "linear_fc" in row["alignment"]["forward"] and row["metrics"]["Norm"]["f_flag"] is False


def test_fewer_than_three_anchors_warn(tmp_path: Path) -> None:
    drop = tuple(("D", f".{name}") for name in ("input_layernorm", "mlp"))
    result = run(DumpSpec(drop=drop), tmp_path)
    assert "2 anchor(s)" in result["anchor_warning"] and result["exit_code"] == 3


def test_different_models_are_not_compared(tmp_path: Path) -> None:
    a = read_dump(find_dumps(write(DumpSpec(sides=("A",)), tmp_path / "a")["A"])[0])
    b = read_dump(find_dumps(write(DumpSpec(sides=("B",), prefix="other.net."), tmp_path / "b")["B"])[0])
    result = trace({"A": a, "B": b})
    assert result["outcome"] == "insufficient" and "different models" in result["notes"][-1]


def test_a_truncated_dump_is_never_consistent(tmp_path: Path) -> None:
    folders = write(DumpSpec(), tmp_path)
    path = folders["A"] / "dump.json"
    path.write_text(path.read_text()[:-3000])
    result = trace({side: read_dump(find_dumps(folders[side])[0]) for side in SIDES})
    assert result["exit_code"] == 3 and "ends in the middle" in result["notes"][0]
    assert result["conclusion"]["backward"]["verdict"] == "undecided"


def test_a_control_group_that_is_off_keeps_silence_from_meaning_normal(tmp_path: Path) -> None:
    folders = write(DumpSpec(), tmp_path)
    path = folders["C"] / "dump.json"
    data = json.loads(path.read_text())
    for entry in data["data"].values():
        for tensor in entry.get("output", []):
            if tensor:
                tensor.update({m: tensor[m] * 1.2 for m in METRICS})
    path.write_text(json.dumps(data))
    dumps = {side: read_dump(find_dumps(folders[side])[0]) for side in SIDES}
    result = trace(dumps)
    assert result["alignment_suspect"][0]["median_c_d"] == pytest.approx(1.2, rel=0.02)
    assert result["conclusion"]["forward"]["verdict"] != "consistent"


def test_passes_are_compared_in_order_and_recomputation_is_no_pass(tmp_path: Path) -> None:
    spec = DumpSpec(calls=3, recompute=True, effect_call=1, effects=(Effect(layers=(4, 5)),))
    result = run(spec, tmp_path)
    assert (result["micro_step"], result["calls_checked"]) == (1, [0, 1]) and result["conclusion"]["forward"][
        "start"
    ] == layer(4)
    assert run(spec, tmp_path / "b", micro_step=0)["outcome"] == "consistent"
    beyond = run(spec, tmp_path / "c", micro_step=7)
    assert beyond["micro_step"] == 1 and "micro-step 7 is not in all dumps" in beyond["notes"][0]


def test_mindspore_and_pytorch_sides_align(tmp_path: Path) -> None:
    result = run(DumpSpec(mindspore=("B", "D"), effects=(Effect(layers=(6, 7)),)), tmp_path)
    assert result["conclusion"]["forward"]["start"] == layer(6)


def test_the_observer_and_the_data_are_spoken_of(tmp_path: Path) -> None:
    result = run(DumpSpec(), tmp_path)
    assert "without hooks" in result["observer_warning"]
    assert result["data_features"]["verdict"] == "same shapes on all sides"


def test_one_file_twice_says_nothing(tmp_path: Path) -> None:
    dump = read_dump(find_dumps(write(DumpSpec(sides=("A",)), tmp_path)["A"])[0])
    result = trace({"A": dump, "B": dump})
    assert any("same file" in note for note in result["notes"])
    assert result["conclusion"]["forward"]["flagged_layers"] == []


def test_swapping_both_pairs_inverts_the_ratio_and_keeps_the_start(tmp_path: Path) -> None:
    folders = write(DumpSpec(effects=(Effect(layers=(3, 4, 5, 6, 7), factor=1.6),)), tmp_path)
    dumps = {side: read_dump(find_dumps(folders[side])[0]) for side in SIDES}
    forth = trace(dumps)["conclusion"]["forward"]
    back = trace({"A": dumps["B"], "B": dumps["A"], "C": dumps["D"], "D": dumps["C"]})["conclusion"]["forward"]
    assert forth["start"] == back["start"] == layer(3)
    assert forth["peak_ratio"] == pytest.approx(1 / back["peak_ratio"], rel=1e-5)


def test_layers_come_in_order_of_execution_not_of_number(tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    structure = structure_of(read_dump(DumpPlace(0, 0, sample("repo_gpu_resnet_step0_excerpt_dump.json"))))
    layers = layers_of(structure)
    assert [found.label for found in layers] == ["conv1", "bn1", "layer1.0", "layer4.2", "fc"]
    assert next(found.label for found in backward_order(structure, layers)) == "fc"
    assert {found.path.rpartition(".")[0] for found in layers if found.number is not None} == {"layer1", "layer4"}


def test_call_numbers_of_operators_are_no_layers(sample) -> None:  # type: ignore[no-untyped-def]
    """Facts 2.2.6: the prefix guess took `conv2d.0.` for a layer."""
    a, b = (read_dump(DumpPlace(0, 0, sample(f"repo_gpu_resnet_step{n}_excerpt_dump.json"))) for n in (1, 0))
    result = trace({"A": a, "B": b})
    assert result["layer_prefix"] == ["layer1", "layer4"] and "backward" not in result["anchors_used"]
    assert result["anchor_warning"]


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("decoder.layers.3.mlp.experts.local_experts.5.fc1", "decoder.layers.3"),
        ("layer1.0.downsample.1", "layer1.0"),
        ("fc", ""),
        ("a.b", ""),
    ],
)
def test_the_outermost_number_makes_the_layer(path: str, layer: str) -> None:
    assert layer_path(path) == layer


def test_anchors_must_be_in_every_dump(tmp_path: Path) -> None:
    folders = write(DumpSpec(drop=(("C", "self_attention"),)), tmp_path)
    structures = [structure_of(read_dump(find_dumps(folders[side])[0])) for side in SIDES]
    assert "self_attention" not in anchors_of(structures) and "self_attention" in anchors_of(structures[:2])


def tensor(**values: float) -> TensorStats:
    held = {"Max": 2.0, "Min": -2.0, "Mean": 0.1, "Norm": 8.0, **values}
    return TensorStats("torch.float32", (8, 8), *(held[m] for m in METRICS))


def cell(metric: str, a: float, b: float, c: float | None = None, d: float | None = None) -> Cell:
    values = {"A": a, "B": b} | ({} if c is None or d is None else {"C": c, "D": d})
    return compare({side: tensor(**{metric: value}) for side, value in values.items()}, metric)


def test_a_cell_is_the_double_ratio() -> None:
    found = cell("Norm", 9, 3, 4, 2)
    assert found.distance == pytest.approx(math.log(1.5)) and not found.why and not found.sign_flip


def test_a_control_group_that_disagrees_in_sign_is_no_control() -> None:
    assert "C and D differ in sign" in cell("Max", 2, 2, 2, -2).why


@pytest.mark.parametrize(
    ("a", "b", "compared"), [(1e-5, 2e-5, False), (1e-5, 0.9, True), (0.9, 1e-5, True), (0.9, 0.8, True)]
)
def test_a_mean_near_zero_is_noise_unless_the_other_side_is_far_from_it(a: float, b: float, compared: bool) -> None:
    found = cell("Mean", a, b, 0.5, 0.5)
    assert (found.why == "") is compared
    if compared:
        assert (found.distance > 0) == (a > b)


def test_a_norm_is_never_near_zero_unless_it_is_zero() -> None:
    assert near_zero(tensor(), "Norm") == 0 and near_zero(tensor(), "Mean") > near_zero(tensor(), "Max") > 0
    assert "near zero" in cell("Norm", 0.0, 0.0, 1, 1).why


def test_the_main_tensor_is_the_largest_with_numbers() -> None:
    empty = TensorStats("torch.int64", (99, 99), math.nan, math.nan, math.nan, math.nan)
    position, found = main_tensor([None, tensor(), empty, TensorStats("f", (64, 64), 1, 1, 1, 1)])
    assert position == 3 and found is not None and main_tensor([None, empty]) == (0, None)


def test_runs_skip_what_was_not_compared_and_end_at_what_was_clean() -> None:
    order = [Layer(str(i), "", f"l.{i}", i) for i in range(8)]
    at = lambda *places: {order[i] for i in places}  # noqa: E731
    assert longest_run(order, set(order), at(1, 4, 5)) == [order[4], order[5]]
    assert longest_run(order, at(1, 2, 4, 5), at(2, 4)) == [order[2], order[4]], "3 was not compared"
    assert longest_run(order, set(order), at(1, 5)) == [order[1]]
    assert longest_run(order, set(order), set()) == [] and pytest.approx(0.02956, rel=1e-3) == FLOOR


@pytest.mark.slow
def test_random_starts_are_found_exactly(tmp_path: Path) -> None:
    for seed in range(120):
        rng = np.random.default_rng(seed)
        layers, direction = int(rng.integers(5, 12)), ("forward", "backward")[seed % 2]
        start = int(rng.integers(layers))
        order = tuple(range(start, layers)) if direction == "forward" else tuple(range(start, -1, -1))
        factor = float(rng.choice([0.5, 0.8, 1.15, 2.0, 30.0]))
        spec = DumpSpec(
            seed=seed,
            layers=layers,
            effects=(Effect(direction, order, factor, float(rng.uniform(1, 1.3)) ** np.sign(factor - 1)),),
        )
        result = run(spec, tmp_path / str(seed))
        assert result["conclusion"][direction]["start"] == layer(start), seed
        other = "backward" if direction == "forward" else "forward"
        assert result["conclusion"][other]["verdict"] == "consistent", seed
