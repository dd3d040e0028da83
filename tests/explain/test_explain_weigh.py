"""What dumps say of hypotheses: A, B, C, none, unproven, and that the first difference alone decides."""

from __future__ import annotations

import pytest

from detaudit.core.buffers import Support
from detaudit.core.model import Outcome
from detaudit.dump.reader import open_dump
from detaudit.explain.buffers import compare_dumps
from detaudit.explain.hypotheses import read_set
from tests.explain.test_explain_hypotheses import SHIPPED
from tests.made_dumps import buffer, make_dump, nudged, shifted


def verdict(tmp_path, changes, declared=SHIPPED, **how):
    """The verdict over a dump and one with changes."""
    a = open_dump(make_dump(tmp_path / "A", **how))
    b = open_dump(make_dump(tmp_path / "B", changes, **how))
    return compare_dumps(a, b, read_set(declared))


def supports(found):
    return {finding.id: str(finding.support) for finding in found.hypotheses}


def moved(*places):
    return {(step, name): shifted(name, step) for step, name in places}


DOWNSTREAM = [(2, "indices"), (2, "priorities"), (2, "tree")]
CASES = {
    "A": moved((1, "prng"), (1, "indices"), (1, "priorities"), (1, "tree")),
    "B": moved((1, "indices"), (1, "priorities"), (1, "tree")),
    "C": moved((1, "tree"), *DOWNSTREAM),
}


@pytest.mark.parametrize("letter", CASES)
def test_the_three(tmp_path, letter):
    found = verdict(tmp_path, CASES[letter])
    assert found.outcome is Outcome.DIVERGED and found.reason.startswith(f"HYPOTHESIS {letter} (")
    assert supports(found)[letter] == "supported"
    assert [word for other, word in supports(found).items() if other != letter] == {
        "A": ["open", "open"], "B": ["ruled out", "open"], "C": ["ruled out", "ruled out"],
    }[letter]  # fmt: skip


def test_the_seed_s_own_case(tmp_path):
    """prng and indices equal at every step, the tree alone at step 2."""
    found = verdict(tmp_path, moved((2, "tree")))
    assert found.reason.startswith(
        "HYPOTHESIS C (tree-rebuild nondeterminism): tree is the first to differ, at step 2."
    )


def test_rounding_and_stale_reads_read_differently(tmp_path):
    near = verdict(tmp_path / "near", {(1, "tree"): nudged("tree", 1)})
    far = verdict(tmp_path / "far", moved((1, "tree")))
    assert "apart by rounding only" in near.reason and "stale" not in near.reason
    assert "stale or half-updated children" in far.reason and "rounding only" not in far.reason


def test_a_stale_read_that_hardly_changed_is_not_called_rounding(tmp_path):
    """An inner node of two leaves, one ulp off: no order of additions makes that."""
    found = verdict(tmp_path, {(1, "tree"): nudged("tree", 1, at=5)})
    assert "stale or half-updated children" in found.reason and "rounding only" not in found.reason


def test_a_tree_whose_leaves_differ_says_nothing_against_its_rebuild(tmp_path):
    """The seed's three buffers would have called this C: the cause lies in the network."""
    found = verdict(tmp_path, moved((1, "priorities"), (1, "tree"), *DOWNSTREAM))
    assert found.reason.startswith("none of A, B, C: priorities is the first to differ, at step 1")
    assert supports(found) == {"A": "ruled out", "B": "ruled out", "C": "open"}


def test_without_the_priorities_the_rebuild_is_unproven(tmp_path):
    found = verdict(tmp_path, moved((1, "tree")), without=("walked_tree", "priorities"))
    assert found.reason.startswith("unproven: tree is the first to differ, at step 1")
    assert "priorities was not dumped" in found.reason and supports(found)["C"] == "open"
    assert found.outcome is Outcome.DIVERGED


class TestTheWalk:
    """The walk at step k reads the tree that step k-1 left."""

    def test_needs_the_tree_of_the_step_before(self, tmp_path):
        found = verdict(tmp_path, moved((1, "indices")), steps=(1, 2))
        assert (
            found.reason.startswith("unproven: indices is the first")
            and "tree of step 0 was not dumped" in found.reason
        )

    def test_at_step_0_needs_the_tree_as_it_was_walked(self, tmp_path):
        bare = verdict(tmp_path / "bare", moved((0, "indices")))
        assert "tree before step 0 was not dumped" in bare.reason and supports(bare)["B"] == "open"
        seen = verdict(tmp_path / "seen", moved((0, "indices")), without=())
        assert seen.reason.startswith("HYPOTHESIS B (tree-walk comparison flip)")

    def test_over_another_tree_is_no_flip(self, tmp_path):
        found = verdict(tmp_path, moved((1, "walked_tree"), (1, "indices")), without=())
        assert found.reason.startswith("none of A, B, C: walked_tree is the first to differ, at step 1")
        assert supports(found)["B"] == "open"

    def test_follows_a_rebuild_that_went_wrong(self, tmp_path):
        found = verdict(tmp_path, moved((0, "tree"), (1, "walked_tree"), (1, "indices")), without=())
        assert found.reason.startswith("HYPOTHESIS C") and supports(found)["B"] == "ruled out"


def test_a_difference_at_a_later_step_changes_nothing(tmp_path):
    early, late = moved((1, "tree")), moved((1, "tree"), (2, "prng"))
    assert supports(verdict(tmp_path / "a", early)) == supports(verdict(tmp_path / "b", late))


def test_two_first_differences_are_both_named(tmp_path):
    text = SHIPPED.read_text(encoding="utf-8").replace('fed_by = ["prng", "walked_tree"]', 'fed_by = ["walked_tree"]')
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    found = verdict(tmp_path, moved((1, "prng"), (1, "indices")), tmp_path / "own.toml")
    assert found.reason.startswith("HYPOTHESIS A (") and "; HYPOTHESIS B (" in found.reason


def test_nothing_differs(tmp_path):
    found = verdict(tmp_path, {})
    assert (
        found.outcome is Outcome.CLEAN and found.reason == "all four buffers match across all dumped steps (0, 1, 2)."
    )
    assert set(supports(found).values()) == {str(Support.RULED_OUT)}


def test_a_buffer_that_was_not_dumped_at_a_step_rules_nothing_out(tmp_path):
    changes = {(1, "tree"): None}
    a = open_dump(make_dump(tmp_path / "A", changes))
    b = open_dump(make_dump(tmp_path / "B", changes))
    found = compare_dumps(a, b, read_set(SHIPPED))
    assert supports(found) == {"A": "ruled out", "B": "ruled out", "C": "open"}
    assert found.outcome is Outcome.INCONCLUSIVE and "tree of step 1 was not compared: in neither dump" in found.reason


def test_without_a_set_the_first_difference_is_named(tmp_path):
    a = open_dump(make_dump(tmp_path / "A"))
    b = open_dump(make_dump(tmp_path / "B", moved((1, "tree"), (1, "prng"))))
    found = compare_dumps(a, b)
    assert found.reason == "the runs first differ at step 1: checksums.sample_prng, checksums.priority_tree"
    assert found.hypotheses == ()


def test_a_declared_buffer_is_shown_by_its_short_name_and_others_by_their_own(tmp_path):
    leaves = {"extra": "user.extra", "prng": "checksums.sample_prng"}
    changes = {(0, "extra"): buffer("tree", 0)}
    sides = [open_dump(make_dump(tmp_path / s, changes, steps=(0,), leaves=leaves)) for s in "AB"]
    names = [found.name for found in compare_dumps(*sides, read_set(SHIPPED)).buffers]
    assert names[:2] == ["prng", "user.extra"]
