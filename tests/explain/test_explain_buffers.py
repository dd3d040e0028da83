"""Two dumps against each other: strangers, other shapes, limits, broken ends, processes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from detaudit.core.buffers import BufferStatus
from detaudit.core.errors import NotComparableError, UnreadableError
from detaudit.core.model import Outcome
from detaudit.dump.manifest import Header
from detaudit.dump.reader import open_dump
from detaudit.dump.writer import DumpWriter
from detaudit.explain.buffers import compare_dumps
from detaudit.explain.hypotheses import read_set
from tests.explain.test_explain_hypotheses import SHIPPED
from tests.made_dumps import make_dump, shifted


def pair(tmp_path, a=None, b=None):
    return tuple(open_dump(make_dump(tmp_path / s, **(how or {}))) for s, how in (("A", a), ("B", b)))


class TestStrangers:
    @pytest.mark.parametrize(
        ("other", "words"),
        [
            ({"command": ("digits.py",)}, "command: A per_rl.py --steps 3, B digits.py"),
            ({"command": ("/x/per_rl.py", "--steps", "4")}, "command: "),
            ({"unseen": (9,)}, "dumped steps: A 0,1,2, B 0,1,2,9"),
            ({"max_bytes": 999}, "byte limit: A 1000000, B 999"),
        ],
        ids=str,
    )
    def test_are_refused_and_allowed_on_request(self, tmp_path, other, words):
        a, b = pair(tmp_path, None, other)
        with pytest.raises(NotComparableError) as caught:
            compare_dumps(a, b)
        assert words in str(caught.value) and "--allow-differences" in str(caught.value)
        assert caught.value.exit_code == 3
        assert any(words in line for line in compare_dumps(a, b, None, True).warnings)

    def test_the_same_program_in_another_place_is_none(self, tmp_path):
        a, b = pair(tmp_path, None, {"command": ("/elsewhere/per_rl.py", "--steps", "3")})
        assert compare_dumps(a, b).outcome is Outcome.CLEAN

    def test_dumps_that_hold_no_declared_buffer(self, tmp_path):
        other = {"leaves": {"tree": "user.tree"}}
        with pytest.raises(NotComparableError, match="hold none of the buffers of the set 'prioritised replay'"):
            compare_dumps(*pair(tmp_path, other, other), read_set(SHIPPED))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones(17, "float32"), "float32[16] in A, float32[17] in B"),
        (np.ones((4, 4), "float32"), "float32[4, 4] in B"),
        (np.ones(16, "float64"), "float64[16] in B"),
    ],
)
def test_another_shape_or_dtype_is_undecided_and_said(tmp_path, value, words):
    found = compare_dumps(*pair(tmp_path, None, {"changes": {(1, "tree"): value}}), read_set(SHIPPED))
    assert found.outcome is Outcome.INCONCLUSIVE and words in found.reason
    assert found.reason.startswith("undecided: tree of step 1 cannot be compared")
    assert [b.status for b in found.buffers if (b.step, b.name) == (1, "tree")] == [BufferStatus.INCOMPARABLE]


def test_a_difference_beside_another_shape_is_still_a_difference(tmp_path):
    changes = {(1, "tree"): np.ones(17, "float32"), (0, "prng"): shifted("prng", 0)}
    assert compare_dumps(*pair(tmp_path, None, {"changes": changes})).outcome is Outcome.DIVERGED


class TestNeverCleanForWantOfEvidence:
    def test_byte_limit(self, tmp_path):
        how = {"max_bytes": 200}
        found = compare_dumps(*pair(tmp_path, how, how), read_set(SHIPPED))
        assert found.outcome is Outcome.INCONCLUSIVE and "byte limit reached" in found.reason
        assert "the dump of A reached its limit of 200 bytes: 8 left out" in found.warnings

    def test_a_difference_is_found_all_the_same(self, tmp_path):
        a, b = pair(tmp_path, {"max_bytes": 200}, {"max_bytes": 200, "changes": {(0, "tree"): shifted("tree", 0)}})
        assert compare_dumps(a, b, read_set(SHIPPED)).outcome is Outcome.DIVERGED

    @pytest.mark.parametrize("side", ["a", "b"])
    @pytest.mark.parametrize(
        ("end", "words"), [("", "breaks off"), ("error: disk full", "ended early: error: disk full")]
    )
    def test_a_broken_end(self, tmp_path, side, end, words):
        found = compare_dumps(*pair(tmp_path, **{side: {"end": end}}))
        assert found.outcome is Outcome.INCONCLUSIVE and found.reason.startswith("undecided: nothing differs")
        assert any(f"the dump of {side.upper()} {words}" in line for line in found.warnings)

    def test_a_leaf_that_one_side_lacks(self, tmp_path):
        found = compare_dumps(*pair(tmp_path, None, {"changes": {(2, "tree"): None}}))
        assert (
            found.outcome is Outcome.INCONCLUSIVE
            and "checksums.priority_tree of step 2 was not compared: not in B" in found.reason
        )

    def test_a_process_that_one_side_lacks(self, tmp_path):
        a, _ = pair(tmp_path)
        b = {**a, **open_dump(make_dump(tmp_path / "C", process="rank1"))}
        found = compare_dumps(a, b)
        assert found.outcome is Outcome.INCONCLUSIVE and "process rank1 left a dump in B only" in found.warnings

    def test_no_buffer_at_all(self, tmp_path):
        empty = {"steps": (), "unseen": (500,)}
        found = compare_dumps(*pair(tmp_path, empty, empty))
        assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "undecided: the dumps hold no buffer")
        assert "steps asked for that A never reached, or --every left out: 500" in found.warnings

    def test_no_process_in_common(self, tmp_path):
        a, b = pair(tmp_path, {"process": "rank0"}, {"process": "rank1"})
        assert compare_dumps(a, b).outcome is Outcome.INCONCLUSIVE


def test_damaged_bytes_are_no_difference(tmp_path):
    a, b = pair(tmp_path)
    file = next((tmp_path / "B" / "main").glob("*priority_tree.raw"))
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    with pytest.raises(UnreadableError, match="is damaged"):
        compare_dumps(a, b)


def test_ranks_are_compared_each_with_its_own_and_the_first_to_part_is_classified(tmp_path):
    sides = []
    for label in "AB":
        for rank in ("rank0", "rank1"):
            changes = {(1, "tree"): shifted("tree", 1)} if (label, rank) == ("B", "rank1") else {}
            make_dump(tmp_path / label, changes, process=rank)
        sides.append(open_dump(tmp_path / label))
    found = compare_dumps(*sides, read_set(SHIPPED))
    assert found.reason.startswith("HYPOTHESIS C")
    assert {b.process for b in found.buffers if b.status is BufferStatus.DIVERGE} == {"rank1"}
    assert [b.step for b in found.buffers] == sorted(b.step for b in found.buffers)


@pytest.mark.parametrize(("other", "outcome"), [((3, 1, 2), Outcome.CLEAN), ((3, 1, 9), Outcome.DIVERGED)])
def test_the_order_of_arrival_of_threads_is_no_difference(tmp_path, other, outcome):
    sides = []
    for label, values in (("A", (1, 2, 3)), ("B", other)):
        writer = DumpWriter(tmp_path / label / "main", Header("main", (), (0,), (), 1000))
        for value in values:
            thread = threading.Thread(target=writer.add, args=(0, "act.net", np.array([value])))
            thread.start()
            thread.join()
        writer.add(0, "act.net", np.array([0]))
        writer.close("complete")
        sides.append(open_dump(tmp_path / label))
    assert compare_dumps(*sides).outcome is outcome


def test_the_order_of_one_thread_is_a_difference(tmp_path):
    sides = []
    for label, values in (("A", (1, 2)), ("B", (2, 1))):
        writer = DumpWriter(tmp_path / label / "main", Header("main", (), (0,), (), 1000))
        for value in values:
            writer.add(0, "act.net", np.array([value]))
        writer.close("complete")
        sides.append(open_dump(tmp_path / label))
    assert compare_dumps(*sides).outcome is Outcome.DIVERGED
