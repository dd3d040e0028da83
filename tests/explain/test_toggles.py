"""Which toggles are tried, when trying ends, and what is said of the results: with made-up pairs, then with a stand-in
for the training in processes of its own, then on three programs of the zoo."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from detaudit.audit import Request, check
from detaudit.core import env
from detaudit.core.axes import AXES, PLAIN
from detaudit.core.model import Divergence, DivergenceKind, Explanation, ExplanationKind, Outcome, RunReport, Verdict
from detaudit.explain.evidence import Evidence
from detaudit.explain.toggles import MARK, Pair, Trial, explained, suggested, why_not
from detaudit.launch import stress
from detaudit.launch.experiment import Bench, bench, enough_steps, worth_more
from tests.zoo.expectations import CASES

pytestmark = pytest.mark.timeout(900)

FAKE = str(Path(__file__).parents[1] / "fake_training.py")
FIRST = Divergence(0, "grad.model.w", DivergenceKind.VALUE)
CAUGHT = Explanation(ExplanationKind.OPERATOR, 0, operator="index_put", code="h[index]", evidence=("caught",))


def diverged(first=FIRST, found=CAUGHT, **more):
    runs = (RunReport("A", 0, last_step=9), RunReport("B", 0, last_step=9))
    return Verdict(Outcome.DIVERGED, "they differ", first_divergence=first, runs=runs, explanation=found, **more)


class Made:
    """Pairs made up: an axis in `cures` takes the divergence away, one in `fails` cannot be run."""

    def __init__(self, *cures, fails=(), at=FIRST, plain=True):
        self.cures, self.fails, self.at, self.plain = cures, fails, at, plain
        self.called = []

    def __call__(self, axis):
        self.called.append(axis)
        if axis in self.fails:
            return Pair(None, "run A failed (RuntimeError: put_ has no deterministic implementation)")
        if axis in self.cures or (axis == PLAIN and not self.plain):
            return Pair(False, "equal")
        return Pair(True, "they differ", self.at)


def told(verdict):
    return [line.removeprefix(MARK) for line in verdict.explanation.evidence if line.startswith(MARK)]


class TestSuggested:
    @pytest.mark.parametrize(
        ("evidence", "names"),
        [
            (Evidence(leaf="grad.w", drill="operator", operator="index_put"), ("deterministic", "threads-1")),
            (Evidence(leaf="grad.w"), ("threads-1", "deterministic")),
            (Evidence(leaf="init.param.up", drill="memory"), ("deterministic", "deterministic-fill")),
            (Evidence(leaf="batch.0", source="default_rng()", drill="outside"), ("entropy",)),
            (Evidence(leaf="loss", source="set(names)", drill="outside"), ("hash-seed",)),
        ],
    )
    def test_by_signature(self, evidence, names):
        found = suggested(evidence)
        assert found[: len(names)] == names and len(found) <= 3

    def test_nothing_that_cannot_change_anything(self):
        evidence = Evidence(
            leaf="loss",
            source="set(names)",
            facts=frozenset({"hash-seed-set", "one-thread"}),
            absent=frozenset({"loader"}),
        )
        assert not {"hash-seed", "threads-1", "workers-0"} & set(suggested(evidence))
        assert why_not("hash-seed", evidence) == "PYTHONHASHSEED was set already"
        assert why_not("threads-1", evidence) and why_not("workers-0", evidence)
        assert not why_not("entropy", evidence) and not why_not("hash-seed", Evidence())

    def test_nothing_for_an_unknown_leaf(self):
        assert suggested(Evidence(leaf="my.own.leaf")) == ()


class TestPlainCheck:
    def test_the_first_that_holds_ends_it_after_a_control(self):
        made = Made("deterministic")
        found = explained(diverged(), (), made).explanation
        assert made.called == ["deterministic", "deterministic", PLAIN]
        assert [(toggle.name, toggle.pairs, toggle.diverged) for toggle in found.toggles] == [
            ("deterministic", 2, 0),
            (PLAIN, 1, 1),
        ]
        assert (found.cause.id, found.cause.support) == ("index-put-race", "experiment")
        assert "torch.use_deterministic_algorithms(True)" in found.cause.fix
        assert found.kind is ExplanationKind.OPERATOR and found.evidence[0] == "caught"

    def test_one_that_changes_nothing_costs_one_pair(self):
        made = Made("threads-1")
        explained(diverged(), (), made)
        assert made.called == ["deterministic", "threads-1", "threads-1", PLAIN]

    def test_equal_plain_pairs_void_the_experiment(self):
        verdict = explained(diverged(), (), Made("deterministic", plain=False))
        assert verdict.explanation.cause.support == "signature"
        assert any("proves nothing" in line for line in told(verdict))

    def test_without_an_operator_the_flag_is_not_enough(self):
        made = Made("deterministic")
        verdict = explained(diverged(found=None), (), made)
        assert made.called[:3] == ["threads-1", "deterministic", "deterministic"]
        assert verdict.explanation.kind is ExplanationKind.UNPROVEN
        assert verdict.explanation.cause.support != "experiment"
        assert any("by itself that proves no race" in line for line in told(verdict))

    def test_a_pair_that_cannot_run_says_why_and_counts_for_nothing(self):
        verdict = explained(diverged(), (), Made("threads-1", fails=("deterministic",)))
        assert verdict.explanation.toggles[0].pairs == 0
        assert any("put_ has no deterministic implementation" in line for line in told(verdict))
        assert verdict.explanation.cause.support == "experiment"

    def test_memory_takes_two_experiments(self):
        found = Explanation(ExplanationKind.MEMORY, 0)
        first = Divergence(0, "init.param.up", DivergenceKind.VALUE)
        verdict = explained(diverged(first, found), (), Made("deterministic-fill"))
        assert (verdict.explanation.cause.id, verdict.explanation.cause.support) == (
            "uninitialised-memory",
            "experiment",
        )
        assert any("a value is read that nobody has written" in line for line in told(verdict))

    def test_another_divergence_beneath_is_told(self):
        other = Divergence(1, "act.net", DivergenceKind.VALUE)
        lines = told(explained(diverged(), (), Made(at=other)))
        assert any("no longer at grad.model.w: a second cause may lie beneath" in line for line in lines)


class TestAllToggles:
    def test_every_axis_as_often_as_asked_and_the_plain_pair_first(self):
        made = Made("deterministic", "deterministic-fill", "threads-1")
        found = explained(diverged(), (), made, pairs=2, all_axes=True)
        assert made.called == [name for name in (PLAIN, *AXES) for _ in range(2)]
        assert any("without memory fill as well" in line for line in told(found))
        directions = [line for line in told(found) if "it only moves timing" in line]
        assert len(directions) == 3 and all("as often as plain" in line for line in directions)

    def test_directions(self):
        made = Made("load", "wait-active")
        lines = told(explained(diverged(), (), made, pairs=1, all_axes=True))
        assert sum("less often than plain" in line for line in lines) == 2

    def test_a_second_call_replaces_what_the_first_said(self):
        once = explained(diverged(), (), Made("deterministic"))
        again = explained(once, (), Made("threads-1"), pairs=1, all_axes=True)
        assert again.explanation.evidence[0] == "caught" and len(told(again)) < 2 * len(AXES)
        assert not any("0 of 2 pairs" in line for line in again.explanation.evidence)
        assert {toggle.pairs for toggle in again.explanation.toggles} == {1}


def test_a_trial_counts_only_pairs_that_say_something():
    trial = Trial("entropy", (Pair(False), Pair(None, "failed")))
    assert (trial.toggle.pairs, trial.toggle.diverged, trial.holds) == (1, 0, True)
    assert not Trial("entropy", (Pair(None, "failed"),)).holds


class TestSteps:
    @pytest.mark.parametrize(
        ("step", "leaf", "asked", "enough"),
        [(3, "loss", 0, 12), (3, "loss", 5, 5), (10, "param.w", 0, 0), (4, "step", 0, 0), (4, "step", 7, 7)],
    )
    def test_enough(self, step, leaf, asked, enough):
        assert enough_steps(diverged(Divergence(step, leaf, DivergenceKind.VALUE)), asked) == enough


class TestBench:
    """Real processes, with a stand-in for the training."""

    @pytest.fixture
    def made(self, tmp_path, monkeypatch):
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")

        def make(how):
            return Bench((sys.executable, FAKE, how), tmp_path / "out" / "explain", env.Settings("explain"))

        return make

    def test_pairs(self, made, tmp_path):
        lines = []
        found = made("cured:entropy")
        found.progress = lines.append
        assert found.pair("entropy") == Pair(False, "equal")
        plain = found.pair(PLAIN)
        assert plain.diverged and plain.at.leaf == "loss" and plain.at.step == 4
        failed = found.pair("workers-0")
        assert failed.diverged is None and failed.said.endswith("(RuntimeError: no workers, no training)")
        assert (tmp_path / "out" / "explain" / "entropy" / "1" / "A" / "main.trail").exists()
        assert lines[0].startswith("repeated with fixed entropy") and lines[0].endswith("pair 1: equal")

    def test_a_second_bench_writes_over_the_first(self, made):
        assert made("clean").pair("entropy") == made("clean").pair("entropy")

    def test_load_is_there_while_the_pair_runs_and_gone_after(self, made, monkeypatch):
        alive = []
        monkeypatch.setattr(stress.os, "cpu_count", lambda: 1)
        original = Bench._run

        def run(self, *args):
            alive.append(children())
            return original(self, *args)

        monkeypatch.setattr(Bench, "_run", run)
        before = children()
        made("clean").pair("load")
        assert all(len(found - before) == 1 for found in alive) and children() == before


def children():
    """The processes whose parent this one is, dead ones included."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(entry.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(entry.parent.name)
        except OSError:
            continue
    return found


class TestAudit:
    """The whole way, with the stand-in: `_explain` in the audit, and the bench it is given."""

    @pytest.fixture
    def audit(self, tmp_path, monkeypatch):
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        return lambda how, **more: check(Request((sys.executable, FAKE, how), tmp_path / "out", pairs=1, **more))

    def test_all_toggles(self, audit, tmp_path):
        verdict = audit("cured:threads-1", all_toggles=True)
        counts = {toggle.name: (toggle.pairs, toggle.diverged) for toggle in verdict.explanation.toggles}
        assert counts[PLAIN] == (1, 1) and counts["threads-1"] == (1, 0) and counts["entropy"] == (1, 1)
        assert "workers-0" not in counts, "the stand-in uses no DataLoader"
        assert verdict.explanation.cause is not None
        assert not worth_more(verdict) and verdict.next_command == f"detaudit show {tmp_path / 'out'} --step 4"

    def test_a_cause_without_an_experiment_points_to_explain(self, audit, tmp_path):
        verdict = audit("diverge:4")
        assert verdict.next_command == f"detaudit explain {tmp_path / 'out'}"

    def test_no_drill_skips_it(self, audit):
        assert audit("diverge:4", drill=False).explanation is None

    def test_bench_keeps_the_settings(self, tmp_path):
        settings = env.Settings("x", every=2, stats=True, leaves=("loss",))
        found = bench(diverged(command=("true",)), tmp_path, settings)
        assert found.directory == tmp_path / "explain" and found.command == ("true",)
        assert (found.settings.every, found.settings.steps, found.settings.stats) == (2, 9, True)


@pytest.mark.slow
@pytest.mark.timeout(900)  # ten runs of a program, one after the other
@pytest.mark.parametrize(
    ("name", "toggle", "cause"),
    [
        ("race_gather_backward", "deterministic", "index-put-race"),
        ("set_order_labels", "hash-seed", "string-set-order"),
        ("unseeded_default_rng", "entropy", "unseeded-numpy"),
    ],
)
def test_a_program_of_the_zoo(name, toggle, cause, tmp_path, monkeypatch):
    case = next(case for case in CASES if case.name == name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    verdict = check(Request(tuple(case.command()), tmp_path / "out"))
    found = verdict.explanation
    counts = {item.name: (item.pairs, item.diverged) for item in found.toggles}
    assert counts[toggle] == (2, 0) and counts[PLAIN] == (1, 1), found
    assert (found.cause.id, found.cause.support) == (cause, "experiment"), found
