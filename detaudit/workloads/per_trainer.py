"""One training step of the prioritised-replay agent, in the order its leaves are declared.

Shape legend: B batch, L lanes of play.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from detaudit.core.errors import UsageError
from detaudit.workloads.agent import (
    GATHERED_PER_SAMPLE,
    HORIZON,
    ActorCritic,
    Outlook,
    actor_critic_loss,
    bootstrap_target,
)
from detaudit.workloads.cartpole import CartPoleLanes, Transitions
from detaudit.workloads.launch import Audit, Options
from detaudit.workloads.races import RACING_ELEMENTS
from detaudit.workloads.replay import CAPACITY, PrioritisedReplay, Sample

ENCODER_RACE = "encoder-race"
LANES = 32
TARGET_EVERY = 10
LEARNING_RATE = 1e-3
ADAM_EPS = 1.5e-4  # as in Rainbow (Hessel et al., 2018)


class PerTrainer:
    """Network, optimizer, replay memory (already full) and lanes of play of one run."""

    def __init__(self, options: Options) -> None:
        check_race_size(options)
        self._options = options
        self._chance = torch.Generator().manual_seed(options.seed)
        self.net = ActorCritic().to(options.device)
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=LEARNING_RATE, eps=ADAM_EPS)
        self.lanes = CartPoleLanes(LANES, HORIZON, options.seed)
        filling = random_play(self.lanes, CAPACITY, self._chance)
        self.replay = PrioritisedReplay(filling.to(options.device), options.seed, options.faults)

    def step(self, step: int, audit: Audit) -> Tensor:
        """One training step; returns its 0-dim loss.

        The update comes last: a gradient that differs reaches `encoder_output` only in the next step. The tree is
        rebuilt after it was sampled from: a tree that differs reaches the indices only in the next step.
        """
        self.net.encoder.racing = self._options.faults.active(ENCODER_RACE, step)
        if step % TARGET_EVERY == 0:
            self.target.load_state_dict(self.net.state_dict())
        sample = self._sample(step, audit)
        loss, error_B = self._learn(sample, audit)
        fresh = self._play(audit)
        self._remember(sample, error_B, fresh, step, audit)
        self.optimizer.step()
        return loss.detach()

    def look(self, lanes: CartPoleLanes) -> Tensor:
        """Policy logits `[L, 2]` for the lanes' present histories, on the CPU, without gradient."""
        with torch.no_grad():
            device = self._options.device
            return self.net(lanes.history_LHF.to(device), lanes.length_L.to(device)).logits.cpu()

    def _sample(self, step: int, audit: Audit) -> Sample:
        uniform_B = self.replay.draw(self._options.batch, step)
        audit.leaf("checksums.sample_prng", self.replay.prng.state)
        audit.leaf("checksums.walked_tree", self.replay.nodes)
        sample = self.replay.sample(uniform_B, step)
        audit.leaf("checksums.replay_sample_indices", sample.index)
        audit.leaf("checksums.is_weights", sample.weight)
        audit.leaf("checksums.actions", sample.transitions.action)
        audit.leaf("checksums.rewards", sample.transitions.reward)
        return sample

    def _learn(self, sample: Sample, audit: Audit) -> tuple[Tensor, Tensor]:
        outlook: Outlook = self.net(sample.transitions.history, sample.transitions.length)
        outlook.value.retain_grad()
        audit.leaf("checksums.encoder_output", outlook.encoding.detach())
        audit.leaf("checksums.scan_state", outlook.scan_state.detach())
        audit.leaf("checksums.v_value", outlook.value.detach())
        audit.leaf("checksums.policy_logits", outlook.logits.detach())
        target_B = bootstrap_target(self.target, sample.transitions)
        audit.leaf("checksums.td_target", target_B)
        loss, error_B = actor_critic_loss(outlook, target_B, sample.transitions, sample.weight)
        audit.leaf("checksums.td_error", error_B)
        audit.leaf("checksums.loss", loss.detach())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        audit.leaf("checksums.v_grad", outlook.value.grad)
        return loss, error_B

    def _play(self, audit: Audit) -> Transitions:
        chance_LA = self.look(self.lanes).softmax(-1)
        action_L = (torch.rand(LANES, generator=self._chance) >= chance_LA[:, 0]).long()
        fresh = self.lanes.step(action_L, chance_LA[torch.arange(LANES), action_L])
        audit.leaf("checksums.played_actions", fresh.action)
        audit.leaf("checksums.played_observations", fresh.next_observation)
        return fresh

    def _remember(self, sample: Sample, error_B: Tensor, fresh: Transitions, step: int, audit: Audit) -> None:
        self.replay.reprioritise(sample.index, error_B)
        self.replay.insert(fresh)
        audit.leaf("checksums.priorities", self.replay.priorities)
        self.replay.rebuild(step)
        audit.leaf("checksums.priority_tree", self.replay.nodes)
        audit.leaf("checksums.tree_root", self.replay.nodes[1])


def check_race_size(options: Options) -> None:
    """Raise UsageError where the batch is too small for `encoder-race` to race."""
    gathered = options.batch * GATHERED_PER_SAMPLE
    if ENCODER_RACE in options.faults and gathered < RACING_ELEMENTS:
        least = -(-RACING_ELEMENTS // GATHERED_PER_SAMPLE)
        raise UsageError(
            f"fault {ENCODER_RACE!r} with --batch {options.batch} gathers {gathered:,} elements, and fewer than "
            f"{RACING_ELEMENTS:,} do not race reliably; use --batch {least} or more"
        )


def random_play(lanes: CartPoleLanes, count: int, chance: torch.Generator) -> Transitions:
    """`count` transitions of uniformly random play, actions from `chance`, on the CPU."""
    even_L = torch.full((LANES,), 0.5)
    made: list[Transitions] = []
    total = 0
    while total < count:
        made.append(lanes.step(torch.randint(2, (LANES,), generator=chance), even_L))
        total += made[-1].reward.shape[0]
    return Transitions(*(torch.cat(field)[:count] for field in zip(*made, strict=True)))
