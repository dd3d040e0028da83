"""Leaves of a device in the recorder: started together, read when the step closes, and the path named in the trail."""

from __future__ import annotations

import pytest
import torch

from detaudit.capture import recorder as module
from detaudit.capture.buffer import MAX_OCCURRENCES, Entry, StepBuffer
from detaudit.capture.leaves import Group
from detaudit.capture.recorder import Recorder
from detaudit.cli.show import trail_value
from detaudit.core.env import Settings
from detaudit.core.errors import UnsupportedLeafError
from detaudit.core.model import StepKind
from detaudit.digest import host, paths
from detaudit.digest.paths import Choice, HostCopy
from detaudit.digest.select import PendingDigest
from detaudit.digest.stats import EMPTY
from detaudit.trail.reader import TrailReader

CUDA = torch.device("cuda", 0)


class Placed(torch.Tensor):
    """A host tensor that says it lies on cuda:0."""

    is_cpu = False
    device = CUDA


class Waiting(HostCopy):
    """Digests on the host, and logs when a digest is started and when it is waited for."""

    def __init__(self):
        self.log = []

    def start(self, tensors, /):
        self.log.append(f"start {len(tensors)}")
        found = [host.tensor_digest(tensor.as_subclass(torch.Tensor)) for tensor in tensors]
        return [lambda value=value: self.log.append("read") or value for value in found]


@pytest.fixture
def path(monkeypatch):
    waiting = Waiting()
    monkeypatch.setitem(paths._PATHS, CUDA, waiting)
    return waiting


def placed(*shape):
    return torch.randn(*shape).as_subclass(Placed)


def digest(tensor):
    return host.tensor_digest(tensor.as_subclass(torch.Tensor))


def test_a_group_starts_its_leaves_together_and_reads_none(path):
    tensors = [placed(3), placed(2, 2)]
    found = Group().digests(["a", "b"], tensors)
    assert path.log == ["start 2"]
    assert [(leaf.digest, leaf.shape) for leaf in found] == [(digest(t), tuple(t.shape)) for t in tensors]


def test_a_group_on_two_devices_is_digested_leaf_by_leaf(path):
    tensors = [placed(3), torch.randn(4)]
    assert [leaf.digest for leaf in Group().digests(["a", "b"], tensors)] == [digest(tensor) for tensor in tensors]
    assert path.log[0] == "start 1"


def test_what_a_device_refuses_is_named_leaf_by_leaf(path, monkeypatch):
    def refuse(tensors, /):
        raise UnsupportedLeafError("a graph is being captured")

    monkeypatch.setattr(path, "start", refuse)
    found = Group().digests(["a", "b"], [placed(3), placed(2)])
    assert [leaf.unsupported for leaf in found] == ["a graph is being captured"] * 2


def test_a_buffer_reads_when_its_step_closes(path):
    buffer, log = StepBuffer(), []
    for value in (5, 6):
        buffer.add(Entry("act.x", PendingDigest(lambda v=value: log.append(v) or v, "float32", (2,)), EMPTY))
    assert log == []
    leaves, digests, _ = buffer.close()
    assert digests == [5, 6] and [leaf.name for leaf in leaves] == ["act.x", "act.x#1"]
    assert leaves[0].dtype == "float32" and leaves[0].unsupported == ""


def test_folded_occurrences_take_pending_digests():
    def rolled(make):
        buffer = StepBuffer()
        for value in range(MAX_OCCURRENCES + 3):
            buffer.add(Entry("act.x", make(value), EMPTY))
        return buffer.close()[1]

    pending = rolled(lambda value: PendingDigest(lambda: value, "float32", (2,)))
    assert pending == rolled(lambda value: module.digest_leaf(0).__class__(value, "float32", (2,)))


def test_the_trail_holds_the_digests_and_names_the_path(path, monkeypatch, tmp_path):
    choice = Choice("cuda:0", "copy to the host", "CuPy cannot be imported")
    monkeypatch.setattr(module, "choices", lambda: [choice])
    recorder, tensor = Recorder(Settings(directory=str(tmp_path))), placed(5)
    expected = digest(tensor)
    for step in range(2):
        recorder.add("loss", tensor)
        assert path.log == ["start 1", *["read", "start 1"] * step]
        recorder.close_step(StepKind.MARKED)
    recorder.finish("finished")
    trail = TrailReader(tmp_path / "main.trail")
    notes = [note for note in trail.notes if note["note"] == "digest"]
    assert notes == [
        {"note": "digest", "device": "cuda:0", "path": "copy to the host", "why": "CuPy cannot be imported"}
    ]
    shown = trail_value(trail, 0, "loss", False)
    assert shown["leaves"][0]["digest"] == f"{expected:016x}" and notes[0] in shown["notes"]


def test_a_run_on_the_cpu_says_nothing_of_devices(tmp_path):
    recorder = Recorder(Settings(directory=str(tmp_path)))
    recorder.add("loss", torch.randn(3))
    recorder.close_step(StepKind.MARKED)
    recorder.finish("finished")
    assert [note["note"] for note in TrailReader(tmp_path / "main.trail").notes] == ["end"]
