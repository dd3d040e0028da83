"""The replayer: prefixes shared, results cached by content, substitutions and patches, refusals; executors."""

from __future__ import annotations

import importlib.util
import json

import pytest

from detaudit.core.errors import InconclusiveError, UsageError
from detaudit.trainsect import executors
from detaudit.trainsect.execute import Request
from detaudit.trainsect.model import Patch
from detaudit.trainsect.replay import TargetReplayer
from detaudit.trainsect.run import open_run
from tests.trainsect import recorded


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "run"
    recorded.train(path)
    return open_run(path)


@pytest.fixture(scope="module")
def replayer(run):
    return TargetReplayer(run, recorded.MLP)


def swapped(run, *steps):
    return {step: run.steps[(step + 1) % 12].ids for step in steps}


def test_a_replay_ends_in_the_recorded_states(run, replayer):
    result = replayer.replay(0, 12, substitutions={}, evaluate_at=[0, 12])
    assert result.states == {step: entry.state_sha256 for step, entry in run.checkpoints.items()}
    recorded_losses = {e.step: e.loss for e in run.evaluations}
    assert result.evaluations == {0: recorded_losses[0], 12: recorded_losses[12]}
    assert result.losses == {step: entry.loss for step, entry in run.steps.items()}


def test_a_substitution_changes_what_follows_and_nothing_before(run, replayer):
    result = replayer.replay(0, 12, substitutions=swapped(run, 6), evaluate_at=[4, 12])
    assert result.states[4] == run.checkpoints[4].state_sha256
    assert result.states[8] != run.checkpoints[8].state_sha256


def test_a_shared_prefix_is_executed_once_and_changes_nothing(run):
    sharing = TargetReplayer(run, recorded.MLP)
    sharing.replay(0, 12, substitutions=swapped(run, 8), evaluate_at=[12])
    shared = sharing.replay(0, 12, substitutions=swapped(run, 8, 10), evaluate_at=[12])
    alone = TargetReplayer(run, recorded.MLP).replay(0, 12, substitutions=swapped(run, 8, 10), evaluate_at=[12])
    assert shared == alone
    assert shared.executed == 4 and alone.executed == 12


def test_an_evaluation_that_a_snapshot_has_not_seen_is_taken(run):
    sharing = TargetReplayer(run, recorded.MLP)
    sharing.replay(0, 12, substitutions=swapped(run, 8), evaluate_at=[12])
    result = sharing.replay(0, 12, substitutions=swapped(run, 8), evaluate_at=[2, 12])
    assert result.executed == 12 and set(result.evaluations) == {2, 12}


def test_results_are_kept_by_content(run, tmp_path):
    first = TargetReplayer(run, recorded.MLP, tmp_path).replay(0, 8, substitutions=swapped(run, 2), evaluate_at=[8])
    again = TargetReplayer(run, recorded.MLP, tmp_path).replay(0, 8, substitutions=swapped(run, 2), evaluate_at=[8])
    assert again == first and (first.executed, again.executed) == (8, 0)


def test_a_damaged_cache_entry_is_executed_again(run, tmp_path):
    first = TargetReplayer(run, recorded.MLP, tmp_path).replay(0, 4, substitutions={}, evaluate_at=[4])
    path = next(tmp_path.glob("*.json"))
    value = json.loads(path.read_text())
    value["result"]["evaluations"]["4"] = "0x0.0p+0"
    path.write_text(json.dumps(value))
    again = TargetReplayer(run, recorded.MLP, tmp_path).replay(0, 4, substitutions={}, evaluate_at=[4])
    assert again == first and again.executed == 4


def test_a_patch_exchanges_leaves(run, replayer):
    patch = Patch(at=12, source=0, leaves=("model.param.*", "model.buffer.*"))
    result = replayer.replay(12, 12, substitutions={}, evaluate_at=[12], patch=patch)
    plain = replayer.replay(0, 0, substitutions={}, evaluate_at=[0])
    assert result.evaluations[12] == plain.evaluations[0]
    with pytest.raises(UsageError, match="no leaf"):
        replayer.replay(12, 12, substitutions={}, evaluate_at=[12], patch=Patch(12, 0, ("nothing",)))


REFUSED = {
    "backwards": ((8, 4), {}, [], "backwards"),
    "no checkpoint": ((3, 8), {}, [], "no checkpoint of step 3"),
    "outside": ((0, 4), {6: ((0,) * 8,)}, [], "not in"),
    "late evaluation": ((0, 4), {}, [5], "evaluation at step 5"),
    "size": ((0, 4), {2: ((0,) * 7,)}, [], "a substitute of sizes"),
    "strange id": ((0, 4), {2: ((96,) * 8,)}, [], "does not hold id 96"),
}


@pytest.mark.parametrize("interval, rows, at, text", REFUSED.values(), ids=list(REFUSED))
def test_requests_that_make_no_sense(replayer, interval, rows, at, text):
    with pytest.raises(UsageError, match=text):
        replayer.replay(*interval, substitutions=rows, evaluate_at=at)


def test_steps_beyond_the_recording(replayer):
    with pytest.raises(InconclusiveError, match="step 12"):
        replayer.replay(12, 14, substitutions={}, evaluate_at=[])


def test_single_losses_where_the_target_tells_them(run, replayer, tmp_path):
    assert replayer.sample_losses(4, [1, 2]) is None
    path = tmp_path / "target.py"
    path.write_text(
        recorded.MLP.read_text() + "\n\nclass T(Trainer):\n    def sample_losses(self, ids):\n"
        "        return [float(i) for i in ids]\n\n\ndef build():\n    return T()\n"
    )
    assert TargetReplayer(run, path).sample_losses(4, [3, 1]) == {3: 3.0, 1: 1.0}


def test_the_serial_executor_gives_results_in_order(run):
    job = executors.Job(str(run.directory), str(recorded.MLP), 0, 12)
    requests = [Request(0, 12, swapped(run, step), (12,)) for step in (3, 5, 3)]
    with executors.open_executor("serial") as executor:
        found = executors.replay_many(executor, job, requests)
    assert found[0] == found[2] != found[1]


def test_a_worker_that_does_not_reproduce_the_recording_is_refused(run, tmp_path):
    path = tmp_path / "target.py"
    path.write_text(recorded.MLP.read_text().replace("* 0.1", "").replace("alpha=0.1", "alpha=0.2"))
    job = executors.Job(str(run.directory), str(path), 0, 12)
    with executors.open_executor("serial") as executor, pytest.raises(InconclusiveError, match=r"ema\.shadow"):
        executors.replay_many(executor, job, [Request(0, 12)])


@pytest.mark.parametrize("text", ["", "serial:2", "processes", "processes:0", "threads:2", "dask:"])
def test_executors_that_do_not_exist(text):
    with pytest.raises(UsageError, match="expected serial"), executors.open_executor(text):
        pass


@pytest.mark.slow
def test_processes_give_the_same_answers(run):
    job = executors.Job(str(run.directory), str(recorded.MLP), 0, 12)
    requests = [Request(0, 12, swapped(run, step), (12,)) for step in (3, 5)]
    with executors.open_executor("serial") as executor:
        serial = executors.replay_many(executor, job, requests)
    with executors.open_executor("processes:2") as executor:
        assert executors.replay_many(executor, job, requests) == serial


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="dask[distributed] is not installed")
def test_a_dask_cluster_gives_the_same_answers(run):
    from distributed import LocalCluster

    job = executors.Job(str(run.directory), str(recorded.MLP), 0, 12)
    requests = [Request(0, 12, swapped(run, 3), (12,))]
    with executors.open_executor("serial") as executor:
        serial = executors.replay_many(executor, job, requests)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        executors.open_executor(f"dask:{cluster.scheduler_address}") as executor,
    ):
        assert executors.replay_many(executor, job, requests) == serial
