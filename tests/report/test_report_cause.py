"""What a person reads of the toggles and the cause: the table, the cause with its support, what speaks against it, the
fix ready to paste, and the next command last."""

from __future__ import annotations

from detaudit.core.model import (
    Cause,
    Divergence,
    DivergenceKind,
    Explanation,
    ExplanationKind,
    Outcome,
    Toggle,
    Verdict,
)
from detaudit.report.text import verdict_text

FIRST = Divergence(0, "grad.w", DivergenceKind.VALUE, run_a="1", run_b="2")
CAUSE = Cause(
    "index-put-race", "threads add in no fixed order", "a = b\n    c(  d )", "few pairs; x fits", "experiment"
)


def text(**more):
    found = Explanation(ExplanationKind.OPERATOR, 0, "index_put", **more)
    verdict = Verdict(
        Outcome.DIVERGED, "they differ", first_divergence=FIRST, explanation=found, next_command="detaudit show o"
    )
    return verdict_text(verdict, 60)


def test_the_whole():
    toggles = (Toggle("deterministic", 2, 0), Toggle("workers-0", 0, 0), Toggle("plain", 1, 1))
    lines = text(toggles=toggles, cause=CAUSE).splitlines()
    start = lines.index("  toggle         pairs  diverged")
    assert lines[start + 1 : start + 4] == [
        "  deterministic      2         0",
        "  workers-0          0         -",
        "  plain              1         1",
    ]
    assert lines[start + 4 : start + 10] == [
        "likely cause (experiment): threads add in no fixed order",
        "  [index-put-race]",
        "against it: few pairs; x fits",
        "fix:",
        "    a = b",
        "        c(  d )",
    ]
    assert lines[-1] == "next: detaudit show o"


def test_nothing_is_printed_of_what_is_not_there():
    plain = text()
    assert "toggle" not in plain and "likely cause" not in plain and "fix:" not in plain


def test_a_cause_without_objections():
    assert "against it" not in text(cause=Cause("id", "title", "", "", "weak"))
