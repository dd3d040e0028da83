from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.spike.checksums import first_divergence, unmatched
from detaudit.spike.read_dump import Dump, DumpPlace, find_dumps, read_dump


def t(checksum: str, shape: tuple[int, ...] = (2, 2)) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(shape),
        "Max": 1.0,
        "Min": 0.0,
        "Mean": 0.5,
        "Norm": 1.0,
        "md5": checksum,
    }


def forward(inputs: list[str], outputs: list[str]) -> dict[str, Any]:
    return {"input_args": [t(c) for c in inputs], "input_kwargs": {}, "output": [t(c) for c in outputs]}


def backward(inputs: list[str], outputs: list[str]) -> dict[str, Any]:
    return {"input": [t(c) for c in inputs], "output": [t(c) for c in outputs]}


def dump(folder: Path, data: dict[str, Any]) -> Dump:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dump.json").write_text(json.dumps({"task": "statistics", "level": "L1", "data": data}))
    return read_dump(find_dumps(folder)[0])


CHAIN = {
    "Torch.embed.0.forward": forward(["i"], ["x0"]),
    "Torch.relu.0.forward": forward(["x0"], ["x1"]),
    "Torch.pow.0.forward": forward(["x1"], ["x2"]),
    "Torch.sum.0.forward": forward(["x2"], ["x3"]),
    "Torch.sum.0.backward": backward(["g3"], ["g2"]),
    "Torch.pow.0.backward": backward(["g2"], ["g1"]),
    "Torch.relu.0.backward": backward(["g1"], ["g0"]),
}


def changed(**entries: dict[str, Any]) -> dict[str, Any]:
    return {**CHAIN, **{key.replace("__", "."): value for key, value in entries.items()}}


def pair(tmp_path: Path, b: dict[str, Any], a: dict[str, Any] | None = None) -> dict[str, Any]:
    return first_divergence(dump(tmp_path / "a", a or CHAIN), dump(tmp_path / "b", b))


def test_a_dump_against_itself_is_equal(tmp_path: Path) -> None:
    found = pair(tmp_path, CHAIN)
    assert (found["verdict"], found["operator"], found["compared"]) == ("equal", None, 7)


def test_the_first_operator_with_equal_inputs_and_unequal_outputs(tmp_path: Path) -> None:
    b = changed(Torch__pow__0__forward=forward(["x1"], ["!"]), Torch__sum__0__forward=forward(["!"], ["!!"]))
    found = pair(tmp_path, b)
    assert (found["verdict"], found["operator"], found["last_good"]) == (
        "operator",
        "Torch.pow.0.forward",
        "Torch.relu.0.forward",
    )


def test_reversing_the_sides_names_the_same_operator(tmp_path: Path) -> None:
    b = changed(Torch__pow__0__forward=forward(["x1"], ["!"]))
    forth, back = pair(tmp_path / "1", b), pair(tmp_path / "2", CHAIN, b)
    assert forth["operator"] == back["operator"] == "Torch.pow.0.forward"


def test_a_backward_inherits_what_its_forward_saved(tmp_path: Path) -> None:
    """Facts 3: named Tensor.pow.0.backward although an unrecorded multiplication had changed pow's input."""
    b = changed(
        Torch__pow__0__forward=forward(["x1!"], ["x2"]),
        Torch__pow__0__backward=backward(["g2"], ["!"]),
        Torch__relu__0__backward=backward(["!"], ["!!"]),
    )
    found = pair(tmp_path, b)
    assert (found["verdict"], found["operator"]) == ("gap", "Torch.pow.0.forward")
    assert "still holds the output of Torch.relu.0.forward" in found["reason"]


def test_a_backward_whose_forward_differs_is_listed_as_inheriting(tmp_path: Path) -> None:
    a = {"Torch.pow.0.backward": CHAIN["Torch.pow.0.backward"], "Torch.pow.0.forward": CHAIN["Torch.pow.0.forward"]}
    b = {"Torch.pow.0.backward": backward(["g2"], ["!"]), "Torch.pow.0.forward": forward(["x1"], ["!"])}
    found = pair(tmp_path, b, a)
    assert found["operator"] == "Torch.pow.0.forward" and found["inherited"] == ["Torch.pow.0.backward"]


def test_a_backward_of_its_own_is_named(tmp_path: Path) -> None:
    found = pair(tmp_path, changed(Torch__pow__0__backward=backward(["g2"], ["!"])))
    assert (found["verdict"], found["operator"]) == ("operator", "Torch.pow.0.backward")


def test_unequal_inputs_at_the_very_start_are_the_inputs(tmp_path: Path) -> None:
    b = changed(Torch__embed__0__forward=forward(["j"], ["!"]), Torch__relu__0__forward=forward(["!"], ["!!"]))
    assert pair(tmp_path, b)["verdict"] == "inputs"


def test_unmatched_entries_are_findings(tmp_path: Path) -> None:
    b = {**CHAIN, "Tensor.__mul__.0.forward": forward(["x3"], ["x4"])}
    found = pair(tmp_path, b)
    assert found["verdict"] == "gap" and found["unmatched"] == ["Tensor.__mul__.0.forward: only in B"]
    back = pair(tmp_path / "2", CHAIN, b)
    assert back["unmatched"] == ["Tensor.__mul__.0.forward: only in A"]


@pytest.mark.parametrize("api", ["Torch.empty", "Distributed.recv", "Distributed.all_gather"])
def test_buffers_that_are_only_written_to_decide_nothing_by_their_old_contents(tmp_path: Path, api: str) -> None:
    a = {f"{api}.0.forward": forward(["old1"], ["x"])}
    b = {f"{api}.0.forward": forward(["old2"], ["x"])}
    assert pair(tmp_path, b, a)["verdict"] == "equal"


def test_a_missing_tensor_another_shape_or_dtype_is_unequal(tmp_path: Path) -> None:
    for i, other in enumerate(([], [t("x1", (4,))], [{**t("x1"), "dtype": "torch.bfloat16"}])):
        b = changed(Torch__relu__0__forward={"input_args": [t("x0")], "output": other})
        assert pair(tmp_path / str(i), b)["operator"] == "Torch.relu.0.forward"


def test_parameter_gradients_never_diverge_of_themselves(tmp_path: Path) -> None:
    key = "Module.a.Linear.parameters_grad.0"
    a, b = ({**CHAIN, key: {"weight": [t(c)]}} for c in ("w", "!"))
    found = pair(tmp_path, b, a)
    assert found["verdict"] == "gap" and found["inherited"] == [key] and found["operator"] is None


def test_no_checksums_or_two_kinds_are_not_comparable(tmp_path: Path) -> None:
    bare = {"Torch.a.0.forward": {"output": [{**t(""), "md5": None}]}}
    assert "no checksums" in pair(tmp_path / "1", bare, bare)["reason"]
    first = {"Torch.relu.0.forward": {"output": [t("0x0123456789abcdef")]}}
    assert "two kinds" in pair(tmp_path / "2", first, CHAIN)["reason"]
    assert "blind" in pair(tmp_path / "3", first, first)["weak"]
    assert "has a counterpart" in pair(tmp_path / "4", {"Torch.z.0.forward": forward(["x0"], ["x"])})["reason"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 11), st.integers(12, 20))
def test_in_a_chain_the_broken_operator_is_always_named(
    tmp_path_factory: pytest.TempPathFactory, place: int, length: int
) -> None:
    root = tmp_path_factory.mktemp("chain")

    def chain(bad: int | None) -> dict[str, Any]:
        value = lambda i: f"v{i}" + ("!" if bad is not None and i > bad else "")  # noqa: E731
        return {f"Torch.op.{i}.forward": forward([value(i)], [value(i + 1)]) for i in range(length)}

    found = first_divergence(dump(root / "a", chain(None)), dump(root / "b", chain(place)))
    assert (found["verdict"], found["operator"]) == ("operator", f"Torch.op.{place}.forward")


def test_unmatched_is_empty_for_equal_dumps(tmp_path: Path) -> None:
    one = dump(tmp_path, CHAIN)
    assert unmatched(one, one) == []


def test_the_real_sample_equals_itself(sample) -> None:  # type: ignore[no-untyped-def]
    one = read_dump(DumpPlace(0, 0, sample("gen_md5_edge_dump.json")))
    assert first_divergence(one, one)["verdict"] == "equal"


def test_the_real_sample_with_one_changed_operator(tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    text = sample("gen_md5_edge_dump.json").read_text()
    data = json.loads(text)
    data["data"]["Torch.where.0.forward"]["output"][0]["md5"] = "00000000"
    (tmp_path / "dump.json").write_text(json.dumps(data))
    a = read_dump(DumpPlace(0, 0, sample("gen_md5_edge_dump.json")))
    found = first_divergence(a, read_dump(DumpPlace(0, 0, tmp_path / "dump.json")))
    assert (found["verdict"], found["operator"]) == ("operator", "Torch.where.0.forward")
