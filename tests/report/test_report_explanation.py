"""The text of an explanation: the sentence first, then the evidence, the toggles, the cause and its fix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detaudit.core.model import Cause, Explanation, ExplanationKind, Toggle
from detaudit.report.explanation import explanation_lines, headline
from detaudit.report.json import explanation_value, verdict_value
from detaudit.report.text import verdict_text
from tests.report.test_report_text import VERDICTS

FOUND = Explanation(
    ExplanationKind.OPERATOR, 3, "index_put", "net.conv", "/p/my train.py", 7, "rows = h[index]",
    ("3 of 3 inputs of index_put are equal in A and B, its output is not",), "9 of 10 re-executions differ",
    (Toggle("threads=1", 3, 0), Toggle("PYTHONHASHSEED=0", 2, 2)),
    Cause("index-put-race", "concurrent adds", "torch.use_deterministic_algorithms(True)", "slower", "experiment"),
)  # fmt: skip


def test_lines():
    assert list(explanation_lines(FOUND, 200)) == [
        "EXPLANATION (operator): index_put at /p/my train.py:7 (module net.conv) gives other results on equal inputs.",
        "    rows = h[index]",
        "rate: 9 of 10 re-executions differ",
        "- 3 of 3 inputs of index_put are equal in A and B, its output is not",
        "  toggle            pairs  diverged",
        "  threads=1             3         0",
        "  PYTHONHASHSEED=0      2         2",
        "likely cause (experiment): concurrent adds [index-put-race]",
        "against it: slower",
        "fix:",
        "    torch.use_deterministic_algorithms(True)",
    ]


@pytest.mark.parametrize("kind", ExplanationKind)
def test_every_kind_has_a_sentence_with_and_without_a_place(kind):
    full, bare = headline(replace(FOUND, kind=kind)), headline(Explanation(kind, None))
    assert full.endswith(".") and bare.endswith(".") and "None" not in bare
    if kind is not ExplanationKind.NOT_REPRODUCED:
        assert "/p/my train.py:7" in full


def test_hostile_text_stays_on_its_line():
    found = replace(FOUND, code="x\n\x1b[31m", module="a\nb", cause=None)
    lines = list(explanation_lines(found, 80))
    assert not any("\n" in line or "\x1b" in line for line in lines)


def test_it_stands_behind_the_leaves_and_before_the_warnings():
    verdict = replace(VERDICTS["diverged-seed"], explanation=FOUND, warnings=("w",))
    text = verdict_text(verdict)
    assert text.index("All leaves diverging") < text.index("EXPLANATION (operator)") < text.index("warning: w")


def test_json():
    value = explanation_value(FOUND)
    assert list(value) == "kind step operator module file line code evidence rate toggles cause".split()
    assert value["kind"] == "operator" and value["toggles"][0] == {"name": "threads=1", "pairs": 3, "diverged": 0}
    assert list(value["cause"]) == "id title fix against support".split()
    assert verdict_value(VERDICTS["clean"])["explanation"] is None
    assert explanation_value(replace(FOUND, cause=None))["cause"] is None
