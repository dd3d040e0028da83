"""The agent run twice: clean runs are equal to the bit, and each fault's first leaf is the one the issue names."""

import re

import pytest
import torch
from workload_recording import FakeAudit, diverging_pair, first_difference, record_once, record_pair

from detaudit.core.errors import UsageError
from detaudit.workloads.faults import parse_faults
from detaudit.workloads.launch import Options, prepare
from detaudit.workloads.per_rl import FAULTS, evaluate, summary, train
from detaudit.workloads.per_trainer import PerTrainer

pytestmark = pytest.mark.timeout(900)

NAMED = ["sample_prng", "priority_tree", "replay_sample_indices", "is_weights", "encoder_output", "v_value", "v_grad"]
NAMED += ["td_error", "loss"]


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def options(inject="", steps=30, **more):
    return Options(steps=steps, faults=parse_faults(inject, FAULTS), **more)


def record(chosen):
    """One training in this process: its steps, the last one the tail of the evaluation."""
    prepare(chosen)
    trainer = PerTrainer(chosen)
    audit = FakeAudit(trainer.net, trainer.optimizer)
    loss = train(trainer, chosen.steps, audit)
    returned = evaluate(trainer, chosen, audit) if chosen.eval_steps else 0.0
    audit.summary = summary(chosen, loss, returned)
    return audit


def pair(inject, steps=10):
    return diverging_pair(lambda: record(options(inject, steps, eval_steps=0)).steps)


def test_a_clean_run_is_the_same_twice():
    first, second = (record(options(steps=6, eval_steps=5)) for _ in range(2))
    assert first_difference(first.steps, second.steps) is None
    assert first.summary == second.summary
    assert re.fullmatch(r"per_rl steps=6 batch=128 seed=0 inject=none final_loss=-?0x1\.\w+p[+-]\d+ .*", first.summary)
    assert list(first.steps[-1]) == ["checksums.eval_returns"]


def test_declared_leaves():
    declared = record(options(steps=1, eval_steps=0)).shapes
    checksums = [name.removeprefix("checksums.") for name in declared if name.startswith("checksums.")]
    assert set(NAMED) <= set(checksums) and len(checksums) >= 15
    assert declared["checksums.sample_prng"] == ("uint32", (128,))
    assert declared["checksums.priority_tree"] == ("float32", (65_536,))
    assert declared["checksums.replay_sample_indices"] == ("int64", (128,))
    assert declared["checksums.encoder_output"] == ("float32", (128, 16))


def test_two_seeds_differ_at_once():
    first, second = (record(options(steps=1, eval_steps=0, seed=seed)).steps for seed in (0, 1))
    assert first_difference(first, second) == (0, "checksums.sample_prng")


@pytest.mark.parametrize("fault", ["tree-stale-read", "tree-rebuild-race"])
def test_a_tree_fault_shows_in_the_tree_alone(fault):
    first, second = pair(fault)
    step, leaf = first_difference(first, second)
    assert leaf == "checksums.priority_tree"
    differing = {name for name in first[step] if first[step][name] != second[step][name]}
    assert differing <= {"checksums.priority_tree", "checksums.tree_root"}


def test_a_walk_flip_shows_in_the_indices():
    first, second = pair("tree-walk-flip")
    step, leaf = first_difference(first, second)
    assert leaf == "checksums.replay_sample_indices"
    assert first[step]["checksums.sample_prng"] == second[step]["checksums.sample_prng"]
    assert first[step - 1]["checksums.priority_tree"] == second[step - 1]["checksums.priority_tree"] or step == 0


def test_prng_drift_shows_in_the_prng():
    assert first_difference(*pair("prng-drift", steps=4)) == (2, "checksums.sample_prng")


def test_an_encoder_race_shows_in_a_gradient_and_a_step_later_in_the_encoder():
    first, second = pair("encoder-race", steps=15)
    step, leaf = first_difference(first, second)
    assert leaf == "grad.encoder.tiles"
    assert all(first[step][name] == second[step][name] for name in first[step] if name.startswith("checksums."))
    declared = [{k: v for k, v in s.items() if k.startswith("checksums.")} for s in first]
    declared_too = [{k: v for k, v in s.items() if k.startswith("checksums.")} for s in second]
    later = first_difference(declared, declared_too)
    if later:  # the update of the very last step has no step after it
        assert later[0] > step and later[1] == "checksums.encoder_output"


def test_late_begins_late():
    first, second = pair("late:2:tree-rebuild-race", steps=5)
    step, leaf = first_difference(first, second)
    assert step >= 2 and leaf == "checksums.priority_tree"


def test_after_the_first_fault_is_taken_away_the_second_is_named():
    both = first_difference(*pair("tree-rebuild-race,late:3:prng-drift", steps=5))
    one = first_difference(*pair("late:3:prng-drift", steps=5))
    assert both[1] == "checksums.priority_tree"
    assert one == (3, "checksums.sample_prng")


def test_a_batch_too_small_to_race_is_refused():
    with pytest.raises(UsageError, match="use --batch 64 or more"):
        PerTrainer(options("encoder-race", batch=63))


@pytest.mark.slow
def test_fresh_processes_agree(tmp_path):
    (first, out_a), (second, out_b) = (record_once(tmp_path / "run.json", "per_rl", "--steps", "60") for _ in range(2))
    assert first_difference(first, second) is None
    assert out_a == out_b and out_a.startswith("per_rl steps=60")


@pytest.mark.slow
@pytest.mark.parametrize(
    "inject, leaf, least",
    [
        ("tree-stale-read", "checksums.priority_tree", 0),
        ("tree-rebuild-race", "checksums.priority_tree", 0),
        ("tree-walk-flip", "checksums.replay_sample_indices", 0),
        ("prng-drift", "checksums.sample_prng", 2),
        ("encoder-race", "grad.encoder.tiles", 0),
        ("late:150:tree-rebuild-race", "checksums.priority_tree", 150),
    ],
)
def test_fresh_processes_diverge_under_each_fault(tmp_path, inject, leaf, least):
    step, named = first_difference(*record_pair(tmp_path, "per_rl", "--steps", "200", "--inject", inject))
    assert named == leaf and step >= least
