"""The network and its losses, and the lanes of play that feed them."""

import pytest
import torch

from detaudit.workloads.agent import DISCOUNT, ActorCritic, actor_critic_loss, bootstrap_target
from detaudit.workloads.cartpole import CartPoleLanes, Transitions, extend
from detaudit.workloads.per_trainer import random_play


@pytest.fixture
def batch():
    lanes = CartPoleLanes(32, 16, seed=0)
    return random_play(lanes, 64, torch.Generator().manual_seed(0))


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = ActorCritic()
    torch.nn.init.normal_(net.encoder.tiles)
    return net


def test_the_racing_gather_looks_up_the_same_tiles(net, batch):
    clean = net(batch.history, batch.length)
    net.encoder.racing = True
    torch.testing.assert_close(net(batch.history, batch.length), clean)


def test_what_lies_before_an_episode_is_not_seen(net, batch):
    position = torch.arange(16)
    before = (position < 16 - batch.length.unsqueeze(1)).unsqueeze(-1)
    noisy = torch.where(before, torch.randn_like(batch.history), batch.history)
    assert before.any()
    torch.testing.assert_close(net(noisy, batch.length), net(batch.history, batch.length))


def test_a_fallen_pole_has_no_future(net, batch):
    ended = batch._replace(terminal=torch.ones_like(batch.terminal))
    assert torch.equal(bootstrap_target(net, ended), ended.reward)
    going = batch._replace(terminal=torch.zeros_like(batch.terminal))
    following = net(*extend(batch.history, batch.length, batch.next_observation)).value
    torch.testing.assert_close(bootstrap_target(net, going), going.reward + DISCOUNT * following.detach())


def test_the_value_gradient_needs_no_encoder(net, batch):
    """The declared v_grad must stay equal in the step in which the encoder's backward races."""
    outlook = net(batch.history, batch.length)
    loss, error = actor_critic_loss(outlook, batch.reward, batch, torch.ones(64))
    (v_grad,) = torch.autograd.grad(loss, outlook.value)
    ratio = outlook.logits.softmax(-1).gather(1, batch.action.unsqueeze(1)).squeeze(1) / batch.chance
    torch.testing.assert_close(v_grad, -ratio.clamp(max=1).detach() * error.clamp(-1, 1) / 64)


def test_lanes_keep_the_window_of_the_episode():
    lanes = CartPoleLanes(4, 3, seed=0)
    action, chance = torch.ones(4, dtype=torch.int64), torch.ones(4)
    assert lanes.length_L.tolist() == [1] * 4
    made = [lanes.step(action, chance) for _ in range(4)]
    assert [part.length.tolist() for part in made] == [[1] * 4, [2] * 4, [3] * 4, [3] * 4]
    assert torch.equal(made[1].history[:, -1], made[0].next_observation)
    assert torch.equal(made[3].history[:, 0], made[0].next_observation)


def test_a_reset_is_no_transition():
    lanes = CartPoleLanes(8, 4, seed=0)
    action, chance = torch.ones(8, dtype=torch.int64), torch.ones(8)  # always pushing right fells the pole soon
    fallen = 0
    for _ in range(40):
        resetting = lanes.resetting_L.clone()
        made = lanes.step(action, chance)
        assert made.reward.shape[0] == int((~resetting).sum())
        assert (lanes.length_L[resetting] == 1).all()
        assert (made.reward == 1).all()
        fallen += int(made.terminal.sum())
    assert fallen >= 8


def test_random_play_is_as_long_as_asked_and_the_same_each_time():
    runs = [random_play(CartPoleLanes(32, 16, 1), 500, torch.Generator().manual_seed(2)) for _ in range(2)]
    assert isinstance(runs[0], Transitions)
    assert all(torch.equal(*fields) for fields in zip(*runs, strict=True))
    assert runs[0].reward.shape == (500,)
