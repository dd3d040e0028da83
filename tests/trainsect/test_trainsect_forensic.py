"""Diagnoses from checkpoints alone: probable at best, and silent where rebuilt orders show nothing."""

import pytest

from detaudit.core.errors import InconclusiveError
from detaudit.trainsect.diagnosis import Options, diagnose
from tests.trainsect.trainsect_rig import record
from tests.trainsect.trainsect_toys import POOL, Concentration, Single, order, shard_of


def stripped(toy, bad, **changes):
    run, replayer = record(toy, order(bad=bad), shard_of=shard_of, pool=POOL)
    bare = run.stripped()
    for name, value in changes.items():
        setattr(bare, name, value)
    replayer.run = bare
    return diagnose(bare, replayer, Options(), lambda text: None)


def test_a_single_cause_is_probable_never_confirmed():
    found = stripped(Single(), {47: [23]})
    assert (found.status, found.shards) == ("FORENSIC (probable)", ("shard-2",))
    assert (found.bracket.start, found.bracket.stop) == (40, 60)
    assert found.forensic["reproduced"] == 8 and found.forensic["interval"][0] == pytest.approx(0.631, abs=1e-3)
    assert not found.inside


def test_a_concentration_is_unproven_and_names_no_shard():
    bad = {42 + k: [(19, 39, 49, 69)[k % 4]] for k in range(16)}

    class Window(Concentration):
        def harm(self, ids, step):
            recent = [(s, i) for s, i in self.trace if s > step - 20] + [(step, i) for i in ids if i in self.BAD]
            grew = len(self.trace) < 12 <= len(recent)
            self.trace = tuple(recent)
            return 2.0 if grew else 0.0

    found = stripped(Window(), bad)
    assert (found.status, found.shards, found.bracket) == ("UNPROVEN", (), None)
    assert "0 of 8" in found.reason and "would settle it" in found.reason


def test_a_ranking_that_disagrees_names_nobody():
    class Misleading(Single):
        def sample_loss(self, sample):
            return 9.0 if sample == 71 else 1.0

    found = stripped(Misleading(), {47: [23]})
    assert found.status == "UNPROVEN" and not found.shards and "does not agree on shard-7" in found.reason


def test_without_losses_of_samples_nothing_is_named():
    class Silent(Single):
        sample_loss = None

    found = stripped(type("Silent", (Single,), {"sample_loss": lambda self, i: 1.0})(), {47: [23]})
    assert not found.shards and found.status == "UNPROVEN"


def test_without_a_pool_nothing_is_rebuilt():
    found = stripped(Single(), {47: [23]}, pool=None)
    assert found.status == "UNPROVEN" and "pool" in found.reason


def test_without_a_batch_size_the_cure_is_named():
    with pytest.raises(InconclusiveError, match="batch_size"):
        stripped(Single(), {47: [23]}, settings={})
