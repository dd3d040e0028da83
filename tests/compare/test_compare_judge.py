"""Every way to a false clean, shut. Each test fails when its check is taken out of `compare/runs.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detaudit.compare.evidence import open_run
from detaudit.compare.runs import judge
from detaudit.core.errors import TrailCorruptError
from detaudit.core.model import Layout, Leaf, Outcome, RunManifest, StepKind
from detaudit.core.names import Selection
from tests.made_runs import MANIFEST, NAMES, layout, make_pair, make_run

EVERYTHING = Selection()
LOSS_DIFFERS = {"changes": {(3, "loss"): 1}}
LOSS_IS_NAN = {"kind": "nonfinite", "leaf": "loss", "what": "NaN", "step": 2}
TWO_RANKS = {"ranks": ("rank0", "rank1")}


def verdict_of(root, a=None, b=None, globs=(), **more):
    return judge(*make_pair(root, a, b), Selection.parse(globs), **more)


def refusal(verdict):
    assert verdict.outcome is Outcome.INCONCLUSIVE and verdict.first_divergence is None
    return verdict.reason


def test_equal_runs_are_clean(tmp_path):
    verdict = verdict_of(tmp_path)
    assert verdict.outcome is Outcome.CLEAN and verdict.warnings == ()
    assert (verdict.steps_compared, verdict.leaves_compared) == (5, len(NAMES))
    assert verdict.reason == "bit-exact over 5 steps and 5 leaves"


def test_a_difference_is_diverged(tmp_path):
    verdict = verdict_of(tmp_path, None, LOSS_DIFFERS)
    assert verdict.outcome is Outcome.DIVERGED and verdict.outcome.exit_code == 1
    assert (verdict.first_divergence.step, verdict.first_divergence.leaf, verdict.equal_before) == (3, "loss", 3)
    assert verdict.reason == "the runs first differ at step 3: loss differs"


@pytest.mark.parametrize("sides", [("a",), ("b",), ("a", "b")], ids="".join)
class TestEachSide:
    """What makes one run no evidence must count whichever side it is on."""

    def judged(self, root, sides, how):
        return verdict_of(root, *(how if side in sides else None for side in "ab"))

    def label(self, sides):
        return sides[0].upper()

    def test_nothing_recorded(self, tmp_path, sides):
        how = {"ranks": (), "missing": "no optimizer was seen"}
        assert refusal(self.judged(tmp_path, sides, how)) == (
            f"run {self.label(sides)} recorded nothing: no optimizer was seen"
        )

    @pytest.mark.parametrize(
        ("status", "words"), [(1, "failed with exit status 1 after step 4"), (-9, "was killed by signal 9")]
    )
    def test_a_failed_run(self, tmp_path, sides, status, words):
        assert words in refusal(self.judged(tmp_path, sides, {"status": status}))

    def test_a_trail_without_an_end(self, tmp_path, sides):
        assert "breaks off after step 4" in refusal(self.judged(tmp_path, sides, {"end": ""}))

    @pytest.mark.parametrize(
        "end", ["exception ValueError", "os._exit(3)", "KeyError: 'x' in the recorder", "disk full", "anything else"]
    )
    def test_a_trail_that_says_it_ended_badly(self, tmp_path, sides, end):
        assert f"after step 4: {end}" in refusal(self.judged(tmp_path, sides, {"end": end}))

    def test_a_torn_trail(self, tmp_path, sides):
        for side in "ab":
            run = make_run(tmp_path / side.upper())
            if side in sides:
                path = run / "main.trail"
                path.write_bytes(path.read_bytes()[:-3])
        verdict = judge(open_run(tmp_path / "A", "A"), open_run(tmp_path / "B", "B"), EVERYTHING)
        assert "bytes of a torn tail were dropped" in refusal(verdict)


@pytest.mark.parametrize("end", ["complete", "step limit", "os._exit(0)"])
def test_ends_that_are_sound(tmp_path, end):
    assert verdict_of(tmp_path, {"end": end}, {"end": end}).outcome is Outcome.CLEAN


def test_no_step_in_common(tmp_path):
    asked = ({"every": 1, "steps": 2}, {"every": 4})
    a, b = (
        {"steps": [step], "manifest": RunManifest(MANIFEST.decisive, context)}
        for step, context in zip((1, 4), asked, strict=True)
    )
    assert refusal(verdict_of(tmp_path, a, b)) == "the runs have no step in common"


def test_no_step_at_all(tmp_path):
    assert refusal(verdict_of(tmp_path, {"steps": 0}, {"steps": 0})) == "the runs have no step in common"


def test_an_empty_leaf_set(tmp_path):
    empty = {"base": Layout(())}
    assert refusal(verdict_of(tmp_path, empty, empty)) == "the trails hold no leaf"


def test_an_empty_selection(tmp_path):
    assert refusal(verdict_of(tmp_path, globs=["no.*"])) == "no leaf matches --leaves 'no.*'"


def test_a_selection_stands_in_the_verdict(tmp_path):
    verdict = verdict_of(tmp_path, None, LOSS_DIFFERS, ["!loss"])
    assert verdict.outcome is Outcome.CLEAN and verdict.selection == "!loss"
    assert verdict.warnings == ("only leaves matching !loss were compared",)


class TestUnsupported:
    ODD = Layout((*layout().leaves, Leaf("act.q", "qint8", (), "quantised tensor")))

    def test_is_never_clean(self, tmp_path):
        reason = refusal(verdict_of(tmp_path, {"base": self.ODD}, {"base": self.ODD}))
        assert "1 leaves could not be digested (act.q: quantised tensor)" in reason and "--leaves '!NAME'" in reason

    def test_can_be_left_out_by_name(self, tmp_path):
        verdict = verdict_of(tmp_path, {"base": self.ODD}, {"base": self.ODD}, ["!act.q"])
        assert verdict.outcome is Outcome.CLEAN and verdict.leaves_compared == len(NAMES)


class TestNaN:
    """NaN is compared by its bits, like everything: equal bits are clean with a warning, others are a divergence."""

    def test_the_same_bits_on_both_sides(self, tmp_path):
        verdict = verdict_of(tmp_path, {"notes": [LOSS_IS_NAN]}, {"notes": [LOSS_IS_NAN]})
        assert verdict.outcome is Outcome.CLEAN
        assert verdict.warnings == ("loss is NaN at step 2, first of the run",)

    def test_other_bits(self, tmp_path):
        verdict = verdict_of(tmp_path, {"notes": [LOSS_IS_NAN]}, {"notes": [LOSS_IS_NAN], **LOSS_DIFFERS})
        assert verdict.outcome is Outcome.DIVERGED


class TestManifests:
    OTHER = RunManifest({**MANIFEST.decisive, "threads": 1}, {})

    def test_unequal_ones_are_refused_with_both_values(self, tmp_path):
        verdict = verdict_of(tmp_path, None, {"manifest": self.OTHER})
        assert "threads: A 2, B 1" in refusal(verdict) and "--allow-differences" in verdict.reason
        assert verdict.manifest_differences == ("threads: A 2, B 1",) and verdict.overrides == ()

    def test_a_difference_of_values_does_not_lift_the_refusal(self, tmp_path):
        refusal(verdict_of(tmp_path, None, {"manifest": self.OTHER, **LOSS_DIFFERS}))

    def test_the_override_stands_in_the_verdict(self, tmp_path):
        verdict = verdict_of(tmp_path, None, {"manifest": self.OTHER}, allow_differences=True)
        assert verdict.outcome is Outcome.CLEAN and verdict.manifest_differences
        assert verdict.overrides == ("unequal manifests were allowed by the user",)

    def test_no_override_where_nothing_was_overridden(self, tmp_path):
        assert verdict_of(tmp_path, allow_differences=True).overrides == ()

    def test_context_decides_nothing(self, tmp_path):
        other = RunManifest(MANIFEST.decisive, {"cpus": 64})
        assert verdict_of(tmp_path, None, {"manifest": other}).outcome is Outcome.CLEAN


class TestRanks:
    def test_all_are_compared(self, tmp_path):
        verdict = verdict_of(tmp_path, TWO_RANKS, TWO_RANKS)
        assert verdict.outcome is Outcome.CLEAN and verdict.leaves_compared == 2 * len(NAMES)

    def test_other_sets_are_never_clean(self, tmp_path):
        reason = refusal(verdict_of(tmp_path, TWO_RANKS, {"ranks": ("rank0",)}))
        assert reason == "the runs left trails of different processes: A rank0, rank1; B rank0"

    def test_no_rank_in_common(self, tmp_path):
        assert "different processes" in refusal(verdict_of(tmp_path, {"ranks": ("rank0",)}, {"ranks": ("rank1",)}))

    def test_the_earliest_step_of_any_rank_decides(self, tmp_path):
        a, _ = make_pair(tmp_path, TWO_RANKS, TWO_RANKS)
        for rank, step in (("rank0", 3), ("rank1", 1)):
            (tmp_path / "B" / f"{rank}.trail").unlink()
            make_run(tmp_path / "B", ranks=(rank,), changes={(step, "loss"): 1})
        verdict = judge(a, open_run(tmp_path / "B", "B"), EVERYTHING)
        assert (verdict.first_divergence.step, verdict.first_divergence.rank) == (1, "rank1")
        assert "step 1 on rank1" in verdict.reason
        assert {leaf.step for leaf in verdict.diverging_leaves} == {1}

    def test_one_step_of_two_ranks_lists_both(self, tmp_path):
        verdict = verdict_of(tmp_path, TWO_RANKS, {**TWO_RANKS, **LOSS_DIFFERS})
        assert [leaf.rank for leaf in verdict.diverging_leaves] == ["rank0", "rank1"]

    @pytest.mark.parametrize("steps", [(2, 5), (5, 2), (0, 5), (5, 0)])
    def test_the_shortest_rank_counts_the_steps(self, tmp_path, steps):
        for label in "AB":
            for rank, count in zip(("rank0", "rank1"), steps, strict=True):
                make_run(tmp_path / label, ranks=(rank,), steps=count)
        verdict = judge(open_run(tmp_path / "A", "A"), open_run(tmp_path / "B", "B"), EVERYTHING)
        assert verdict.steps_compared == min(steps)
        assert verdict.outcome is (Outcome.CLEAN if min(steps) else Outcome.INCONCLUSIVE)


class TestFailuresAndDifferences:
    """A step that one side lacks proves nothing when that run failed; unequal values always do."""

    @pytest.mark.parametrize("how", [{"status": 1}, {"end": ""}, {"end": "exception ValueError"}], ids=str)
    def test_a_missing_step_of_a_failed_run(self, tmp_path, how):
        refusal(verdict_of(tmp_path, None, {"steps": 3, **how}))

    def test_a_missing_step_of_a_sound_run(self, tmp_path):
        verdict = verdict_of(tmp_path, None, {"steps": 3})
        assert verdict.outcome is Outcome.DIVERGED and verdict.first_divergence.step == 3

    def test_unequal_values_of_a_failed_run(self, tmp_path):
        verdict = verdict_of(tmp_path, None, {"status": 1, **LOSS_DIFFERS})
        assert verdict.outcome is Outcome.DIVERGED
        assert verdict.warnings == ("run B failed with exit status 1 after step 4",)


@pytest.mark.parametrize("side", [0, 1])
def test_a_recorder_that_gave_up_on_some_rank(tmp_path, side):
    runs = list(make_pair(tmp_path))
    runs[side] = replace(runs[side], defects=("a recorder failed",))
    assert "was not recorded whole: a recorder failed" in refusal(judge(*runs, EVERYTHING))


class TestWarnings:
    def test_remarks_of_the_launcher(self, tmp_path):
        a, b = make_pair(tmp_path)
        verdict = judge(a, replace(b, remarks=("a helper could not be recorded",)), EVERYTHING)
        assert verdict.outcome is Outcome.CLEAN and verdict.warnings == ("a helper could not be recorded",)

    def test_stdout(self, tmp_path):
        a, b = make_pair(tmp_path)
        differ = judge(replace(a, stdout_digest="1"), replace(b, stdout_digest="2"), EVERYTHING)
        assert differ.outcome is Outcome.CLEAN and differ.warnings == ("what the runs wrote to stdout differs",)
        assert judge(replace(a, stdout_digest="1"), b, EVERYTHING).warnings == ()

    def test_a_note_of_the_recorder(self, tmp_path):
        note = {"kind": "warning", "text": "the numpy generator was never seeded"}
        verdict = verdict_of(tmp_path, {"notes": [note]}, {"notes": [note]})
        assert verdict.warnings == ("the numpy generator was never seeded",)

    def test_steps_by_backward(self, tmp_path):
        how = {"base": layout(kind=StepKind.BACKWARD)}
        assert "no optimizer" in verdict_of(tmp_path, how, how).warnings[0]

    def test_steps_that_one_recorder_left_out(self, tmp_path):
        b = {"steps": [0, 4], "manifest": RunManifest(MANIFEST.decisive, {"every": 4})}
        verdict = verdict_of(tmp_path, None, b)
        assert verdict.outcome is Outcome.CLEAN and verdict.steps_compared == 2
        assert verdict.warnings[0].startswith("3 steps were recorded in one run only")


def test_a_broken_chain_is_an_error(tmp_path, monkeypatch):
    """Digests replaced without their chain: frames are whole, the running hash is not."""
    from detaudit.trail import frames

    real = frames.chain
    monkeypatch.setattr(frames, "chain", lambda *parts: real(*parts) ^ 1)
    make_run(tmp_path / "A")
    monkeypatch.undo()
    with pytest.raises(TrailCorruptError, match="chain is broken"):
        judge(open_run(tmp_path / "A", "A"), open_run(make_run(tmp_path / "B"), "B"), EVERYTHING)
