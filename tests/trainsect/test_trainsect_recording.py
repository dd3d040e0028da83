"""Recording: what is in a run directory, misuse, full disks, and runs that cannot be replayed."""

from __future__ import annotations

import json
import os
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from detaudit.core.errors import InconclusiveError, TrailCorruptError, UnreadableError, UsageError
from detaudit.trainsect import checkpoint, recording
from detaudit.trainsect.replay import TargetReplayer
from detaudit.trainsect.run import open_run, states_of
from tests.trainsect import recorded


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "run"
    recorded.train(path)
    return path


@pytest.fixture
def directory(source, tmp_path):
    """A copy that a test may damage."""
    import shutil

    return shutil.copytree(source, tmp_path / "run")


@pytest.fixture(autouse=True)
def nothing_left_open():
    yield
    if recording._current is not None:
        recording.stop_recording("test")


def test_the_content_of_a_run(source):
    run = open_run(source)
    assert sorted(run.steps) == list(range(12)) and sorted(run.checkpoints) == [0, 4, 8, 12]
    assert [e.step for e in run.evaluations] == [0, 2, 4, 6, 8, 10, 12] and run.evaluations[0].data == "held-out"
    assert run.instrumented and not run.warnings and run.pool == range(96)
    assert run.shard_of(0) == "shard-0" and run.shard_of(95) == "shard-3"
    assert set(run.steps[0].rng) == {"python", "numpy", "torch", "noise"}
    assert run.settings["threads"] == torch.get_num_threads() and run.flags["default_dtype"] == "torch.float32"


def test_a_checkpoint_holds_the_state_before_the_update(source):
    run = open_run(source)
    fresh = recorded.load(recorded.MLP).Trainer()
    state = checkpoint.read(run.checkpoints[0]).decode()
    assert torch.equal(state["model"]["param"]["head.weight"], fresh.model.head.weight)
    assert state["loop"] == {"seen": 0} and checkpoint.read(run.checkpoints[4]).decode()["loop"] == {"seen": 32}


def test_generators_are_stored_once(source):
    run = open_run(source)
    shas = {sha for entry in run.steps.values() for sha in entry.rng.values()}
    assert sum(len(run.rng.get(sha)) for sha in shas) == (source / "rng.pack").stat().st_size
    assert len(states_of(run, 3)["torch"]) == 5056


def test_recording_changes_no_bit(tmp_path):
    trained = recorded.train(tmp_path / "run", evaluate=0)
    program = recorded.load(recorded.MLP)
    random.seed(11), np.random.seed(12), torch.manual_seed(13)
    plain = program.Trainer()
    for t, ids in enumerate(recorded.orders(program.SAMPLES, program.BATCH, 12)):
        random.random(), np.random.rand(2), torch.rand(3)
        plain.step([plain.fetch(row, None) for row in ids], t)
    for a, b in zip(trained.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_micro_batches_replay(tmp_path):
    recorded.train(tmp_path / "run", steps=6, every=3, micro=2, trainer=recorded.load(recorded.MLP).Trainer(2))
    run = open_run(tmp_path / "run")
    assert [len(row) for row in run.steps[0].ids] == [8, 8]
    result = TargetReplayer(run, recorded.MLP).replay(0, 6, substitutions={}, evaluate_at=[6])
    assert result.states[6] == run.checkpoints[6].state_sha256


def test_a_tape_replays_batches_without_ids(tmp_path):
    program = recorded.load(recorded.MLP)
    trainer = program.Trainer()
    state = trainer.state()
    recording.start_recording(
        tmp_path / "run", model=state.pop("model"), optimizer=state.pop("optimizer"), objects=state, every=2, tape=True
    )
    for t in range(4):
        batch = trainer.fetch(range(t, t + 8), None)
        recording.record(t, batch, loss=trainer.step([batch], t))
    recording.stop_recording()
    run = open_run(tmp_path / "run")
    assert run.steps[0].ids is None
    result = TargetReplayer(run, recorded.MLP).replay(0, 4, substitutions={}, evaluate_at=[])
    assert result.states[4] == run.checkpoints[4].state_sha256


def test_without_ids_and_tape_a_step_cannot_be_replayed(tmp_path):
    trainer = recorded.load(recorded.MLP).Trainer()
    recording.start_recording(tmp_path / "run", model=trainer.model, objects=_others(trainer))
    batch = trainer.fetch(range(8), None)
    trainer.step([batch], 0)
    recording.record(0, batch)
    recording.stop_recording()
    with pytest.raises(InconclusiveError, match="neither sample ids nor a tape"):
        TargetReplayer(open_run(tmp_path / "run"), recorded.MLP).replay(0, 1, substitutions={}, evaluate_at=[])


def _others(trainer):
    return {name: value for name, value in trainer.state().items() if name != "model"}


def test_steps_out_of_order_and_strange_ids_are_misuse(tmp_path):
    trainer = recorded.load(recorded.MLP).Trainer()
    recording.start_recording(tmp_path / "run", model=trainer.model, pool=10)
    with pytest.raises(UsageError, match="the next one is 0"):
        recording.record(1, None, ids=[1])
    with pytest.raises(UsageError, match="does not hold id 10"):
        recording.record(0, None, ids=[10])
    with pytest.raises(UsageError, match="whole numbers"):
        recording.record(0, None, ids=[0.5])
    with pytest.raises(UsageError, match="already"):
        recording.start_recording(tmp_path / "other", model=trainer.model)


def test_recording_twice_into_one_directory_is_refused(directory):
    with pytest.raises(UsageError, match="never overwritten"):
        recording.start_recording(directory, model=nn.Linear(1, 1))


def test_nothing_is_being_recorded(tmp_path):
    with pytest.raises(UsageError, match="start_recording"):
        recording.record(0)


def test_a_state_without_exact_form_is_refused_before_training(tmp_path):
    with pytest.raises(UsageError, match=r"state\.odd"):
        recording.start_recording(tmp_path / "run", model=nn.Linear(1, 1), objects={"odd": {"f": object()}})


def test_a_distributed_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InconclusiveError, match="2 ranks"):
        recording.start_recording(tmp_path / "run", model=nn.Linear(1, 1))
    monkeypatch.setenv("WORLD_SIZE", "1")
    wrapped = type("DistributedDataParallel", (nn.Module,), {})()
    with pytest.raises(InconclusiveError, match="DistributedDataParallel"):
        recording.start_recording(tmp_path / "run2", model=wrapped)


def test_over_the_budget_of_generator_bytes_the_step_says_so(tmp_path):
    recorded.train(tmp_path / "run", steps=4, every=4, rng_budget=1000)
    run = open_run(tmp_path / "run")
    assert "over the budget" in run.warnings[0]
    with pytest.raises(InconclusiveError, match="over the budget"):
        TargetReplayer(run, recorded.MLP).replay(0, 4, substitutions={}, evaluate_at=[])


def test_a_skipped_update_is_seen(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recording.start_recording(tmp_path / "run", model=model, optimizer=optimizer)
    for t in range(2):
        model(torch.ones(1, 2)).sum().backward()
        if t:
            optimizer.step()
        recording.record(t, torch.ones(1, 2), ids=[t])
    recording.stop_recording()
    assert [entry.skipped for entry in open_run(tmp_path / "run").steps.values()] == [True, False]


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(tmp_path, monkeypatch):
    real, calls = torch.save, []

    def full(content, file):
        calls.append(file)
        if len(calls) == 2:
            file.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(content, file)

    monkeypatch.setattr(torch, "save", full)
    with pytest.warns(UserWarning, match="No space left"):
        recorded.train(tmp_path / "run", steps=6, every=4)
    run = open_run(tmp_path / "run")
    assert sorted(run.checkpoints) == [0, 6] and checkpoint.read(run.checkpoints[0])
    assert [event.kind for event in run.events] == ["checkpoint failed"]
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_a_missing_checkpoint(directory):
    checkpoint.path_of(directory, 4).unlink()
    with pytest.raises(UnreadableError, match="step 4 is missing"):
        checkpoint.read(open_run(directory).checkpoints[4])


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: data[:500] + b"x" + data[501:]])
def test_a_truncated_or_tampered_checkpoint(directory, damage):
    path = checkpoint.path_of(directory, 4)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InconclusiveError, match="has changed"):
        checkpoint.read(open_run(directory).checkpoints[4])
    with pytest.raises(InconclusiveError):
        TargetReplayer(open_run(directory), recorded.MLP).replay(4, 8, substitutions={}, evaluate_at=[])


def test_a_foreign_checkpoint(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"model": nn.Linear(1, 1).state_dict()}, path)
    with pytest.raises(UnreadableError, match="another program"):
        checkpoint.load(path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_pickle_with_code_is_refused_and_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, save in (("zip", lambda p: torch.save({"schema": checkpoint.SCHEMA, "tree": Bomb()}, p)),):
        save(tmp_path / name)
        with pytest.raises(UnreadableError, match="without running code"):
            checkpoint.load(tmp_path / name)
    (tmp_path / "bare").write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(UnreadableError):
        checkpoint.load(tmp_path / "bare")
    assert not (tmp_path / "exploded").exists()


def test_a_torn_log_reads_to_its_last_whole_step(directory):
    log = directory / "log.jsonl"
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join(lines[:-6]) + b"\n" + lines[-6][:40])
    run = open_run(directory)
    assert any("torn tail" in line for line in run.warnings) and any("no end" in line for line in run.warnings)
    assert 0 < len(run.steps) < 12


def test_an_edited_log_is_refused(directory):
    log = directory / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"skipped":false', b'"skipped":true ', 1))
    with pytest.raises(TrailCorruptError):
        open_run(directory)


def test_tampered_generator_states_are_refused(directory):
    pack = directory / "rng.pack"
    pack.write_bytes(pack.read_bytes()[:-1] + b"\xff")
    run = open_run(directory)
    with pytest.raises(InconclusiveError, match="have changed"):
        for step in run.steps:
            states_of(run, step)


def test_a_stripped_run_is_not_instrumented(directory):
    for name in ("log.jsonl", "rng.pack", "tape.pack"):
        (directory / name).unlink()
    run = open_run(directory)
    assert not run.instrumented and sorted(run.checkpoints) == [0, 4, 8, 12] and len(run.evaluations) == 7
    order = {t: tuple(tuple(range(8)) for _ in range(1)) for t in range(4)}
    replayer = TargetReplayer(run, recorded.MLP)
    first = replayer.replay(0, 4, substitutions=order, evaluate_at=[4], seed=1)
    second = TargetReplayer(run, recorded.MLP).replay(0, 4, substitutions=order, evaluate_at=[4], seed=1)
    other = replayer.replay(0, 4, substitutions=order, evaluate_at=[4], seed=2)
    assert first == second and first.states != other.states
    with pytest.raises(InconclusiveError, match="not in the recording"):
        replayer.replay(0, 4, substitutions={}, evaluate_at=[], seed=1)


def test_what_is_no_run_directory(tmp_path):
    with pytest.raises(UnreadableError, match=r"run\.json"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"schema": "other"}))
    with pytest.raises(UnreadableError, match="schema"):
        open_run(tmp_path)
