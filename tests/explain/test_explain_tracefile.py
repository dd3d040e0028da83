"""The file of a trace: what is written is read, a torn end is dropped and said, damage names its line."""

from __future__ import annotations

import pytest

from detaudit.core.errors import UnreadableError
from detaudit.explain.tracefile import LeafSeen, Op, Operand, Reseed, Site, TraceWriter, read

LINES = [
    {"step": 4},
    {"site": 0, "file": "/p/a file.py", "line": 3, "in": "f"},
    {"op": "aten.empty.memory_format", "site": 0, "outs": [[1, None]], "alloc": 1},
    {"seed": "torch.manual_seed", "value": "7", "site": 0},
    {"leaf": "act.net", "storage": 1, "digest": "ab", "unwritten": 1},
    {"step": 5},
    {"op": "aten.mul.Tensor", "site": 0, "module": "net", "ins": [[1, "ab", 1], [2, "cd"]], "outs": [[3, "ef"]],
     "values": ["2"], "node": "MulBackward0", "random": "torch:1", "rerun": [1, 10, 2]},
    {"old": [2]},
    {"note": "said"},
    {"end": 1},
]  # fmt: skip


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a trace.ops.jsonl"
    writer = TraceWriter((4, 5), 3)
    for line in LINES:
        writer.write(line)
    writer.open(path)
    writer.flush()
    return path


def test_what_is_written_is_read(written):
    trace = read(written)
    here = Site("/p/a file.py", 3, "f")
    assert (trace.window, trace.reruns, trace.steps, trace.complete) == ((4, 5), 3, [4, 5], True)
    assert trace.ops[0] == Op(0, 4, "aten.empty.memory_format", here, outputs=(Operand(1, None),), allocates=True)
    assert trace.ops[1].inputs == (Operand(1, "ab", True), Operand(2, "cd")) and trace.ops[1].step == 5
    assert (trace.ops[1].node, trace.ops[1].random, trace.ops[1].rerun) == ("MulBackward0", "torch:1", (1, 10, 2))
    assert trace.leaves == [LeafSeen(1, 4, "act.net", 1, "ab", True)]
    assert trace.reseeds == [Reseed(1, 4, "torch.manual_seed", "7", here)]
    assert trace.old == {2} and trace.notes == ["said"] and trace.dropped_bytes == 0


def test_a_torn_end_is_dropped_and_counted(written):
    data = written.read_bytes()
    for cut in range(data.index(b"\n") + 1, len(data), 7):
        written.write_bytes(data[:cut])
        trace = read(written)
        assert not trace.complete and trace.dropped_bytes == cut - data[:cut].rindex(b"\n") - 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not a trace"),
        (b"DETAUDIT\x01\x00", "is not a trace"),
        (b'{"format":"detaudit.optrace/9","window":[0,1],"reruns":3}\n', "'detaudit.optrace/9'"),
        (b'{"format":"detaudit.optrace/1","window":[0,1],"reruns":3}\n{"op"\n{"end":1}\n', "line 2 is damaged"),
        (b'{"format":"detaudit.optrace/1","window":[0,1],"reruns":3}\n{"step":0}\n{"what":1}\n', "line 3 is damaged"),
    ],
)
def test_what_is_no_trace(tmp_path, data, words):
    path = tmp_path / "x.ops.jsonl"
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=words):
        read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UnreadableError, match="cannot be read"):
        read(tmp_path / "x.ops.jsonl")


def test_lines_without_a_file_are_bounded(monkeypatch, tmp_path):
    monkeypatch.setattr(TraceWriter, "LIMIT", 3)
    writer = TraceWriter((0, 0), 3)
    for step in range(5):
        writer.write({"step": step})
    assert writer.full
    writer.open(tmp_path / "x.ops.jsonl")
    writer.flush()
    writer.write({"end": 1})
    writer.flush()
    assert read(tmp_path / "x.ops.jsonl").steps == [0, 1]
