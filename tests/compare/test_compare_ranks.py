"""Ranks of one run against each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detaudit.cli import main
from detaudit.compare.ranks import compare_ranks
from detaudit.core.errors import InconclusiveError
from detaudit.core.names import Selection
from detaudit.trail.reader import TrailReader
from tests.made_runs import make_trail


def ranks(directory: Path, odd: int | None = None, count: int = 3, leaf: str = "param.w") -> dict[str, TrailReader]:
    for rank in range(count):
        changes = {(2, leaf): 99} if rank == odd else {}
        make_trail(directory / f"rank{rank}.trail", changes=changes)
    return {f"rank{rank}": TrailReader(directory / f"rank{rank}.trail") for rank in range(count)}


def test_equal_replicas_agree(tmp_path: Path) -> None:
    result = compare_ranks(ranks(tmp_path))
    assert result.disagreement is None
    assert (result.steps_compared, result.leaves_compared) == (5, 1)


def test_the_first_step_and_the_lone_rank_are_named(tmp_path: Path) -> None:
    found = compare_ranks(ranks(tmp_path, odd=1)).disagreement
    assert found is not None
    assert (found.step, found.leaf, found.alone) == (2, "param.w", "rank1")
    assert found.groups == (("rank0", "rank2"), ("rank1",))


def test_of_two_ranks_neither_is_alone(tmp_path: Path) -> None:
    found = compare_ranks(ranks(tmp_path, odd=1, count=2)).disagreement
    assert found is not None and found.alone == ""


def test_batches_may_differ_unless_they_are_asked_for(tmp_path: Path) -> None:
    trails = ranks(tmp_path, odd=0, leaf="batch.0")
    assert compare_ranks(trails).disagreement is None
    found = compare_ranks(trails, Selection.parse(["batch.*"])).disagreement
    assert found is not None and found.leaf == "batch.0"


def test_nothing_to_compare_is_inconclusive(tmp_path: Path) -> None:
    trails = ranks(tmp_path)
    with pytest.raises(InconclusiveError, match="no replicas"):
        compare_ranks({"rank0": trails["rank0"]})
    with pytest.raises(InconclusiveError, match=r"no leaf that matches nothing\.\*"):
        compare_ranks(trails, Selection.parse(["nothing.*"]))


def test_the_verb_prints_it_and_exits_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks(tmp_path, odd=2)
    assert main(["ranks", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("FIRST_DISAGREEMENT: step=2 leaf=param.w; rank2 is alone\n")
    assert main(["ranks", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["alone"] == "rank2"
    assert main(["ranks", str(tmp_path), "--leaves", "rng.torch"]) == 0
    assert capsys.readouterr().out == "AGREE: 3 ranks, 5 steps, 1 leaves\n"
