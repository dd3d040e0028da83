"""When a traced pair may answer, and when the window moves: with runs made by hand, without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from detaudit.compare.evidence import open_run
from detaudit.core.env import Settings
from detaudit.core.model import Divergence, DivergenceKind, ExplanationKind
from detaudit.dump.manifest import Header
from detaudit.dump.writer import DumpWriter
from detaudit.explain.drill import SPARE_STEPS, Plan, drill
from tests.made_runs import make_run


def lines(out: str, step: int, last: int):
    """A trace in which index_put, at `step`, is the operator of the leaf `act.encoder`."""
    yield {"format": "detaudit.optrace/1", "window": [max(0, step - 1), last], "reruns": 3}
    yield {"step": step}
    yield {"site": 0, "file": "/p/train.py", "line": 7, "in": "f"}
    ins, outs = [[1, "aa"]], [[2, out]]
    yield {"op": "aten.index_put.default", "site": 0, "ins": ins, "outs": outs, "rerun": [9, 10, 3]}
    yield {"leaf": "act.encoder", "storage": 2, "digest": out}
    yield {"end": 1}


class Runs:
    """Stands in for the audited command: pair n diverges at `diverges[n]` (None: it does not)."""

    def __init__(self, root: Path, diverges: list[int | None], **run: object) -> None:
        self.root, self.diverges, self.run = root, diverges, run
        self.asked: list[Settings] = []

    def __call__(self, label: str, settings: Settings):
        self.asked.append(settings)
        step = self.diverges[int(label[4 : label.index("-")]) - 1]
        out = "ee" if label.endswith("A") else "ff"
        changes = {} if step is None else {(step, "act.encoder"): int(out, 16)}
        make_run(self.root / label, **{"steps": 10, "changes": changes, "sumsq": {}, **self.run})
        if step is not None and settings.trace[0] <= step <= settings.trace[1]:
            text = "".join(json.dumps(line) + "\n" for line in lines(out, step, settings.trace[1]))
            (self.root / label / "main.ops.jsonl").write_text(text)
        return open_run(self.root / label, label)

    @property
    def windows(self):
        return [settings.trace for settings in self.asked[::2]]


def plan(step: int = 4, pairs: int = 3, last_step: int | None = 9, **settings: object) -> Plan:
    first = Divergence(step, "act.encoder", DivergenceKind.VALUE)
    return Plan(first, last_step, Settings("unused", **settings), pairs)


def test_the_first_pair_answers(tmp_path):
    runs, said = Runs(tmp_path, [4]), []
    found = drill(plan(), runs, said.append)
    assert (found.kind, found.operator, found.line, found.step) == ("operator", "index_put", 7, 4)
    assert found.rate == "18 of 20 re-executions on the same inputs differ; 1 of 1 traced pairs diverged"
    assert "the traced pair first diverged at step 4: act.encoder differs; the 2 leaves of that step" in str(found)
    assert runs.windows == [(3, 4)] and all(asked.stats and asked.every == 1 for asked in runs.asked)
    assert len(runs.asked) == 2 and len(said) == 2


def test_a_pair_that_diverges_elsewhere_says_nothing_and_moves_the_window(tmp_path):
    runs = Runs(tmp_path, [7, 7])
    found = drill(plan(), runs)
    assert runs.windows == [(3, 4), (3, 7)] and (found.kind, found.step) == ("operator", 7)
    assert any("outside the traced steps 3 to 4" in line for line in found.evidence)
    assert found.rate.endswith("2 of 2 traced pairs diverged")


def test_a_far_window_is_left(tmp_path):
    runs = Runs(tmp_path, [9, 9], steps=60)
    drill(plan(step=50, last_step=59), runs)
    assert runs.windows == [(49, 50), (8, 9)]


def test_never_in_the_window(tmp_path):
    runs = Runs(tmp_path, [None, 8, None], steps=40)
    found = drill(plan(step=30, last_step=39), runs)
    assert found.kind is ExplanationKind.NOT_REPRODUCED and found.rate == "1 of 3 traced pairs diverged"
    assert len(found.evidence) == 3 and "outside the traced steps 29 to 30" in found.evidence[1]
    assert found.operator == "" and found.line is None


def test_pairs_limits_the_runs(tmp_path):
    runs = Runs(tmp_path, [None, None])
    drill(plan(pairs=2), runs)
    assert len(runs.asked) == 4


def test_a_command_that_fails_while_it_is_traced(tmp_path):
    runs = Runs(tmp_path, [None], status=5)
    found = drill(plan(pairs=1), runs)
    assert found.kind is ExplanationKind.NOT_REPRODUCED and "exit status 5" in found.evidence[0]


def test_a_step_beyond_the_end(tmp_path):
    runs = Runs(tmp_path, [None])
    found = drill(plan(step=100, pairs=1, last_step=100), runs)
    assert found.kind is ExplanationKind.NOT_REPRODUCED
    assert "only reached step 9, the traced steps begin at 99" in found.evidence[0]


def test_a_trace_that_was_not_written_ends_it(tmp_path):
    class Silent(Runs):
        def __call__(self, label, settings):
            found = super().__call__(label, settings)
            (self.root / label / "main.ops.jsonl").unlink()
            (self.root / label / "trace-error.txt").write_text("No space left on device\n")
            return found

    runs = Silent(tmp_path, [4, 4, 4])
    found = drill(plan(), runs)
    assert found.kind is ExplanationKind.UNPROVEN and len(runs.asked) == 2
    assert "No space left on device" in found.evidence[0]


@pytest.mark.parametrize(
    ("every", "window"), [(1, (3, 4)), (4, (0, 4)), (100, (0, 4))]
)  # steps that the audit left out are traced too
def test_the_window_covers_what_every_left_out(tmp_path, every, window):
    runs = Runs(tmp_path, [4])
    drill(plan(every=every), runs)
    assert runs.windows == [window]


@pytest.mark.parametrize(
    ("settings", "last_step", "limit"), [({}, 9, 5 + SPARE_STEPS), ({"steps": 8}, 9, 8), ({}, 3, 0), ({}, None, 0)]
)
def test_how_far_a_traced_pair_runs(tmp_path, settings, last_step, limit):
    """Past the last step that both runs closed lies the tail: the pair then runs to its end."""
    runs = Runs(tmp_path, [4])
    drill(plan(last_step=last_step, **settings), runs)
    assert runs.asked[0].steps == limit


class Keeping(Runs):
    """Also dumps the leaf that it is asked for: one element of run B is moved."""

    def __call__(self, label, settings):
        found = super().__call__(label, settings)
        writer = DumpWriter(self.root / label / "dump" / "main", Header("main", (), settings.dump_steps, (), 999))
        for step in settings.dump_steps:
            writer.add(step, settings.dump_leaves[0], np.array([1.0, 2.0 if label.endswith("A") else 2.5]))
        writer.close("complete")
        return found


def test_the_bytes_of_the_leaf_enter_the_evidence(tmp_path):
    runs = Keeping(tmp_path, [4])
    found = drill(plan(), runs)
    assert {(s.dump, s.dump_steps, s.dump_leaves) for s in runs.asked} == {(True, (3, 4), ("act.encoder",))}
    assert any(line.startswith("act.encoder: 1 of 2 elements differ (one element)") for line in found.evidence)
    assert any("values far apart; not a permutation" in line for line in found.evidence)


def test_bytes_that_nobody_kept_are_said_to_be_missing(tmp_path):
    found = drill(plan(), Runs(tmp_path, [4]))
    assert found.kind is ExplanationKind.OPERATOR
    assert any(line.startswith("how the values of act.encoder differ is not known:") for line in found.evidence)


def test_the_next_pair_keeps_what_this_one_parted_at(tmp_path):
    runs = Keeping(tmp_path, [7, 7])
    first = Divergence(4, "loss", DivergenceKind.VALUE)
    found = drill(Plan(first, 9, Settings("unused"), 3), runs)
    assert [s.dump_leaves[0] for s in runs.asked[::2]] == ["loss", "act.encoder"]
    assert any("act.encoder: 1 of 2 elements differ" in line for line in found.evidence)


class TwoRanks:
    """Both ranks differ at step 4 in the same leaf. `racing` holds the ranks whose operator is at fault; to the others
    the value comes from outside."""

    def __init__(self, root: Path, racing: set[str]) -> None:
        self.root, self.racing = root, racing

    def __call__(self, label: str, settings: Settings):
        out = "ee" if label.endswith("A") else "ff"
        ranks, changes = ("rank0", "rank1"), {(4, "act.encoder"): int(out, 16)}
        make_run(self.root / label, ranks=ranks, steps=10, changes=changes, sumsq={})
        for rank in ranks:
            made = [dict(line) for line in lines(out, 4, settings.trace[1])]
            if rank not in self.racing:
                made[3] |= {"op": "c10d.allreduce_.default", "ins": [[1, out]]}
            (self.root / label / f"{rank}.ops.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
        return open_run(self.root / label, label)


def test_a_fault_of_another_rank_that_was_carried_over(tmp_path):
    first = Divergence(4, "act.encoder", DivergenceKind.VALUE, "rank0")
    found = drill(Plan(first, 9, Settings("unused"), 1), TwoRanks(tmp_path, {"rank1"}))
    assert (found.kind, found.operator, found.line) == ("operator", "index_put", 7), found
    text = "\n".join(found.evidence)
    assert "diverged at step 4 in rank1" in text and "rank0, whose act.encoder differs in the same step" in text


@pytest.mark.parametrize(("racing", "kind"), [({"rank0", "rank1"}, "operator"), (set(), "outside|unproven")])
def test_the_first_rank_answers_where_no_other_is_proven(tmp_path, racing, kind):
    first = Divergence(4, "act.encoder", DivergenceKind.VALUE, "rank0")
    found = drill(Plan(first, 9, Settings("unused"), 1), TwoRanks(tmp_path, racing))
    assert str(found.kind) in kind and "in rank0" in "\n".join(found.evidence)
    assert "took over" not in "\n".join(found.evidence)
