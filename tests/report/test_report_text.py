"""The text report, from verdicts made by hand. Its texts are golden: tests/golden/report."""

from __future__ import annotations

import pytest

from detaudit.core.model import Divergence, DivergenceKind, Outcome, RunReport, Verdict
from detaudit.report.text import MAX_LEAVES, first_line, shown_pair, shown_time, verdict_text
from tests.conftest import GOLDEN

RUNS = (
    RunReport("A", 0, 45.21, 0.012, ("main",), 199, "complete"),
    RunReport("B", 0, 44.08, 0.0115, ("main",), 199, "complete"),
)


def value(leaf, a, b, step=3, order=7, **more):
    return Divergence(
        step, leaf, DivergenceKind.VALUE, order=order, run_a=repr(a), run_b=repr(b), delta=abs(a - b), **more
    )


SEED = (
    value("checksums.encoder_output", 6896.334218005304, 6896.194631539084),
    value("checksums.v_value", 0.233112, 0.233178, order=8),
    value("checksums.v_grad", 0.0988612, 0.0988786, order=11),
)


def diverged(*leaves, **more):
    settings = {"equal_before": 7, "runs": RUNS, "next_command": "detaudit show detaudit-out --step 3", **more}
    reason = f"the runs first differ at step {leaves[0].step}: {leaves[0].leaf} differs"
    return Verdict(Outcome.DIVERGED, reason, first_divergence=leaves[0], diverging_leaves=leaves, **settings)


def plain(leaf, kind, a, b, **more):
    return Divergence(12, leaf, kind, order=2, run_a=a, run_b=b, **more)


VERDICTS = {
    "clean": Verdict(
        Outcome.CLEAN,
        "bit-exact over 200 steps and 57 leaves",
        steps_compared=200,
        leaves_compared=57,
        runs=RUNS,
        certificate="detaudit-out/certificate.json",
        next_command="detaudit verify detaudit-out",
    ),
    "clean-warnings": Verdict(
        Outcome.CLEAN,
        "bit-exact over 1 step and 3 leaves",
        warnings=("what the runs wrote to stdout differs", "loss is NaN at step 2, first of the run " + "word " * 20),
        overrides=("unequal manifests were allowed by the user",),
        manifest_differences=("threads: A 2, B 1",),
        runs=(RunReport("A", None, outcome="step limit"),),
    ),
    "diverged-seed": diverged(*SEED),
    "diverged-digests": diverged(
        plain("param.net.0.weight", DivergenceKind.VALUE, "0123456789abcdef", "fedcba9876543210"),
        plain("act.extra", DivergenceKind.MISSING, "", "present"),
        plain("act.out", DivergenceKind.SHAPE, "[2, 3]", "[3, 2]"),
        plain("act.half", DivergenceKind.DTYPE, "float32", "bfloat16"),
        equal_before=1,
    ),
    "diverged-missing": diverged(
        plain("step", DivergenceKind.MISSING, "present", "", note="the step is missing in the second run"),
        equal_before=0,
    ),
    "diverged-ranks": diverged(
        value("loss", 1.0, 2.0, rank="rank1", note="NaN 0/1, Inf 0/0"),
        value("loss", 4.0, 5.0, rank="rank2"),
        pair=("A", "C"),
        runs=(*RUNS, RunReport("C", 0, 61.0, None, ("main",), 199, "complete")),
    ),
    "diverged-files": diverged(
        SEED[0], created_files=tuple(f"ckpt/{i}.pt" for i in range(14)), warnings=("run A created files",)
    ),
    "diverged-many": diverged(*(value(f"grad.layer{i}", 1.0 + i, 2.0 + i, order=i) for i in range(MAX_LEAVES + 3))),
    "diverged-hostile": diverged(value("evil\n\x1b[2Jname", 1.0, 2.0)),
    "inconclusive": Verdict(
        Outcome.INCONCLUSIVE,
        "run B failed with exit status 1 after step 49",
        warnings=("run B failed with exit status 1 after step 49",),
        runs=(RUNS[0], RunReport("B", 1, 3.0, last_step=49, outcome="exception ValueError")),
        next_command="cat detaudit-out/B/stderr.txt",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_golden(name, golden):
    golden(f"report/{name}.txt", verdict_text(VERDICTS[name], 80))


def test_no_golden_is_left_over():
    """Those of dumps are watched by their own test."""
    found = {path.stem for path in (GOLDEN / "report").glob("*.txt") if not path.stem.startswith("dump-")}
    assert found == set(VERDICTS)


@pytest.mark.parametrize("name", VERDICTS)
def test_form(name):
    text = verdict_text(VERDICTS[name])
    assert text == verdict_text(VERDICTS[name]) and text.endswith("\n") and not text.endswith("\n\n")
    assert all(char.isprintable() or char == "\n" for char in text)
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_the_first_lines_of_a_diverged_verdict_are_a_contract():
    lines = verdict_text(VERDICTS["diverged-seed"]).splitlines()
    assert lines[0] == (
        "FIRST_DIVERGENCE: step=3 leaf=checksums.encoder_output run_A=6896.33 run_B=6896.19 delta=0.139586"
    )
    assert lines[1] == "All leaves diverging at step=3:"
    assert [line.split()[0] for line in lines[2:5]] == [leaf.leaf for leaf in SEED]


def test_the_contract_lines_are_never_wrapped():
    narrow = verdict_text(VERDICTS["diverged-seed"], 40).splitlines()
    assert narrow[:5] == verdict_text(VERDICTS["diverged-seed"], 200).splitlines()[:5]
    assert max(map(len, narrow[6:9])) <= 40


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (6896.334218005304, 6896.194631539084, ("6896.33", "6896.19")),
        (1.00000001, 1.00000002, ("1.00000001", "1.00000002")),
        (1.0, 1.0 + 2**-52, ("1", "1.0000000000000002")),
        (0.5, 0.5, ("0.5", "0.5")),
        (float("inf"), 1.0, ("inf", "1")),
    ],
)
def test_both_numbers_are_shown_so_that_they_differ(a, b, shown):
    assert shown_pair(value("x", a, b)) == shown


def test_without_stats_the_line_keeps_its_form():
    line = first_line(plain("act.out", DivergenceKind.SHAPE, "[2, 3]", "[3, 2]", rank="rank1"))
    assert line.split(" ")[1:] == [
        "step=12", "leaf=act.out", "run_A=[2,3]", "run_B=[3,2]", "delta=n/a", "kind=shape", "rank=rank1"
    ]  # fmt: skip


def test_hidden_leaves_are_counted():
    text = verdict_text(VERDICTS["diverged-many"])
    assert "... and 3 more (--json lists all)" in text and f"grad.layer{MAX_LEAVES}" not in text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(45.21, "0m 45s (45.2 s)"), (0.04, "0m 00s (0.0 s)"), (3605, "60m 05s (3605.0 s)")]
)
def test_wall_time(seconds, shown):
    assert shown_time(seconds) == shown
