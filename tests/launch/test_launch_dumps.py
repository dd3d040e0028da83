"""The repeat of a diverged pair with dumps: when, over which steps and leaves, that the first pair knows none."""

from __future__ import annotations

import json
import sys

import pytest

from detaudit.audit import Request, check
from detaudit.core.env import FIRST_DIVERGENCE, Settings
from detaudit.core.model import Divergence, DivergenceKind, Outcome
from detaudit.launch import dumps
from tests.launch.test_launch_child import FAKE

ASKED = Settings("out", dump=True, dump_steps=(FIRST_DIVERGENCE, 0, 1))


def first(step, leaf="loss"):
    return Divergence(step, leaf, DivergenceKind.VALUE)


def test_the_first_pair_dumps_the_steps_that_have_a_number():
    assert dumps.first_pair(ASKED).dump_steps == (0, 1) and dumps.first_pair(ASKED).dump
    alone = Settings(dump=True, dump_steps=(FIRST_DIVERGENCE,))
    assert not dumps.first_pair(alone).dump and FIRST_DIVERGENCE not in dumps.first_pair(alone).dump_steps
    assert dumps.first_pair(Settings(dump=True)) == Settings(dump=True)


@pytest.mark.parametrize(
    ("settings", "divergence", "wanted"),
    [
        (ASKED, first(5), True),
        (ASKED, first(1), False),
        (ASKED, None, False),
        (Settings(dump=True), first(5), False),
        (Settings(dump=False, dump_steps=(FIRST_DIVERGENCE,)), first(5), False),
    ],
)
def test_when(settings, divergence, wanted):
    assert dumps.wants_repeat(settings, divergence) is wanted


class TestAround:
    @pytest.mark.parametrize(
        ("step", "every", "window"), [(3, 1, range(8)), (100, 1, range(84, 105)), (20, 5, range(5, 25, 5))]
    )
    def test_steps(self, step, every, window):
        found = dumps.around(Settings(dump=True, every=every), first(step))
        assert found.dump_steps == tuple(window) and found.steps == step + 5

    def test_a_shorter_run_stays_short(self):
        assert dumps.around(Settings(dump=True, steps=4), first(3)).steps == 4

    def test_leaves(self):
        assert dumps.around(Settings(dump=True), first(3, "act.net#2")).dump_leaves == ("act.net",)
        assert dumps.around(Settings(dump=True, dump_leaves=("x",)), first(3)).dump_leaves == ("x",)


def test_a_diverged_audit_is_repeated_and_a_clean_one_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETAUDIT_DUMP", "1")
    monkeypatch.setenv("DETAUDIT_DUMP_STEPS", "first-divergence")
    lines = []
    verdict = check(Request((sys.executable, FAKE, "diverge:4"), tmp_path / "out"), lines.append)
    assert verdict.outcome is Outcome.DIVERGED and verdict.first_divergence.step == 4
    assert [line for line in lines if "again" in line] == [f"run {run} again, dumping steps 0 to 8" for run in "AB"]
    for run in "AB":
        assert json.loads((tmp_path / "out" / dumps.FOLDER / run / "run.json").read_text())["exit_status"] == 0
    assert check(Request((sys.executable, FAKE), tmp_path / "clean")).outcome is Outcome.CLEAN
    assert not (tmp_path / "clean" / dumps.FOLDER).exists()
