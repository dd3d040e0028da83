"""Whole diagnoses of small recorded runs with a known cause: one verdict of the decision table each."""

import pytest

from detaudit.core.errors import InconclusiveError, UsageError
from detaudit.trainsect.diagnosis import Options, diagnose
from tests.trainsect import trainsect_toys as toys
from tests.trainsect.trainsect_rig import record


def diagnosed(toy, bad=None, order=None, predicate="rescue", hold=None, **settings):
    run, replayer = record(
        toy, order or toys.order(bad=bad, hold=hold), shard_of=toys.shard_of, pool=toys.POOL, **settings
    )
    said = []
    found = diagnose(run, replayer, Options(predicate=predicate), said.append)
    return found, replayer, said


def names(found):
    return {c.name.split(" (")[0]: (c.k, c.n, c.passed) for c in found.controls}


def test_a_single_cause_down_to_the_sample():
    found, replayer, said = diagnosed(toys.Single(), {47: [23]})
    assert (found.status, found.kind, found.shards) == ("CONFIRMED (causal)", "SINGLE", ("shard-2",))
    assert (found.bracket.start, found.bracket.stop) == (40, 60)
    assert (found.inside[0].step, found.inside[0].sample_id) == (47, 23)
    assert found.state == "STATE-INDEPENDENT" and all(c.passed is not False for c in found.controls)
    assert names(found)["necessity"] == (0, 2, True) and names(found)["placebo"][2]
    assert replayer.asked < 80 and "at most" in said[0] and "left" in said[-1]


def test_two_independent_causes_that_leave_one_out_would_miss():
    found, _, _ = diagnosed(toys.Independent(), {47: [23], 51: [61]})
    assert (found.status, found.kind, found.shards) == ("CONFIRMED (causal)", "INDEPENDENT", ("shard-2", "shard-6"))
    assert {(each.step, each.sample_id) for each in found.inside} == {(47, 23), (51, 61)}


def test_a_pair_that_acts_together():
    found, _, _ = diagnosed(toys.Pair(), {47: [23], 51: [61]})
    assert (found.status, found.kind, found.shards) == ("CONFIRMED (causal)", "INTERACTION", ("shard-2", "shard-6"))
    assert found.inside[0].sample_id is None and found.inside[0].batch.kind == "INTERACTION"


def test_an_order_is_no_shard():
    made = toys.order()
    for k in range(5):
        made[45 + k] = tuple(10 * k + i for i in range(4))
    found, _, _ = diagnosed(toys.Order(), order=made)
    assert (found.status, found.shards) == ("ORDER", ())


def test_a_concentration_names_no_shard_and_shows_a_dose():
    bad = {42 + k: [(19, 39, 49, 69)[k % 4]] for k in range(16)}
    found, _, _ = diagnosed(toys.Concentration(), bad)
    assert (found.status, found.shards) == ("CONCENTRATION", ())
    assert found.dose.largest_none < 12 <= found.dose.smallest_all


def test_poisoned_evaluation_data():
    found, _, _ = diagnosed(toys.EvalData())
    assert (found.status, found.shards) == ("EVAL-DATA", ()) and "aaaa" in found.reason and "bbbb" in found.reason


def test_poisoned_buffers():
    found, _, _ = diagnosed(toys.Buffers(), {47: [23]})
    assert (found.status, found.kind, found.shards) == ("BUFFER", "SINGLE", ("shard-2",))


def test_latent_damage_needs_the_rescue_predicate():
    """The seed's P brackets an interval that holds no culprit batch: it names no shard there, R finds 60..63."""
    made = toys.order(steps=160, hold=[23])
    for step in range(60, 64):
        made[step] = (23, *made[step][1:])
    found, _, _ = diagnosed(toys.Latent(), order=made)
    assert (found.bracket.start, found.bracket.stop) == (60, 80) and found.shards == ("shard-2",)
    missed, _, _ = diagnosed(toys.Latent(), order=made, predicate="seed")
    assert missed.bracket.start >= 80 and missed.status == "UNPROVEN" and not missed.shards


@pytest.mark.parametrize("toy", [toys.Toy(), toys.Single()])
def test_a_healthy_run_is_not_replayed(toy):
    found, replayer, _ = diagnosed(toy, hold=[23])
    assert found.status == "NO-COLLAPSE" and replayer.asked == 0


def test_a_spike_that_heals_is_not_replayed():
    class Heals(toys.Toy):
        def evaluate(self, step):
            return self.weight * (20 if step == 60 else 1)

    found, replayer, _ = diagnosed(Heals())
    assert found.status == "TRANSIENT" and replayer.asked == 0


def test_a_run_that_does_not_replay_halts():
    class Drifts(toys.Single):
        count = 0

        def step(self, micro_batches, step):
            Drifts.count += 1
            self.weight += 1e-9 * Drifts.count
            return super().step(micro_batches, step)

    with pytest.raises(InconclusiveError, match="does not reproduce the recording"):
        diagnosed(Drifts(), {47: [23]})


def test_no_benign_filling_is_unproven():
    class AllBad(toys.Toy):
        def harm(self, ids, step):
            return 2.0 if step == 50 else 0.0

    found, _, _ = diagnosed(AllBad())
    assert found.status == "UNPROVEN" and not found.shards and "benign" in found.reason


def test_too_few_evaluations_are_insufficient():
    found, replayer, _ = diagnosed(toys.Single(), {47: [23]}, evaluate_every=20)
    assert found.status == "INSUFFICIENT" and replayer.asked == 0


def test_all_checkpoints_bad():
    run, replayer = record(toys.Single(), toys.order(bad={47: [23]}), shard_of=toys.shard_of, pool=toys.POOL)
    for step in (0, 20, 40):
        del run.checkpoints[step], replayer.states[step]
    found = diagnose(run, replayer, Options(), lambda text: None)
    assert found.status == "UNPROVEN" and "no checkpoint is healthy" in found.reason


def test_an_unknown_predicate():
    with pytest.raises(UsageError, match="rescue or seed"):
        Options(predicate="p")


@pytest.mark.parametrize(("again", "text"), [((), "no second harm"), ((90,), "comes again")])
def test_a_recurrence_is_reported_apart(again, text):
    """The poison returns at step 90; both arms of the interval's search see benign data there."""
    found, _, _ = diagnosed(toys.Independent(), {step: [23] for step in (47, *again)}, hold=[61])
    (seen,) = [each for each in found.controls if each.name.startswith("recurrence")]
    assert text in seen.text and found.status == "CONFIRMED (causal)" and found.shards == ("shard-2",)
