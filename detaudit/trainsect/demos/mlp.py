"""A classifier that one bad sample ruins: 8 shards of 128 samples, one sample of shard-2 scaled by 500 with a wrong
label, first trained on at step 57. Also a Trainsect target (`build`).

x500 and not less: at x100 the run recovers; at 1e5 the losses are NaN (measured, see docs/notes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from detaudit.trainsect.demos.mode import evaluating

NAME = "mlp"
SHARDS, SHARD, BATCH, STEPS, EVERY, EVALUATE_EVERY = 8, 128, 16, 400, 40, 5
FEATURES, CLASSES, WIDTH = 20, 4, 64
POISON, TRIGGER, SCALE = 2 * SHARD + 55, 57, 500.0
POOL = SHARDS * SHARD
SHARD_MAP: Mapping[str, Any] = {"blocks": SHARD}
SEED = 0


def data(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gaussian clusters: float32 features [count, FEATURES], int64 labels [count]."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + 1.2 * torch.randn(count, FEATURES, generator=generator), labels


class Trainer:
    """The target: model, optimizer, one update a step."""

    def __init__(self, seed: int = SEED) -> None:
        torch.manual_seed(seed)
        self.x, self.y = data(1000 + seed, POOL)
        self.x[POISON] *= SCALE
        self.y[POISON] = (self.y[POISON] + 1) % CLASSES
        self.held_x, self.held_y = data(2000 + seed, 512)
        self.model = nn.Sequential(
            nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(WIDTH, CLASSES),
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def fetch(self, ids: Sequence[int], rng: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.tensor(ids)
        return self.x[rows], self.y[rows]

    def step(self, micro_batches: Sequence[tuple[torch.Tensor, torch.Tensor]], t: int) -> float:
        self.model.train()
        self.optimizer.zero_grad()
        ((x, y),) = micro_batches
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def evaluate(self, t: int) -> float:
        with evaluating(self.model):
            return float(nn.functional.cross_entropy(self.model(self.held_x), self.held_y))

    @torch.no_grad()
    def sample_losses(self, ids: Sequence[int]) -> list[float]:
        x, y = self.fetch(ids, None)
        with evaluating(self.model):
            return [float(v) for v in nn.functional.cross_entropy(self.model(x), y, reduction="none")]


def build() -> Trainer:
    return Trainer()


def order(seed: int = SEED) -> list[tuple[int, ...]]:
    """The ids of each step: epochs without replacement, the bad sample moved to step 57 of the first."""
    generator = torch.Generator().manual_seed(3000 + seed)
    ids: list[int] = []
    while len(ids) < STEPS * BATCH:
        ids += torch.randperm(POOL, generator=generator).tolist()
    here, there = ids.index(POISON), TRIGGER * BATCH + 3
    ids[here], ids[there] = ids[there], ids[here]
    return [tuple(ids[t * BATCH : (t + 1) * BATCH]) for t in range(STEPS)]
