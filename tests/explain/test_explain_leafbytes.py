"""What the bytes of the first diverging leaf tell: values and their distance, a limit, a leaf that was not kept."""

from __future__ import annotations

import numpy as np
import pytest

from detaudit.core.env import Settings, read, write
from detaudit.core.model import Divergence, DivergenceKind
from detaudit.dump.gate import Gate
from detaudit.dump.manifest import Header
from detaudit.dump.writer import DumpWriter
from detaudit.explain.leafbytes import keeping, told

LEAF = "grad.table"


def first(step=4, leaf=LEAF):
    return Divergence(step, leaf, DivergenceKind.VALUE)


def kept(directory, values, max_bytes=10**6, process="main", leaf=LEAF, end="complete"):
    """The directory of a traced run that dumped `values`, one a step."""
    header = Header(process, ("train.py",), tuple(values), (leaf,), max_bytes)
    writer = DumpWriter(directory / "dump" / process, header)
    for step, value in values.items():
        writer.add(step, leaf, value)
    if end:
        writer.close(end)
    writer.abandon()
    return directory


def sides(tmp_path, value, **how):
    before = np.ones(40000, np.float32)
    changed = before.copy() if value is None else value
    return [kept(tmp_path / label, {3: before, 4: x}, **how) for label, x in (("A", before), ("B", changed))]


def moved(*indices):
    value = np.ones(40000, np.float32)
    value[list(indices)] = np.nextafter(np.float32(1), np.float32(2))
    return value


class TestTold:
    def test_count_region_distance_order_and_chunk(self, tmp_path):
        where, how = told(sides(tmp_path, moved(20000, 30000)), first(), "main")
        assert where.startswith("grad.table: 2 of 40000 elements differ (scattered, idx 20000 to 30000)")
        assert "first differing 64 KiB: 1 of 3; at idx 20000 1.0 in A, 1.00000011" in where
        assert how.startswith("largest distance 1 ulp at idx 20000; absolute 1.19209e-07")
        assert "apart by rounding only" in how and how.endswith("not a permutation")

    def test_a_permutation(self, tmp_path):
        value = moved(7)
        a, b = kept(tmp_path / "A", {4: value}), kept(tmp_path / "B", {4: np.roll(value, 5)})
        assert told([a, b], first(), "main")[1].endswith("the same elements in another order")

    def test_a_value_that_is_no_number(self, tmp_path):
        a, b = kept(tmp_path / "A", {4: [1, 2]}), kept(tmp_path / "B", {4: [1, 3]})
        assert "differ" in told([a, b], first(), "main")[0]

    def test_the_process_that_diverged(self, tmp_path):
        for label, value in (("A", moved()), ("B", moved(3))):
            kept(tmp_path / label, {4: moved()}, process="rank0")
            kept(tmp_path / label, {4: value}, process="rank1")
        places = [tmp_path / "A", tmp_path / "B"]
        assert "1 of 40000" in told(places, first(), "rank1")[0]
        assert "not known" in told(places, first(), "rank0")[0]


class TestWhatIsNotKnown:
    def unknown(self, found):
        (line,) = found
        assert line.startswith("how the values of ") and " is not known: " in line
        return line

    def test_equal_bytes_are_not_passed_off_as_a_difference(self, tmp_path):
        assert "equal bytes" in self.unknown(told(sides(tmp_path, None), first(), "main"))

    def test_the_limit_is_said_with_its_cure(self, tmp_path):
        line = self.unknown(told(sides(tmp_path, moved(1), max_bytes=200000), first(), "main"))
        assert "byte limit reached: 160000 bytes more than the 40000 left" in line
        assert "DETAUDIT_DUMP_MAX_BYTES" in line

    def test_another_leaf_than_the_one_that_was_kept(self, tmp_path):
        line = self.unknown(told(sides(tmp_path, moved(1)), first(leaf="grad.other"), "main"))
        assert "grad.other" in line and "kept grad.table" in line

    @pytest.mark.parametrize("process", ["main", "rank7"])
    def test_no_dump_at_all(self, tmp_path, process):
        places = sides(tmp_path, moved(1)) if process != "main" else [tmp_path, tmp_path]
        self.unknown(told(places, first(), process))

    def test_a_damaged_one(self, tmp_path):
        places = sides(tmp_path, moved(1))
        file = next((places[1] / "dump" / "main").glob("*.raw"))
        file.chmod(0o644)
        file.write_bytes(b"short")
        assert "cut short" in self.unknown(told(places, first(), "main"))

    def test_another_shape(self, tmp_path):
        found = told(sides(tmp_path, np.ones(3, np.float32)), first(), "main")
        assert "float32[40000] in A, float32[3] in B" in self.unknown(found)


@pytest.mark.parametrize("leaf", ["act.net#3", "param.opt[0]", "user.a,b[1]", "loss"])
def test_the_leaf_alone_is_kept_over_the_window(leaf):
    settings = keeping(Settings("out", trace=(3, 4), dump_directory="elsewhere", dump_max_bytes=77), leaf)
    settings = read(write(settings))
    assert (settings.dump, settings.dump_steps, settings.dump_max_bytes) == (True, (3, 4), 77)
    assert settings.dump_place.startswith("out")
    gate = Gate(settings.dump_steps, settings.dump_leaves)
    assert gate.admits(4, leaf) and not gate.admits(5, leaf) and not gate.admits(4, "grad.x")
