"""The verdict as JUnit XML, which every continuous integration service reads: one test case for each compared run.

Diverged is a failure, inconclusive an error: neither passes. Times are those of the runs.
"""

from __future__ import annotations

import shlex
from xml.etree import ElementTree

from detaudit.core.model import Outcome, RunReport, Verdict
from detaudit.report.table import printable
from detaudit.report.text import verdict_text

ELEMENT = {Outcome.DIVERGED: "failure", Outcome.INCONCLUSIVE: "error"}


def verdict_junit(verdict: Verdict) -> str:
    """The XML text with declaration and final newline."""
    problem = ELEMENT.get(verdict.outcome, "")
    suite = ElementTree.Element(
        "testsuite",
        name="detaudit",
        tests="1",
        failures=str(int(problem == "failure")),
        errors=str(int(problem == "error")),
        time=_seconds(verdict.runs),
    )
    name = printable(shlex.join(verdict.command)) or " against ".join(verdict.pair)
    case = ElementTree.SubElement(suite, "testcase", classname="detaudit", name=name, time=_seconds(verdict.runs))
    text = "".join(char if char == "\n" else printable(char) for char in verdict_text(verdict))
    if problem:
        ElementTree.SubElement(case, problem, message=printable(verdict.reason)).text = text
    ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _seconds(runs: tuple[RunReport, ...]) -> str:
    return f"{sum(run.wall_seconds or 0.0 for run in runs):.3f}"
