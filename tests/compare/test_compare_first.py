"""The first divergence of two trails: x against x is empty, swapping swaps, bisection equals brute force."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.compare.first import compare_trails, first_true
from detaudit.core.model import DivergenceKind, Layout, Leaf, RunManifest, StepKind
from detaudit.core.names import Selection
from detaudit.trail.reader import TrailReader
from tests.made_runs import MANIFEST, NAMES, layout, make_trail, plain_digest, trail_pair


def first_of(root, a=None, b=None, globs=()):
    found = compare_trails(*trail_pair(root, a, b), Selection.parse(globs))
    return found.finding.first if found.finding else None


def swapped(divergence):
    return replace(divergence, run_a=divergence.run_b, run_b=divergence.run_a, note="")


def test_a_trail_against_itself_is_empty(tmp_path):
    path = make_trail(tmp_path / "a.trail")
    found = compare_trails(TrailReader(path), TrailReader(path))
    assert found.finding is None and found.unsupported == ()
    assert (found.steps_compared, found.leaves_compared) == (5, len(NAMES))


def test_the_first_step_and_leaf_in_execution_order(tmp_path):
    changes = {(3, "loss"): 1, (3, "act.encoder"): 2, (4, "rng.torch"): 3}
    found = compare_trails(*trail_pair(tmp_path, None, {"changes": changes})).finding
    assert (found.first.step, found.first.leaf, found.first.kind) == (3, "act.encoder", DivergenceKind.VALUE)
    assert [leaf.leaf for leaf in found.diverging] == ["act.encoder", "loss"]
    assert found.equal_before == found.first.order == 2
    assert found.first.run_a == f"{plain_digest(3, 'act.encoder'):016x}" and found.first.run_b == f"{2:016x}"
    assert found.first.delta is None


@pytest.mark.parametrize(
    "how",
    [
        {"changes": {(2, "loss"): 7}},
        {"layouts": {2: layout(NAMES[:-1])}},
        {"layouts": {2: layout((*NAMES, "buffer.b"))}},
        {"steps": 4},
    ],
    ids=["value", "leaf gone", "leaf new", "step gone"],
)
def test_swapping_the_sides_swaps_the_result(tmp_path, how):
    there = compare_trails(*trail_pair(tmp_path / "there", None, how)).finding
    back = compare_trails(*trail_pair(tmp_path / "back", how, None)).finding
    assert there.first and swapped(there.first) == replace(back.first, note="")
    assert [swapped(leaf) for leaf in there.diverging] == [replace(leaf, note="") for leaf in back.diverging]
    assert there.equal_before == back.equal_before


def test_sums_of_squares_and_their_difference(tmp_path):
    a = {"sumsq": {(1, "loss"): 6896.25}}
    first = first_of(tmp_path, a, {"sumsq": {(1, "loss"): 6896.0}, "changes": {(1, "loss"): 9}})
    assert (first.run_a, first.run_b, first.delta, first.note) == ("6896.25", "6896.0", 0.25, "")


def test_stats_on_one_side_only_fall_back_to_digests(tmp_path):
    first = first_of(tmp_path, {"sumsq": {}}, {"changes": {(1, "loss"): 9}})
    assert first.run_b == f"{9:016x}" and first.delta is None


def test_a_leaf_without_stats_in_a_trail_with_them_shows_its_digests(tmp_path):
    """A generator's state has no numbers to sum: two empty bags are not the same values in another order."""
    sides = [{"sumsq": {(1, "loss"): None}, "changes": {(1, "loss"): digest}} for digest in (8, 9)]
    first = first_of(tmp_path, *sides)
    assert (first.run_a, first.run_b, first.delta, first.note) == (f"{8:016x}", f"{9:016x}", None, "")


def test_equal_sums_and_other_bits_are_still_a_divergence(tmp_path):
    """The trap of the seed: a sum of squares alone cannot see a permutation."""
    first = first_of(tmp_path, {"sumsq": {}}, {"sumsq": {}, "changes": {(1, "loss"): 9}})
    assert first.delta == 0 and first.note == "equal sum of squares, other bits"


class TestCounterparts:
    def test_a_leaf_of_one_run(self, tmp_path):
        first = first_of(tmp_path, None, {"layouts": {2: layout(NAMES[:2] + NAMES[3:])}})
        assert (first.step, first.leaf, first.kind) == (2, "act.encoder", DivergenceKind.MISSING)
        assert (first.run_a, first.run_b, first.order) == ("present", "", 2)

    def test_a_leaf_of_the_other_run_stands_where_it_was_executed(self, tmp_path):
        names = (*NAMES[:1], "act.extra", *NAMES[1:])
        first = first_of(tmp_path, None, {"layouts": {2: layout(names)}})
        assert (first.leaf, first.run_a, first.run_b, first.order) == ("act.extra", "", "present", 1)

    @pytest.mark.parametrize(
        ("leaf", "kind", "a", "b"),
        [
            (Leaf("act.encoder", "float32", (3, 2)), DivergenceKind.SHAPE, "[2, 3]", "[3, 2]"),
            (Leaf("act.encoder", "bfloat16", (2, 3)), DivergenceKind.DTYPE, "float32", "bfloat16"),
        ],
    )
    def test_shape_and_dtype(self, tmp_path, leaf, kind, a, b):
        other = Layout((*layout().leaves[:2], leaf, *layout().leaves[3:]))
        first = first_of(tmp_path, None, {"layouts": {1: other}})
        assert (first.step, first.kind, first.run_a, first.run_b) == (1, kind, a, b)

    def test_another_order_of_execution(self, tmp_path):
        turned = layout((*NAMES[:2], NAMES[3], NAMES[2], NAMES[4]))
        first = first_of(tmp_path, None, {"layouts": {1: turned}})
        assert (first.step, first.leaf, first.order) == (1, "act.encoder", 2)
        assert first.note == "equal leaves in another order of execution"

    def test_a_skipped_update(self, tmp_path):
        first = first_of(tmp_path, None, {"layouts": {3: layout(kind=StepKind.SKIPPED, optimizer="opt_d")}})
        assert (first.step, first.leaf, first.run_a, first.run_b) == (3, "step", "update", "skipped opt_d")

    def test_a_missing_step_at_the_end(self, tmp_path):
        first = first_of(tmp_path, None, {"steps": 3})
        assert (first.step, first.leaf, first.kind, first.run_b) == (3, "step", DivergenceKind.MISSING, "")

    def test_a_missing_step_in_the_middle(self, tmp_path):
        first = first_of(tmp_path, None, {"steps": [0, 1, 3, 4]})
        assert (first.step, first.kind) == (2, DivergenceKind.MISSING)

    def test_a_missing_step_before_a_value_comes_first(self, tmp_path):
        first = first_of(tmp_path, None, {"steps": [0, 1, 3, 4], "changes": {(4, "loss"): 1}})
        assert (first.step, first.kind) == (2, DivergenceKind.MISSING)

    def test_a_value_before_a_missing_step_comes_first(self, tmp_path):
        first = first_of(tmp_path, None, {"steps": 4, "changes": {(1, "loss"): 1}})
        assert (first.step, first.leaf) == (1, "loss")

    def test_no_step_in_common(self, tmp_path):
        found = compare_trails(*trail_pair(tmp_path, {"steps": [0, 2]}, {"steps": [1, 3]}))
        assert found.steps_compared == 0 and found.finding.first.kind is DivergenceKind.MISSING


class TestEvery:
    """A step that `--every` or `--steps` left out is not missing; one that was asked for is."""

    @staticmethod
    def asked(**context):
        return RunManifest(MANIFEST.decisive, context)

    def test_other_spacing(self, tmp_path):
        b = {"steps": range(0, 10, 5), "manifest": self.asked(every=5)}
        found = compare_trails(*trail_pair(tmp_path, {"steps": 10}, b))
        assert found.finding is None and found.steps_compared == 2

    def test_a_difference_at_a_shared_step(self, tmp_path):
        a = {"steps": range(0, 12, 2), "manifest": self.asked(every=2), "changes": {(4, "loss"): 1, (6, "loss"): 1}}
        b = {"steps": range(0, 12, 3), "manifest": self.asked(every=3)}
        first = first_of(tmp_path, a, b)
        assert (first.step, first.leaf) == (6, "loss")

    def test_a_step_that_was_asked_for_is_missing(self, tmp_path):
        b = {"steps": [0, 10], "manifest": self.asked(every=5)}
        assert first_of(tmp_path, {"steps": 11}, b).step == 5

    def test_a_step_limit(self, tmp_path):
        b = {"steps": 3, "manifest": self.asked(steps=3)}
        assert compare_trails(*trail_pair(tmp_path, {"steps": 5}, b)).finding is None


class TestTail:
    """What follows the last update is compared, but is no step."""

    TAIL = layout(("param.w",), kind=StepKind.TAIL)

    def test_it_is_not_counted(self, tmp_path):
        how = {"layouts": {4: self.TAIL}}
        found = compare_trails(*trail_pair(tmp_path, how, how))
        assert found.finding is None and found.steps_compared == 4

    def test_it_is_compared(self, tmp_path):
        how = {"layouts": {4: self.TAIL}}
        first = first_of(tmp_path, how, {**how, "changes": {(4, "param.w"): 1}})
        assert (first.step, first.leaf, first.note) == (4, "param.w", "after the last update")

    @pytest.mark.parametrize("swapped", [False, True])
    def test_a_run_that_ended_earlier_lacks_the_step_at_which_it_is_in_its_tail(self, tmp_path, swapped):
        short, long = {"steps": 5, "layouts": {4: self.TAIL}}, {"steps": 9, "layouts": {8: self.TAIL}}
        first = first_of(tmp_path, *((long, short) if swapped else (short, long)))
        assert (first.step, first.leaf, first.kind) == (4, "step", DivergenceKind.MISSING)
        assert (first.run_a, first.run_b) == (("present", "") if swapped else ("", "present"))

    def test_a_killed_run_with_as_many_steps_lacks_the_tail(self, tmp_path):
        first = first_of(tmp_path, {"steps": 5, "layouts": {4: self.TAIL}}, {"steps": 5})
        assert (first.step, first.kind, first.run_a) == (4, DivergenceKind.MISSING, "")

    def test_a_tail_alone_is_no_step(self, tmp_path):
        how = {"steps": 1, "base": self.TAIL}
        assert compare_trails(*trail_pair(tmp_path, how, how)).steps_compared == 0


class TestSelection:
    def test_a_difference_outside_is_not_seen(self, tmp_path):
        a, b = trail_pair(tmp_path, None, {"changes": {(0, "rng.torch"): 1, (2, "loss"): 2}})
        found = compare_trails(a, b, Selection.parse(["!rng.*"]))
        assert (found.finding.first.step, found.finding.first.leaf) == (2, "loss")
        assert found.leaves_compared == len(NAMES) - 1
        assert compare_trails(a, b, Selection.parse(["batch.*"])).finding is None

    def test_order_counts_selected_leaves_only(self, tmp_path):
        first = first_of(tmp_path, None, {"changes": {(2, "loss"): 2}}, ["act.*", "loss"])
        assert first.order == 1

    def test_nothing_selected(self, tmp_path):
        found = compare_trails(*trail_pair(tmp_path, None, {"changes": {(2, "loss"): 2}}), Selection.parse(["no.*"]))
        assert found.finding is None and found.leaves_compared == 0


def test_unsupported_leaves_are_named(tmp_path):
    odd = Layout((*layout().leaves, Leaf("act.q", "qint8", (), "quantised tensor")))
    found = compare_trails(*trail_pair(tmp_path, {"base": odd}, {"base": odd}))
    assert found.finding is None and found.unsupported == ("act.q: quantised tensor",)


def test_unsupported_on_one_side_is_a_difference(tmp_path):
    left, right = (Layout((Leaf("act.q", "float32", (2,), reason),)) for reason in ("", "meta tensor"))
    changes = {(step, "act.q"): 0 for step in range(5)}
    first = first_of(tmp_path, {"base": left, "changes": changes}, {"base": right, "changes": changes})
    assert (first.step, first.leaf) == (0, "act.q")


@given(length=st.integers(0, 40), edge=st.integers(0, 45))
def test_bisection_finds_what_a_scan_finds(length, edge):
    calls = []

    def holds(i):
        calls.append(i)
        return i >= edge

    assert first_true(length, holds) == next((i for i in range(length) if i >= edge), None)
    assert len(calls) <= 1 + length.bit_length()


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 12),
    changes=st.dictionaries(st.tuples(st.integers(0, 11), st.sampled_from(NAMES)), st.integers(0, 3), max_size=4),
)
def test_the_search_equals_brute_force(steps, changes):
    """Over the chain (nothing left out) and by scan (one absent name left out), against a loop over every digest."""
    with tempfile.TemporaryDirectory() as folder:
        a, b = trail_pair(Path(folder), {"steps": steps}, {"steps": steps, "changes": changes})
        expected = next(
            (
                (record.step, name)
                for record, other in zip(a, b, strict=True)
                for name, left, right in zip(NAMES, record.digests, other.digests, strict=True)
                if left != right
            ),
            None,
        )
        for globs in ((), ("!absent",)):
            finding = compare_trails(a, b, Selection.parse(globs)).finding
            assert (finding and (finding.first.step, finding.first.leaf)) == expected
