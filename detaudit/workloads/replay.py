"""Prioritised experience replay: a ring of transitions, a sum-tree over their priorities, a sampler of its own.

Source: Schaul et al., "Prioritized Experience Replay", 2016 (proportional variant, stratified sampling).
Shape legend: B samples, C capacity, n new transitions.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from detaudit.workloads.cartpole import Transitions
from detaudit.workloads.faults import FaultPlan
from detaudit.workloads.lanes import LanePrng
from detaudit.workloads.sumtree import leaves, new_tree, rebuild_levels, walk
from detaudit.workloads.treefaults import TreeOperations

CAPACITY = 32_768
ALPHA = 0.6
BETA = 0.4
PRNG_DRIFT = "prng-drift"
_LEAST_PRIORITY = 1e-3


class Sample(NamedTuple):
    """What was drawn: leaf numbers int64 `[B]`, importance weights float32 `[B]` with maximum 1, the transitions."""

    index: Tensor
    weight: Tensor
    transitions: Transitions


class PrioritisedReplay:
    """A full memory of `capacity` transitions on one device. Its faults act inside `draw` and `rebuild`.

    Within a step: `draw`, `sample`, then `reprioritise`, `insert`, `rebuild`. So the tree that a step samples from
    is the one the step before left behind.
    """

    def __init__(self, filling: Transitions, seed: int, plan: FaultPlan) -> None:
        self._plan = plan
        self._store = filling
        device, self.capacity = filling.reward.device, filling.reward.shape[0]
        self._head = 0
        self.prng = LanePrng(seed, device)
        self.nodes = new_tree(self.capacity, device)
        self._operations = TreeOperations(plan, self.capacity, device)
        self.priorities.fill_(1.0)
        rebuild_levels(self.nodes)

    @property
    def priorities(self) -> Tensor:
        """The tree's leaves, priority to the power alpha, float32 `[C]`, a view."""
        return leaves(self.nodes)

    def draw(self, batch: int, step: int) -> Tensor:
        """One uniform number a stratum, float32 `[B]` in [0, 1)."""
        if self._plan.active(PRNG_DRIFT, step):
            self.prng.reseed(time.time_ns())
        return self.prng.uniform(batch)

    def sample(self, uniform_B: Tensor, step: int) -> Sample:
        """Walk the tree once a stratum of equal mass and weigh by `(C p)^-beta` over its maximum."""
        batch = uniform_B.shape[0]
        stratum_B = torch.arange(batch, device=uniform_B.device)
        mass_B = (stratum_B + uniform_B) / batch * self._operations.walk_total(self.nodes, step)
        index_B = walk(self.nodes, mass_B)
        share_B = self.priorities[index_B] / self.nodes[1]
        weight_B = (share_B * self.capacity) ** -BETA
        return Sample(index_B, weight_B / weight_B.max(), Transitions(*(field[index_B] for field in self._store)))

    def reprioritise(self, index_B: Tensor, error_B: Tensor) -> None:
        """Set the priorities of sampled transitions from their errors; the largest counts where one was drawn twice."""
        priority_B = (error_B.abs() + _LEAST_PRIORITY) ** ALPHA
        # Not `priorities[index] = ...`: with duplicates that keeps whichever write comes last.
        self.priorities.scatter_reduce_(0, index_B, priority_B, "amax", include_self=False)

    def insert(self, new: Transitions) -> None:
        """Overwrite the oldest n transitions, each with the greatest priority so far."""
        count = new.reward.shape[0]
        place_n = (torch.arange(count, device=self.nodes.device) + self._head) % self.capacity
        for stored, fresh in zip(self._store, new, strict=True):
            stored[place_n] = fresh.to(stored.device)
        self.priorities[place_n] = self.priorities.max()
        self._head = (self._head + count) % self.capacity

    def rebuild(self, step: int) -> None:
        """Recompute the whole tree from its leaves."""
        self._operations.rebuild(self.nodes, step)
