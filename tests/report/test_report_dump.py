"""The comparison of dumps as text and JSON, from verdicts made by hand. The texts are golden: tests/golden/report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from detaudit.core.buffers import (
    BufferComparison,
    BufferStatus,
    Difference,
    DumpVerdict,
    HypothesisFinding,
    Nearness,
    Region,
    Support,
)
from detaudit.core.model import Outcome
from detaudit.report.dump import dump_text, dump_value


def equal(step, name, elements, **more):
    return BufferComparison(step, name, f"checksums.{name}", BufferStatus.EQUAL, "main", (elements,), elements, **more)


ROOT = Difference(
    elements=65536, unequal=17, first=1, last=59407, value_a="592.7081298828125", value_b="695.7353515625",
    region=Region.SCATTERED, nearness=Nearness.FAR, permutation=False, chunk=0, chunks=4,
    ulp=1688053, ulp_at=1, largest=103.02722, relative=0.148,
)  # fmt: skip
TREE = BufferComparison(2, "tree", "checksums.priority_tree", BufferStatus.DIVERGE, "main", (65536,), 65536, ROOT)
ORDER = Difference(6, 6, 0, 5, "3", "5", Region.ALL, Nearness.EXACT, True, 0, 1, largest=2.0)
GRID = replace(
    ROOT, elements=12, unequal=4, first=4, last=7, region=Region.ROWS, rows=(1, 1), ulp=1, ulp_at=5,
    nearness=Nearness.ROUNDING, largest=6e-8, relative=6e-8, chunks=1, nonfinite=2,
)  # fmt: skip
SEED = (
    *(equal(step, name, size) for step in (0, 1) for name, size in (("prng", 128), ("tree", 65536), ("indices", 128))),
    equal(2, "prng", 128),
    TREE,
    equal(2, "indices", 128),
)
FINDINGS = (
    HypothesisFinding("A", "PRNG seeding drift", Support.RULED_OUT, "prng: equal at step 2, where tree differs first"),
    HypothesisFinding("C", "tree-rebuild nondeterminism", Support.SUPPORTED, "tree differs at step 2"),
)
UNKNOWN = BufferComparison(1, "tree", "t", BufferStatus.UNKNOWN, detail="B holds no bytes: byte limit reached")
VERDICTS = {
    "dump-seed": DumpVerdict(
        Outcome.DIVERGED, "HYPOTHESIS C (tree-rebuild nondeterminism): " + "stale reads " * 9, SEED, FINDINGS
    ),
    "dump-clean": DumpVerdict(
        Outcome.CLEAN, "all three buffers match across all dumped steps (0).", SEED[:3], (),
        ("leaves asked for that A never met: x",),
    ),
    "dump-kinds": DumpVerdict(
        Outcome.DIVERGED,
        "the runs first differ at step 1: order",
        (
            BufferComparison(1, "order", "order", BufferStatus.DIVERGE, "rank0", (6,), 6, ORDER),
            BufferComparison(1, "grid", "grid", BufferStatus.DIVERGE, "rank0", (3, 4), 12, GRID),
            replace(UNKNOWN, process="rank1"),
            BufferComparison(
                1, "odd\x1b[2J\nname", "o", BufferStatus.INCOMPARABLE, "rank1", detail="float32[1] in A, int8[1] in B"
            ),
            BufferComparison(1, "one", "one", BufferStatus.EQUAL, "rank1", (), 1),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_text(golden, name):
    golden(f"report/{name}.txt", dump_text(VERDICTS[name], 80))


def test_the_lines_of_the_seed():
    lines = dump_text(VERDICTS["dump-seed"]).splitlines()
    place = lines.index("step 2:")
    assert lines[place + 1 : place + 4] == [
        "  prng: EQUAL (128 elements)",
        "  tree: DIVERGE at idx 1",
        "        A=592.7081298828125  B=695.7353515625",
    ]
    assert dump_text(VERDICTS["dump-clean"]).splitlines()[-1].startswith("VERDICT: all three buffers match")


def test_the_width_holds_and_no_name_moves_the_terminal():
    text = dump_text(VERDICTS["dump-kinds"], 60)
    assert "\x1b" not in text and "odd\\x1b[2J\\nname" in text
    assert all(len(line) <= 60 for line in text.splitlines() if line.startswith("        "))


def test_the_verdict_is_one_line_whatever_the_width():
    (line,) = [line for line in dump_text(VERDICTS["dump-seed"], 60).splitlines() if "stale" in line]
    assert line == f"VERDICT: {VERDICTS['dump-seed'].reason}"


@pytest.mark.parametrize("name", VERDICTS)
def test_json_is_complete_and_plain(name):
    verdict = VERDICTS[name]
    value = json.loads(json.dumps(dump_value(verdict), allow_nan=False))
    assert value["schema"] == "detaudit.dump/1" and value["exit_code"] == verdict.outcome.exit_code
    assert [found["status"] for found in value["buffers"]] == [str(found.status) for found in verdict.buffers]
    assert [finding["support"] for finding in value["hypotheses"]] == [str(f.support) for f in verdict.hypotheses]
    assert value["verdict"] == verdict.reason


def test_json_knows_no_infinity():
    far = replace(TREE, difference=replace(ROOT, largest=float("inf")))
    value = dump_value(DumpVerdict(Outcome.DIVERGED, "x", (far,)))
    assert json.loads(json.dumps(value, allow_nan=False))["buffers"][0]["difference"]["largest"] is None
