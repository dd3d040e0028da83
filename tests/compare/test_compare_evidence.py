"""What a run directory says: its trails, how it ended, and what is no run at all."""

from __future__ import annotations

import json

import pytest

from detaudit.compare.evidence import REPORT_NAME, keep_report, open_run
from detaudit.compare.runs import judge, why_unusable
from detaudit.core.errors import NotATrailError, UnreadableError
from detaudit.core.model import Outcome, StepKind
from detaudit.core.names import Selection
from tests.made_runs import layout, make_run, make_trail


def test_a_directory(tmp_path):
    run = open_run(make_run(tmp_path / "A", ranks=("rank1", "rank0"), steps=3), "A")
    assert list(run.trails) == ["rank0", "rank1"]
    assert (run.report.label, run.report.exit_status, run.report.last_step) == ("A", 0, 2)
    assert run.report.outcome == "complete"


def test_how_it_ended_is_kept_and_read_again(tmp_path):
    run = open_run(make_run(tmp_path / "A", status=7, ranks=(), missing="it never trained"), "A")
    keep_report(tmp_path / "A", run)
    again = open_run(tmp_path / "A", "A")
    assert (again.report.exit_status, again.missing_reason, dict(again.trails)) == (7, "it never trained", {})


@pytest.mark.parametrize("given", ["file", "directory"])
def test_a_failed_run_stays_failed_for_a_later_diff(tmp_path, given):
    """Its trail alone may look sound: a script can fail after its last step."""
    a, b = (make_run(tmp_path / label, status=status) for label, status in (("A", 0), ("B", 1)))
    if given == "file":
        a, b = a / "main.trail", b / "main.trail"
    verdict = judge(open_run(a, "A"), open_run(b, "B"), Selection())
    assert verdict.outcome is Outcome.INCONCLUSIVE and "exit status 1" in verdict.reason


def test_a_file_fits_the_single_trail_of_a_directory_and_another_file(tmp_path):
    alone = open_run(make_trail(tmp_path / "x" / "kept.trail"), "A")
    run = open_run(make_run(tmp_path / "B", ranks=("rank0",)), "B")
    other = open_run(make_trail(tmp_path / "y" / "renamed.trail"), "B")
    for a, b in ((alone, run), (run, alone), (alone, other)):
        assert judge(a, b, Selection()).outcome is Outcome.CLEAN


def test_a_file_does_not_fit_two_ranks(tmp_path):
    alone = open_run(make_trail(tmp_path / "x" / "rank0.trail"), "A")
    run = open_run(make_run(tmp_path / "B", ranks=("rank0", "rank1")), "B")
    assert judge(alone, run, Selection()).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("steps", "last"), [(0, None), (1, None), (2, 0), (5, 3)])
def test_the_tail_is_not_the_last_step(tmp_path, steps, last):
    tail = {steps - 1: layout(kind=StepKind.TAIL)} if steps else {}
    run = open_run(make_run(tmp_path / "A", status=1, steps=steps, layouts=tail), "A")
    assert run.report.last_step == last
    assert ("before its first step" if last is None else f"after step {last}") in why_unusable(run)


class TestNoRun:
    def test_nothing_there(self, tmp_path):
        with pytest.raises(UnreadableError, match="does not exist"):
            open_run(tmp_path / "gone", "A")

    def test_a_directory_of_something_else(self, tmp_path):
        (tmp_path / "notes.txt").write_text("hello")
        with pytest.raises(UnreadableError, match="holds no trail"):
            open_run(tmp_path, "A")

    def test_a_file_of_something_else(self, tmp_path):
        (tmp_path / "notes.trail").write_text("hello, this is no trail")
        with pytest.raises(NotATrailError):
            open_run(tmp_path / "notes.trail", "A")

    @pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"status": 0})])
    def test_a_damaged_report_never_reads_as_success(self, tmp_path, text):
        run = make_run(tmp_path / "A")
        (run / REPORT_NAME).write_text(text)
        with pytest.raises(UnreadableError, match="how the run ended"):
            open_run(run, "A")
