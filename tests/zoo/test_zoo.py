"""Every program of the zoo is audited as a user would audit it, and must get its known answer."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from detaudit.audit import Request, check
from detaudit.core.model import Verdict
from tests.zoo.expectations import CASES, Case

pytestmark = pytest.mark.timeout(900)

QUICK = {
    "mlp",
    "gan",
    "grad_scaler",
    "checkpointing",
    "lbfgs",
    "loader_workers_spawn",
    "manual_sgd",
    "mp_spawn",
    "race_gather_backward",
    "unseeded_default_rng",
    "never_trains",
    "crash_step_50",
}
"""In the default suite; the others are `slow`. A double run costs two imports of torch."""


def _params() -> list[object]:
    return [pytest.param(case, id=case.name, marks=[] if case.name in QUICK else [pytest.mark.slow]) for case in CASES]


def audit(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int = 2) -> Verdict:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    for name, value in case.environment({}).items():
        monkeypatch.setenv(name, value)
    return check(Request(tuple(case.command()), tmp_path / "out", runs=runs, drill=False))


def attempts(case: Case) -> int:
    """How many audits a case may take: a race need not show in every pair, nor at the same step in each."""
    return 4 if case.verdict == "diverged" and ("threads" in case.marks or case.step is None) else 1


@pytest.mark.parametrize("case", _params())
def test_known_answer(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt in range(attempts(case)):
        home = tmp_path / str(attempt)
        home.mkdir()
        verdict = audit(case, home, monkeypatch)
        first = verdict.first_divergence
        seen = f"{verdict.outcome}: {verdict.reason}; warnings {verdict.warnings}"
        assert not list(home.glob("out/*/recorder-error*")), "the recorder itself failed"
        if first is not None:
            assert any(fnmatchcase(first.leaf, glob) for glob in case.leaf_glob.split("|")), seen
            assert not case.kind or first.kind in case.kind.split("|"), seen
            if case.step in (None, first.step):
                break
    assert verdict.outcome == case.verdict, seen
    assert first is None or case.step in (None, first.step), seen
    if case.warning:
        assert any(fnmatchcase(line.lower(), case.warning) for line in verdict.warnings), seen
