from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from spike_dumps import DumpSpec, Effect, write_side

from detaudit.core.errors import UnreadableError, UsageError
from detaudit.spike.detect import detect
from detaudit.spike.sides import Request, assemble, trace_sides
from detaudit.spike.sources import load

BAD = (4, 2)
"""Step and rank of the spike in the generated directories."""


def dumps(
    root: Path, steps: int = 6, ranks: int = 4, bad: tuple[tuple[int, int], ...] = (BAD,), **change: Any
) -> dict[str, Path]:
    """An abnormal side and a benchmark side, a dump for every step and rank; the abnormal one holds the spike at
    `bad`."""
    for step in range(steps):
        for rank in range(ranks):
            spiked = (step, rank) in bad
            effects = (Effect(layers=(1, 2), factor=2.0), Effect("backward", (2, 1, 0), 40.0)) if spiked else ()
            spec = DumpSpec(seed=rank, layers=3, effects=effects, device=0, **change)
            write_side(spec, "A" if spiked else "C", root / "npu" / f"step{step}" / f"rank{rank}")
            write_side(spec, "B" if spiked else "D", root / "gpu" / f"step{step}" / f"rank{rank}")
    return {"npu": root / "npu", "gpu": root / "gpu"}


def request(paths: dict[str, Path], coordinate: tuple[int, int] | None = BAD, **change: Any) -> Request:
    return Request(str(paths["npu"]), str(paths["gpu"]), coordinate=coordinate, **change)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return dumps(tmp_path_factory.mktemp("dumps"))


@pytest.fixture(scope="module")
def phase1(many: dict[str, Path]) -> dict[str, Any]:
    return detect(load(many["npu"]))


def test_dumps_alone_lead_through_all_three_phases(many: dict[str, Path], phase1: dict[str, Any]) -> None:
    from detaudit.spike.select import select

    phase2 = select(phase1)
    root = phase2["root_cause_coordinate"]
    assert (root["optimizer_step"], root["rank"]) == BAD
    sides = assemble(request(many, None), phase1, phase2)
    assert {side: place.label for side, place in sides.places.items()} == {
        "A": "step4/rank2",
        "B": "step4/rank2",
        "C": "step4/rank1",
        "D": "step4/rank1",
    }
    result = trace_sides(sides)
    assert result["mode"] == "four groups" and result["conclusion"]["forward"]["start"] == "decoder.layers.1"
    assert any("chosen automatically" in note for note in result["notes"])


def test_without_phase_one_nothing_is_known_to_be_normal_and_the_user_is_asked(many: dict[str, Path]) -> None:
    result = trace_sides(assemble(request(many)))
    assert (result["outcome"], result["exit_code"]) == ("question", 3)
    assert "--dump-c" in result["questions"][0] and "no phase-1 result" in result["questions"][0]
    assert len(result["controls_considered"]) == 23 and result["conclusion"] == {}


def test_no_control_compares_two_dumps_when_the_user_says_so(many: dict[str, Path]) -> None:
    result = trace_sides(assemble(request(many, no_control=True)))
    assert result["mode"] == "A/B only" and "systematic bias" in result["control_warning"]


def test_a_candidate_that_phase_one_calls_abnormal_is_never_taken(
    many: dict[str, Path], phase1: dict[str, Any]
) -> None:
    everywhere = json.loads(json.dumps(phase1))
    for step in range(6):
        everywhere["groups"].append(
            {**phase1["groups"][0], "optimizer_step": step, "ranks": [{"rank": r} for r in range(4)]}
        )
    sides = assemble(request(many), everywhere)
    assert "C" not in sides.places and "abnormal in phase 1" in sides.question


def test_what_phase_one_did_not_see_is_not_called_normal(many: dict[str, Path], phase1: dict[str, Any]) -> None:
    narrow = {**phase1, "summary": {**phase1["summary"], "rank_ids": [2]}}
    sides = assemble(request(many), narrow)
    assert sides.places["C"].rank == 2
    blind = {**phase1, "summary": {**phase1["summary"], "cells_judged": 0}}
    assert "phase 1 did not see it" in assemble(request(many), blind).question


def test_a_gradient_above_the_upper_quartile_is_no_control(tmp_path: Path, phase1: dict[str, Any]) -> None:
    paths = dumps(tmp_path, steps=5, ranks=3)
    loud = paths["npu"] / "step4" / "rank1" / "dump.json"
    data = json.loads(loud.read_text())
    for key, entry in data["data"].items():
        if "parameters_grad" in key:
            entry["weight"][0]["Norm"] *= 3
    loud.write_text(json.dumps(data))
    sides = assemble(request(paths), {**phase1, "groups": []})
    assert sides.places["C"].label != "step4/rank1"
    objection = next(row["objection"] for row in sides.considered if row["place"] == "step4/rank1")
    assert "75th percentile" in objection


def test_another_micro_batch_shape_or_no_benchmark_is_no_control(tmp_path: Path, phase1: dict[str, Any]) -> None:
    paths = dumps(tmp_path, steps=5, ranks=3)
    write_side(DumpSpec(layers=3, micro_batch=(2, 8)), "C", paths["npu"] / "step4" / "rank1")
    (paths["gpu"] / "step4" / "rank0" / "dump.json").unlink()
    sides = assemble(request(paths), phase1)
    objections = {row["place"]: row["objection"] for row in sides.considered}
    assert "another shape" in objections["step4/rank1"] and "no dump of this step" in objections["step4/rank0"]
    assert sides.places["C"].label == "step3/rank2", "the same rank at the nearest step comes next"


def test_a_lonely_pair_degrades_to_two_sides_and_says_so(tmp_path: Path) -> None:
    for side, name in (("A", "npu"), ("B", "gpu")):
        write_side(DumpSpec(layers=3), side, tmp_path / name / "step4" / "rank2")
    sides = assemble(Request(str(tmp_path / "npu"), str(tmp_path / "gpu")))
    assert sorted(sides.places) == ["A", "B"] and not sides.question
    assert "compared without a control group" in sides.notes[0]


def test_a_directory_of_many_needs_a_coordinate(many: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"holds 24 dumps .* Give one directory, or --coordinate"):
        assemble(request(many, None))
    with pytest.raises(UsageError, match="none is step 9 rank 9"):
        assemble(request(many, (9, 9)))


def test_a_rank_that_phase_two_could_not_tell_is_a_question(many: dict[str, Path]) -> None:
    phase2 = {
        "root_cause_coordinate": {
            "optimizer_step": 4,
            "rank": None,
            "rank_scope": "all ranks",
            "ranks": [0, 1],
            "micro_step": None,
        }
    }
    with pytest.raises(UsageError, match="could not tell the rank apart"):
        assemble(request(many, None), None, phase2)


def test_c_and_d_belong_together(many: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="belong together"):
        assemble(request(many, c=str(many["npu"])))
    with pytest.raises(UnreadableError, match="does not exist"):
        assemble(request(many, c="/nowhere", d="/nowhere"))


def test_a_stale_dump_of_another_step_is_noticed(many: dict[str, Path]) -> None:
    only = str(many["npu"] / "step1" / "rank0")
    sides = assemble(Request(only, str(many["gpu"] / "step1" / "rank0"), coordinate=BAD, no_control=True))
    assert "dump A is step 1 rank 0, the root coordinate is step 4 rank 2" in sides.notes[0]


def test_given_controls_are_taken_as_they_are(many: dict[str, Path]) -> None:
    c, d = (str(many[side] / "step0" / "rank3") for side in ("npu", "gpu"))
    sides = assemble(request(many, c=c, d=d))
    assert sides.places["C"].label == sides.places["D"].label == "step0/rank3" and not sides.considered
