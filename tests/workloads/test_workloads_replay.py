"""The replay memory: sampling, weights, priorities, the ring."""

import pytest
import torch

from detaudit.workloads.cartpole import Transitions
from detaudit.workloads.faults import NO_FAULTS, parse_faults
from detaudit.workloads.per_rl import FAULTS
from detaudit.workloads.replay import ALPHA, BETA, CAPACITY, PrioritisedReplay

SIZE = 64


def transitions(count, reward=0.0):
    return Transitions(
        torch.zeros(count, 3, 4),
        torch.ones(count, dtype=torch.int64),
        torch.zeros(count, dtype=torch.int64),
        torch.full((count,), 0.5),
        torch.full((count,), reward),
        torch.zeros(count, dtype=torch.bool),
        torch.zeros(count, 4),
    )


@pytest.fixture
def replay():
    return PrioritisedReplay(transitions(SIZE), 0, NO_FAULTS)


def test_the_seed_s_size():
    assert PrioritisedReplay(transitions(CAPACITY), 0, NO_FAULTS).nodes.shape == (65_536,)


def test_equal_priorities_are_sampled_evenly_and_weigh_one(replay):
    sample = replay.sample(torch.full((SIZE,), 0.5), 0)
    assert sample.index.tolist() == list(range(SIZE))
    assert sample.weight.tolist() == [1.0] * SIZE


def test_weights_follow_the_paper(replay):
    replay.reprioritise(torch.tensor([3]), torch.tensor([8.0]))
    replay.rebuild(0)
    sample = replay.sample(torch.full((SIZE,), 0.5), 0)
    share = replay.priorities[sample.index] / replay.priorities.sum()
    expected = (SIZE * share) ** -BETA
    torch.testing.assert_close(sample.weight, expected / expected.max())
    assert (sample.index == 3).sum() > 1


def test_a_transition_drawn_twice_keeps_its_largest_error(replay):
    replay.reprioritise(torch.tensor([5, 5, 5]), torch.tensor([0.1, -2.0, 0.3]))
    assert replay.priorities[5].item() == pytest.approx(2.001**ALPHA)
    assert replay.priorities[6].item() == 1.0


def test_the_ring_overwrites_the_oldest_with_the_greatest_priority(replay):
    replay.reprioritise(torch.tensor([40]), torch.tensor([9.0]))
    replay.insert(transitions(SIZE - 2, reward=1.0))
    replay.insert(transitions(4, reward=2.0))
    rewards = replay._store.reward
    assert rewards.tolist() == [2.0, 2.0] + [1.0] * (SIZE - 4) + [2.0, 2.0]
    assert replay.priorities.min() == replay.priorities.max() == pytest.approx(9.001**ALPHA)


def test_drift_re_seeds_from_the_clock_from_its_step_on():
    plan = parse_faults("prng-drift", FAULTS)
    pair = [PrioritisedReplay(transitions(SIZE), 0, plan) for _ in range(2)]
    for step in range(2):
        assert torch.equal(pair[0].draw(8, step), pair[1].draw(8, step))
    assert not torch.equal(pair[0].draw(8, 2), pair[1].draw(8, 2))


def test_a_walk_flip_leaves_the_weights_total_alone():
    """The weights of equal indices are equal however wrong the walk's total is."""
    faulty = PrioritisedReplay(transitions(SIZE), 0, parse_faults("tree-walk-flip", FAULTS))
    clean = PrioritisedReplay(transitions(SIZE), 0, NO_FAULTS)
    faulty._operations.walk_total = lambda nodes, step: nodes[1:2] * 1.001
    uniform = torch.full((SIZE,), 0.5)
    assert torch.equal(faulty.sample(uniform, 0).weight, clean.sample(uniform, 0).weight)
