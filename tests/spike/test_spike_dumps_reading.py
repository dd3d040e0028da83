from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detaudit.core.errors import UnreadableError
from detaudit.spike.detect import detect
from detaudit.spike.dump_keys import API, GRADIENT, MODULE, OTHER, normalised, normalised_api, parse_key
from detaudit.spike.read_dump import DumpPlace, find_dumps, read_dump, read_stack, user_line
from detaudit.spike.read_gradients import gradient_cube
from detaudit.spike.sources import load

TENSOR = {
    "type": "torch.Tensor",
    "dtype": "torch.float32",
    "shape": [2, 3],
    "Max": 2.0,
    "Min": -1.0,
    "Mean": 0.5,
    "Norm": 3.0,
}


def put(folder: Path, data: dict[str, Any], construct: dict[str, Any] | None = None, **head: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    top = {"task": "statistics", "level": "mix", "framework": "pytorch", **head, "data": data}
    (folder / "dump.json").write_text(json.dumps(top))
    if construct is not None:
        (folder / "construct.json").write_text(json.dumps(construct))
    return folder


def one(folder: Path, data: dict[str, Any], construct: dict[str, Any] | None = None):  # type: ignore[no-untyped-def]
    return read_dump(find_dumps(put(folder, data, construct))[0])


@pytest.mark.parametrize(
    ("text", "kind", "path", "cls", "direction", "call", "chunk"),
    [
        ("Module.module.layers.3.mlp.MLP.forward.2", MODULE, "module.layers.3.mlp", "MLP", "forward", 2, ""),
        ("Module.0.emb.Embedding.backward.1", MODULE, "emb", "Embedding", "backward", 1, "0"),
        ("Module.fc.Linear.forward.0", MODULE, "fc", "Linear", "forward", 0, ""),
        ("Cell.net.layers.0.Norm.backward.0", MODULE, "net.layers.0", "Norm", "backward", 0, ""),
        (
            "Module.layer1.0.bn3.BatchNorm2d.parameters_grad.7",
            GRADIENT,
            "layer1.0.bn3",
            "BatchNorm2d",
            "backward",
            7,
            "",
        ),
        ("Functional.conv2d.0.forward", API, "Functional.conv2d", "", "forward", 0, ""),
        ("Primitive.norm.RmsNorm.4.backward", API, "Primitive.norm.RmsNorm", "", "backward", 4, ""),
        ("something else", OTHER, "something else", "", "", 0, ""),
    ],
)
def test_the_grammar_of_keys(text: str, kind: str, path: str, cls: str, direction: str, call: int, chunk: str) -> None:
    key = parse_key(text)
    assert (key.kind, key.path, key.cls, key.direction, key.call, key.chunk) == (
        kind,
        path,
        cls,
        direction,
        call,
        chunk,
    )


@pytest.mark.parametrize(
    ("one_side", "other_side"),
    [
        ("module.module.a.TEColumnParallelLinear", "module.a.ColumnParallelLinear"),
        ("a.TEMLASelfAttention", "a.MLASelfAttention"),
        ("a.FlashAttention", "a.FusedAttention"),
        ("a.FlashSelfAttention", "a.Attention"),
        ("network_with_loss.module.a.MindSpeedRMSNorm", "a.RMSNorm"),
    ],
)
def test_device_names_normalise_alike(one_side: str, other_side: str) -> None:
    assert normalised(one_side) == normalised(other_side)


def test_names_that_only_begin_alike_stay_apart() -> None:
    assert normalised("a.TEmperature") == "a.TEmperature"
    assert normalised("a.Tensor") == "a.Tensor" and normalised("layers.1.mlp") != normalised("layers.11.mlp")


def test_one_operation_under_three_names() -> None:
    names = {"NPU.npu_rms_norm", "Triton.rms_norm", "Functional.rms_norm", "Primitive.norm.RmsNorm"}
    assert {normalised_api(name) for name in names} == {"rms_norm"}
    assert normalised_api("Torch.matmul") != normalised_api("Torch.mul")


def test_statistics_keep_null_nan_and_text_apart(tmp_path: Path) -> None:
    data = {
        "Torch.a.0.forward": {"input_args": [], "output": [{**TENSOR, "Mean": None, "Norm": None}]},
        "Torch.b.0.forward": {"input_args": [], "output": [{**TENSOR, "Max": "Infinity", "Norm": float("nan")}]},
        "Torch.c.0.forward": {"input_args": [], "output": [{**TENSOR, "Max": True, "Min": False, "Norm": None}]},
    }
    dump = one(tmp_path, data)
    null, bad, flag = (dump.entries[key].outputs[0] for key in data)
    assert null and math.isnan(null.Norm) and not null.broken
    assert bad and bad.broken and bad.Max == math.inf
    assert flag and math.isnan(flag.Max) and not flag.broken


def test_slots_are_flattened_in_place(tmp_path: Path) -> None:
    nested = [
        None,
        TENSOR,
        {"type": "float", "value": 2.0},
        [TENSOR, {"a": TENSOR, "b": {"type": "slice", "value": [0]}}],
    ]
    entry = one(
        tmp_path, {"Torch.f.0.forward": {"input_args": nested, "input_kwargs": {"x": TENSOR}, "output": []}}
    ).entries["Torch.f.0.forward"]
    assert [tensor is not None for tensor in entry.inputs] == [False, True, False, True, True, False, True]
    assert entry.outputs == []


def test_an_entry_without_output_is_read(tmp_path: Path) -> None:
    assert (
        one(tmp_path, {"Functional.linear.2.forward": {"input_args": [TENSOR]}})
        .entries["Functional.linear.2.forward"]
        .outputs
        == []
    )


@pytest.mark.parametrize("shape", ["null", "empty", "pair"])
def test_construct_in_all_three_shapes(tmp_path: Path, shape: str) -> None:
    key, parent = "Torch.a.0.forward", "Module.m.layers.0.L.forward.0"
    none = {"null": None, "empty": "", "pair": [None, 0]}[shape]
    held = [parent, 3] if shape == "pair" else parent
    construct: dict[str, Any] = {key: held, parent: none}
    if shape == "pair":
        construct["megatron_micro_step_number"] = 4
    entries = one(tmp_path, {key: {"output": [TENSOR]}, parent: {"output": [TENSOR]}}, construct).entries
    assert entries[key].parent == parent and entries[parent].parent == ""
    assert entries[key].micro_step == (3 if shape == "pair" else None)


def test_a_forward_inside_a_backward_is_a_recomputation(tmp_path: Path) -> None:
    key, parent = "Module.m.layers.0.L.forward.1", "Module.m.layers.0.L.backward.0"
    entries = one(tmp_path, {key: {"output": [TENSOR]}, parent: {"output": []}}, {key: parent, parent: None}).entries
    assert entries[key].recompute and not entries[parent].recompute


def test_a_construct_of_another_run_is_noticed(tmp_path: Path) -> None:
    dump = one(tmp_path, {"Torch.a.0.forward": {}, "Torch.b.0.forward": {}}, {"Torch.z.0.forward": None})
    assert "another run" in dump.notes[0]


def test_stack_in_both_layouts_and_the_users_line(tmp_path: Path) -> None:
    frames = [
        "File /x/torch/nn/module.py, line 1, in call, \n a",
        "File /home/me/model/net.py, line 42, in forward, \n y = f(x)",
    ]
    path = tmp_path / "stack.json"
    path.write_text(json.dumps({"0": [["Torch.a.0.forward", "Torch.b.0.forward"], frames]}))
    new = read_stack(path)
    path.write_text(json.dumps({"Torch.a.0.forward": frames}))
    assert read_stack(path)["Torch.a.0.forward"] == new["Torch.b.0.forward"] == frames
    assert user_line(frames) == "model/net.py, line 42, in forward" and user_line(frames[:1]) == ""


def test_places_come_from_the_path_and_processes_after_the_ranks(tmp_path: Path) -> None:
    for part in ("step2/rank1", "step2/rank0", "step10/rank0", "step2/proc900", "step2/proc77"):
        put(tmp_path / part, {})
    places = find_dumps(tmp_path)
    assert [(p.step, p.rank, p.proc) for p in places] == [
        (2, 0, None),
        (2, 1, None),
        (2, 2, 77),
        (2, 3, 900),
        (10, 0, None),
    ]
    assert places[2].label == "step2/proc77" and not places[0].assumed
    bare = find_dumps(put(tmp_path / "elsewhere", {}))
    assert bare[0].assumed and (bare[0].step, bare[0].rank) == (0, 0)


def test_what_is_no_dump_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="does not exist"):
        find_dumps(tmp_path / "none")
    with pytest.raises(UnreadableError, match=r"no dump\.json"):
        find_dumps(tmp_path)
    (tmp_path / "dump.json").write_text('{"phase": 1}')
    with pytest.raises(UnreadableError, match="no member 'data'"):
        read_dump(find_dumps(tmp_path)[0])


def test_a_truncated_dump_keeps_its_whole_entries(tmp_path: Path) -> None:
    folder = put(tmp_path / "step0" / "rank0", {f"Torch.f.{i}.forward": {"output": [TENSOR]} for i in range(20)})
    path = folder / "dump.json"
    path.write_text(path.read_text()[:900])
    dump = read_dump(find_dumps(folder)[0])
    assert 0 < len(dump.entries) < 20 and "ends in the middle" in dump.truncated


def gradients(step: int, rank: int, scale: float, count: int = 1) -> dict[str, Any]:
    data: dict[str, Any] = {}
    rng = np.random.default_rng(step * 100 + rank)
    for k in range(count):
        for layer in (1, 0):
            norm = scale * float(np.exp(rng.normal(0, 0.05)))
            data[f"Module.net.layers.{layer}.Linear.parameters_grad.{step * count + k}"] = {
                "weight": [{**TENSOR, "Norm": norm}]
            }
    return data


def test_gradients_of_many_dumps_form_a_cube_and_the_running_index_is_no_step(tmp_path: Path) -> None:
    for step in range(6):
        for rank in range(3):
            put(
                tmp_path / f"step{step}" / f"rank{rank}", gradients(step, rank, 50.0 if (step, rank) == (4, 2) else 1.0)
            )
    cube, notes = gradient_cube(find_dumps(tmp_path))
    assert cube.values.shape == (3, 2, 6, 1) and not notes
    assert [t.name for t in cube.targets] == ["net.layers.1.weight", "net.layers.0.weight"]
    lead = detect(load(tmp_path))["groups"][0]["lead"]
    assert (lead["optimizer_step"], lead["rank"], lead["micro_step"]) == (4, 2, None)


def test_several_triggers_in_one_step_are_micro_steps(tmp_path: Path) -> None:
    for step in range(2):
        put(tmp_path / f"step{step}" / "rank0", gradients(step, 0, 1.0, count=3))
    cube, _ = gradient_cube(find_dumps(tmp_path))
    assert cube.micro_steps == 3


def test_a_single_process_dump_is_read_and_one_dump_gives_candidates_only(tmp_path: Path) -> None:
    put(tmp_path / "step0" / "proc2016", gradients(0, 0, 1.0))
    result = detect(load(tmp_path))
    assert (result["outcome"], result["exit_code"]) == ("insufficient", 3)
    assert [row["target_name"] for row in result["absolute_candidates"]] and result["anomalies"] == []


def test_dumps_without_gradients_are_said(tmp_path: Path) -> None:
    put(tmp_path / "step0" / "rank0", {"Torch.a.0.forward": {"output": [TENSOR]}})
    with pytest.raises(UnreadableError, match="L0 or mix"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "entries", "framework"),
    [
        ("repo_npu_megatron_dump.json", 12, "pytorch"),
        ("repo_mindspore_dump.json", 13, "mindspore"),
        ("repo_gpu_resnet_step0_excerpt_dump.json", 43, "pytorch"),
        ("gen_md5_edge_dump.json", 29, "pytorch"),
    ],
)
def test_the_real_dumps(sample, name: str, entries: int, framework: str) -> None:  # type: ignore[no-untyped-def]
    dump = read_dump(DumpPlace(0, 0, sample(name)))
    assert (len(dump.entries), dump.framework, dump.truncated) == (entries, framework, "")
    assert not [e for e in dump.entries.values() if e.key.kind == OTHER]
    assert dump.has_checksums == name.startswith("gen_md5")


def test_the_real_construct_and_stacks(tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    for part in ("dump", "construct"):
        (tmp_path / f"{part}.json").write_bytes(sample(f"repo_npu_megatron_{part}.json").read_bytes())
    dump = read_dump(DumpPlace(0, 0, tmp_path / "dump.json"))
    assert dump.entries["NPU.npu_rms_norm.0.forward"].parent.endswith("input_norm.RMSNorm.forward.0") and not dump.notes
    both = json.loads(sample("repo_stack_formats_excerpt.json").read_text())
    for layout, keys in (("old_format", 3), ("new_format", 3)):
        (tmp_path / "stack.json").write_text(json.dumps(both[layout]))
        assert len(read_stack(tmp_path / "stack.json")) == keys
