"""What continuous integration reads: JUnit XML and Markdown."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from detaudit.report.junit import verdict_junit
from detaudit.report.markdown import cell, verdict_markdown
from tests.report.test_report_text import SEED, VERDICTS, diverged


@pytest.mark.parametrize("name", VERDICTS)
def test_junit(name):
    suite = ElementTree.fromstring(verdict_junit(VERDICTS[name]))
    expected = {"clean": ("0", "0"), "diverged": ("1", "0"), "inconclusive": ("0", "1")}[name.split("-")[0]]
    assert (suite.get("failures"), suite.get("errors")) == expected and suite.get("tests") == "1"
    case = suite.find("testcase")
    assert [child.tag for child in case if child.tag != "system-out"] == {
        "clean": [], "diverged": ["failure"], "inconclusive": ["error"]
    }[name.split("-")[0]]  # fmt: skip
    assert case.find("system-out").text.startswith(("CLEAN", "FIRST_DIVERGENCE", "INCONCLUSIVE"))


def test_junit_names_the_command_and_the_time():
    case = ElementTree.fromstring(verdict_junit(diverged(*SEED, command=("python", "train it.py")))).find("testcase")
    assert case.get("name") == "python 'train it.py'" and case.get("time") == "89.290"
    assert case.find("failure").get("message") == ("the runs first differ at step 3: checksums.encoder_output differs")


@pytest.mark.parametrize("name", VERDICTS)
def test_markdown(name):
    text = verdict_markdown(VERDICTS[name])
    assert text.startswith(f"### detaudit: {name.split('-')[0]}\n\n") and text.endswith("\n")
    assert all(char.isprintable() or char == "\n" for char in text)


def test_markdown_of_the_seed():
    lines = verdict_markdown(diverged(*SEED)).splitlines()
    assert "| leaf | kind | A | B | delta |" in lines
    assert "| checksums.encoder\\_output | value | 6896.33 | 6896.19 | 0.139586 |" in lines
    assert "| A | 0 | 0m 45s (45.2 s) | 199 |" in lines


def test_markdown_counts_what_it_hides():
    assert "and 23 more leaves of step 3" in verdict_markdown(VERDICTS["diverged-many"])


def test_a_hostile_name_stays_in_its_cell():
    assert cell("a|b`*<script>\n") == "a\\|b\\`\\*&lt;script&gt;\\\\n"
