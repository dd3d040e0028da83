"""A verdict survives its own JSON; anything else in its place is refused by name."""

from __future__ import annotations

import json

import pytest

from detaudit.core.errors import UnreadableError
from detaudit.core.model import (
    Cause,
    Divergence,
    DivergenceKind,
    Explanation,
    ExplanationKind,
    Outcome,
    RunReport,
    Toggle,
    Verdict,
)
from detaudit.report.json import verdict_json
from detaudit.report.read import read_verdict

FIRST = Divergence(3, "loss", DivergenceKind.VALUE, "rank1", 2, "opt", "1.5", "1.25", 0.25, "a note")
WHY = Explanation(
    ExplanationKind.OPERATOR,
    3,
    "index_put",
    "net.0",
    "train.py",
    12,
    "x[i]",
    ("equal inputs",),
    "3 of 3",
    (Toggle("threads-1", 2, 0),),
    Cause("index-put-race", "a race", "fix()", "few pairs", "experiment"),
)
VERDICTS = [
    Verdict(Outcome.CLEAN, "bit-exact"),
    Verdict(
        Outcome.DIVERGED,
        "they differ",
        warnings=("one",),
        first_divergence=FIRST,
        diverging_leaves=(FIRST, Divergence(3, "grad.w", DivergenceKind.SHAPE)),
        runs=(RunReport("A", 0, 1.5, 0.1, ("main",), 9, "complete"), RunReport("B", None)),
        pair=("A", "C"),
        command=("python", "train.py"),
        selection="loss",
        explanation=WHY,
    ),
    Verdict(Outcome.DIVERGED, "x", first_divergence=FIRST, explanation=Explanation(ExplanationKind.UNPROVEN, None)),
]


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: f"{verdict.outcome} {verdict.reason}")
def test_written_and_read(verdict, tmp_path):
    path = tmp_path / "verdict.json"
    path.write_text(verdict_json(verdict))
    assert read_verdict(path) == verdict


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file or directory; name the directory of an audit"),
        ("{", "is no JSON"),
        ("[]", "has schema None; this release reads detaudit.verdict/1"),
        ('{"schema": "detaudit.verdict/9"}', "has schema 'detaudit.verdict/9'"),
        ('{"schema": "detaudit.verdict/1"}', "is not whole: KeyError 'first_divergence'"),
    ],
)
def test_refused(text, words, tmp_path):
    path = tmp_path / "verdict.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UnreadableError) as caught:
        read_verdict(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("change", [{"outcome": "odd"}, {"reason": 1, "first_divergence": {"step": 3}}])
def test_a_damaged_part_is_no_crash(change, tmp_path):
    value = json.loads(verdict_json(VERDICTS[1]))
    value.update({"verdict": change.get("outcome", "diverged"), **change})
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(value))
    with pytest.raises(UnreadableError, match="is not whole"):
        read_verdict(path)
