"""The double run, with a stand-in for the recorded training: fast, without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from detaudit.audit import Request, check, run_label
from detaudit.core.errors import UsageError
from detaudit.core.model import ExplanationKind, Outcome

FAKE = str(Path(__file__).with_name("fake_training.py"))


@pytest.fixture
def audit(tmp_path, monkeypatch):
    """Audits the stand-in in a working directory of its own; the results lie beside it."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def run(how="clean", flags=(), **more):
        lines = []
        request = Request((sys.executable, *flags, FAKE, how), tmp_path / "out", **{"drill": False, **more})
        verdict = check(request, lines.append)
        assert json.loads((tmp_path / "out" / "verdict.json").read_text())["verdict"] == str(verdict.outcome)
        return verdict, lines

    return run


def test_clean(audit, tmp_path):
    verdict, lines = audit()
    assert verdict.outcome is Outcome.CLEAN and (verdict.steps_compared, verdict.leaves_compared) == (10, 3)
    assert [run.label for run in verdict.runs] == ["A", "B"]
    assert all(run.exit_status == 0 and run.wall_seconds > 0 and run.last_step == 9 for run in verdict.runs)
    assert Path(verdict.certificate) == tmp_path / "out" / "certificate.json"
    assert verdict.next_command == f"detaudit verify {tmp_path / 'out'}"
    assert lines[0].startswith("run A: ") and lines[-1].startswith("run B: exit status 0, ")


def test_diverged(audit, tmp_path):
    verdict, _ = audit("diverge:4", stats=True)
    first = verdict.first_divergence
    assert verdict.outcome is Outcome.DIVERGED and (first.step, first.leaf, first.delta) == (4, "loss", 0.125)
    assert [leaf.leaf for leaf in verdict.diverging_leaves] == ["loss", "param.w"] and verdict.equal_before == 1
    assert not (tmp_path / "out" / "certificate.json").exists() and verdict.certificate == ""
    assert verdict.next_command.endswith("--step 4")


def test_a_drill_down_without_operators_proves_nothing(audit, tmp_path):
    """The stand-in writes no trace: the pair is run once, and what it lacks is said."""
    verdict, lines = audit("diverge:4", drill=True)
    found = verdict.explanation
    assert found.kind is ExplanationKind.UNPROVEN and found.step == 4 and "was not written" in found.evidence[0]
    assert sum(line.startswith("drill-down, pair") for line in lines) == 2
    assert (tmp_path / "out" / "drill" / "pair1-A" / "main.trail").exists()
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["explanation"]["kind"] == "unproven"


@pytest.mark.parametrize("how", ["clean", "fail:4"])
def test_no_drill_down_without_a_divergence(audit, tmp_path, how):
    verdict, _ = audit(how, drill=True)
    assert verdict.explanation is None and not (tmp_path / "out" / "drill").exists()


def test_a_declined_drill_down(audit, tmp_path):
    verdict, _ = audit("diverge:4", drill=False)
    assert verdict.explanation is None and not (tmp_path / "out" / "drill").exists()


def test_pairs_below_one_are_refused(audit):
    with pytest.raises(UsageError, match="--pairs 0"):
        audit(pairs=0)


@pytest.mark.parametrize(("how", "word"), [("clean", "<testcase"), ("diverge:4", "<failure"), ("fail:4", "<error")])
def test_reports_for_continuous_integration_lie_in_the_directory(audit, tmp_path, how, word):
    verdict, _ = audit(how)
    assert word in (tmp_path / "out" / "junit.xml").read_text()
    assert (tmp_path / "out" / "summary.md").read_text().startswith(f"### detaudit: {verdict.outcome}\n")


def test_three_runs_name_the_run_that_differs(audit):
    verdict, lines = audit("diverge:0", runs=3)
    assert verdict.outcome is Outcome.DIVERGED and len(verdict.runs) == 3 and verdict.pair == ("A", "B")
    assert verdict.reason.endswith("(run B; 2 of 2 runs differ from run A)") and len(lines) == 6


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("fail:4", "run A failed with exit status 4 after step 9"),
        ("torn", "breaks off after step 9"),
        ("silent", "no optimizer step"),
        ("garbage", "run A was not recorded whole"),
    ],
)
def test_inconclusive(audit, how, words):
    verdict, _ = audit(how)
    assert verdict.outcome is Outcome.INCONCLUSIVE and words in verdict.reason and verdict.certificate == ""


def test_a_python_that_ignores_the_recorder(audit):
    verdict, _ = audit("unloaded", flags=("-I",))
    assert verdict.outcome is Outcome.INCONCLUSIVE and "pip install detaudit" in verdict.reason


def test_a_failed_run_points_to_its_stderr(audit, tmp_path):
    assert audit("fail:4")[0].next_command == f"cat {tmp_path / 'out' / 'A' / 'stderr.txt'}"


def test_a_command_that_never_starts_the_stand_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="cannot be run"):
        check(Request((str(tmp_path / "no-such-program"),), tmp_path / "out"))


def test_settings_reach_the_runs(audit):
    verdict, _ = audit(steps=6, every=3)
    assert verdict.outcome is Outcome.CLEAN and verdict.steps_compared == 2


def test_a_selection_is_applied_and_said(audit):
    verdict, _ = audit("diverge:4", leaves=("rng.*",))
    assert verdict.outcome is Outcome.CLEAN and verdict.selection == "rng.*" and verdict.leaves_compared == 1


def test_files_that_run_a_left_stand_in_a_diverged_verdict(audit):
    verdict, _ = audit("resume")
    assert verdict.outcome is Outcome.DIVERGED
    assert "checkpoint.pt" in verdict.created_files and "run B may have read them" in verdict.warnings[-1]


def test_files_are_no_topic_of_a_clean_verdict(audit):
    assert audit()[0].created_files == ()


def test_other_stdout_is_a_warning(audit):
    verdict, _ = audit("print")
    assert verdict.outcome is Outcome.CLEAN and "what the runs wrote to stdout differs" in verdict.warnings


def test_one_run_is_no_audit(tmp_path):
    with pytest.raises(UsageError, match="at least 2 runs"):
        check(Request(("true",), tmp_path / "out", runs=1))


def test_an_unknown_variable_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("DETAUDIT_EVRY", "2")
    with pytest.raises(UsageError, match="DETAUDIT_EVRY"):
        check(Request(("true",), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_earlier_result_is_replaced_and_nothing_else(audit, tmp_path):
    audit("fail:1")
    assert audit()[0].outcome is Outcome.CLEAN
    (tmp_path / "out" / ".detaudit").unlink()
    with pytest.raises(UsageError, match="not written by detaudit"):
        audit()


def test_labels():
    assert [run_label(index) for index in (0, 1, 25, 26)] == ["A", "B", "Z", "R26"]
