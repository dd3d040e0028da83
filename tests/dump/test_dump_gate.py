"""Which leaves pass, and what the sink makes of a disk, a fork and an end."""

from __future__ import annotations

import sys

import pytest
import torch

from detaudit.core.env import FIRST_DIVERGENCE, Settings
from detaudit.core.errors import UsageError
from detaudit.dump.gate import DumpSink, Gate, open_sink
from detaudit.dump.reader import open_dump
from detaudit.dump.writer import DumpWriter


def sink_in(directory, process="main", **settings):
    asked = Settings(str(directory), dump=True, **settings)
    return DumpSink(asked, lambda: process)


class TestGate:
    @pytest.mark.parametrize(
        ("leaves", "leaf", "passes"),
        [
            ((), "anything", True),
            (("loss",), "loss", True),
            (("loss",), "loss#3", True),
            (("loss#3",), "loss", False),
            (("loss#3",), "loss#3", True),
            (("param.*", "!param.b"), "param.w", True),
            (("param.*", "!param.b"), "param.b", False),
            (("opt[0]",), "opt[0]", True),
        ],
    )
    def test_leaves(self, leaves, leaf, passes):
        assert Gate((0,), leaves).admits(0, leaf) is passes

    def test_steps(self):
        gate = Gate((1, 3), ())
        assert [step for step in range(5) if gate.admits(step, "x")] == [1, 3]

    def test_what_never_came(self):
        gate = Gate((0, 7), ("loss", "no.*", "!rng.*"))
        assert gate.admits(0, "loss#1")
        assert (gate.unseen_steps, gate.unseen_leaves) == ([7], ["no.*"])

    def test_a_step_is_seen_when_any_of_its_leaves_comes(self):
        gate = Gate((0,), ("no",))
        assert not gate.admits(0, "loss")
        assert (gate.unseen_steps, gate.unseen_leaves) == ([], ["no"])


class TestSink:
    def test_a_dump(self, tmp_path):
        sink = sink_in(tmp_path / "run", dump_steps=(1, 9), dump_leaves=("x", "gone"))
        for step in range(3):
            for name in ("x", "y", "x"):
                sink.take(step, name, torch.full((2,), float(step)))
        sink.close("complete", True)
        (dump,) = open_dump(tmp_path / "run").values()
        assert list(dump.entries) == [(1, "x"), (1, "x#1")]
        assert (dump.end.outcome, dump.end.unseen_steps, dump.end.unseen_leaves) == ("complete", (9,), ("gone",))
        assert dump.header.command == tuple(sys.argv)

    def test_an_occurrence_that_is_not_asked_for_still_counts(self, tmp_path):
        sink = sink_in(tmp_path, dump_leaves=("x#1",))
        for value in (1.0, 2.0, 3.0):
            sink.take(0, "x", torch.tensor(value))
        sink.close("complete", True)
        (dump,) = open_dump(tmp_path).values()
        assert list(dump.entries) == [(0, "x#1")] and dump.data(dump.entries[0, "x#1"]) == b"\x00\x00\x00@"

    def test_the_named_directory_wins_over_the_run_s(self, tmp_path):
        sink = sink_in(tmp_path / "run", "rank3", dump_directory=str(tmp_path / "a b"))
        sink.take(0, "x", 1)
        sink.close("complete", True)
        assert list(open_dump(tmp_path / "a b")) == ["rank3"] and not (tmp_path / "run").exists()

    def test_a_trained_process_that_met_no_step_leaves_an_empty_dump_and_another_none(self, tmp_path):
        for process, trained in (("main", True), ("loader", False)):
            sink = sink_in(tmp_path, process, dump_steps=(500,))
            sink.take(0, "x", 1)
            sink.close("complete", trained)
        (dump,) = open_dump(tmp_path).values()
        assert dump.header.process == "main" and not dump.entries and dump.end.unseen_steps == (500,)

    def test_after_its_end_it_takes_nothing(self, tmp_path):
        sink = sink_in(tmp_path)
        sink.close("complete", True)
        sink.take(0, "x", 1)
        sink.close("again", True)
        (dump,) = open_dump(tmp_path).values()
        assert not dump.entries and dump.end.outcome == "complete"

    def test_a_forked_child_writes_its_own(self, tmp_path):
        process = ["main"]
        sink = DumpSink(Settings(str(tmp_path), dump=True), lambda: process[0])
        sink.take(0, "x", 1)
        process[0] = "main-fork1"
        sink.after_fork()
        sink.take(0, "x", 2)
        sink.close("complete", True)
        dumps = open_dump(tmp_path)
        assert dumps["main"].end is None and dumps["main-fork1"].end.entries == 1

    def test_a_disk_that_is_full_stops_the_dump_and_says_so_twice(self, tmp_path, monkeypatch, capsys):
        sink = sink_in(tmp_path)
        sink.take(0, "x", torch.ones(1))

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(DumpWriter, "_write", full)
        sink.take(0, "y", torch.ones(1))
        sink.take(0, "z", torch.ones(1))
        sink.close("complete", True)
        said = "the dump cannot be written: No space left on device"
        assert capsys.readouterr().err == f"detaudit: {said}\n"
        (dump,) = open_dump(tmp_path).values()
        assert [entry.name for entry in dump.entries.values()] == ["x"] and dump.end.outcome == f"error: {said}"


def test_a_single_run_cannot_know_where_two_differ(tmp_path):
    asked = Settings(str(tmp_path), dump=True, dump_steps=(FIRST_DIVERGENCE, 0))
    with pytest.raises(UsageError, match=r"DETAUDIT_DUMP_STEPS=first-divergence,0: .* use it with `detaudit check`"):
        open_sink(asked, lambda: "main")
