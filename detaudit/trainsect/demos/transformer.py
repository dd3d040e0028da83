"""A language model that a concentration of bad batches ruins, whichever they are: 28 batches with permuted labels, from
shards 1, 3, 4 and 6, inside steps [162, 192). The learning rate falls from step 160 to 2e-5 at 200, so what is lost
there is not learned again; spread over an epoch the same sequences do no harm. Also a Trainsect target (`build`).

Plain SGD recovers or explodes here; Adam with the decay does neither (measured).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from detaudit.trainsect.demos.mode import evaluating

NAME = "transformer"
SHARDS, SHARD, BATCH, STEPS, EVERY, EVALUATE_EVERY = 8, 400, 8, 440, 40, 10
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 32, 16, 32, 4, 2
BAD_SHARDS, BAD_BATCHES, FIRST_BAD, LAST_BAD = (1, 3, 4, 6), 28, 162, 192
LEARNING_RATE, LAST_RATE, DECAY_FROM, DECAY_TO = 1e-2, 2e-5, 160, 200
POOL = SHARDS * SHARD
SHARD_MAP: Mapping[str, Any] = {"blocks": SHARD}
SEED = 0


def chain() -> torch.Tensor:
    """Transition matrix of the corpus [VOCABULARY, VOCABULARY], a few likely successors each."""
    logits = 3.0 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(77))
    return logits.softmax(-1)


def corpus(seed: int, count: int) -> torch.Tensor:
    """Sequences int64 [count, LENGTH + 1] of a Markov chain."""
    generator, matrix = torch.Generator().manual_seed(seed), chain()
    tokens = torch.randint(VOCABULARY, (count, 1), generator=generator)
    for _ in range(LENGTH):
        following = torch.multinomial(matrix[tokens[:, -1]], 1, generator=generator)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens


def bad_ids() -> list[int]:
    """The first sequences of each bad shard, a batch of each in turn."""
    found: list[int] = []
    for k in range(BAD_BATCHES):
        shard, turn = BAD_SHARDS[k % len(BAD_SHARDS)], k // len(BAD_SHARDS)
        found += range(shard * SHARD + turn * BATCH, shard * SHARD + (turn + 1) * BATCH)
    return found


class Block(nn.Module):
    """One pre-LN layer, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, length, _ = x.shape
        q, k, v = (
            part.view(size, length, HEADS, -1).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, dim=-1)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(size, length, WIDTH))
        return x + self.feed(self.second(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.blocks(self.token(tokens) + self.place)))
        return out


def rate(t: int) -> float:
    """Learning rate of step t, relative to the first."""
    share = min(1.0, max(0.0, (t - DECAY_FROM) / (DECAY_TO - DECAY_FROM)))
    return 1.0 + share * (LAST_RATE / LEARNING_RATE - 1.0)


class Trainer:
    """The target: model, optimizer, scheduler, one update a step."""

    def __init__(self, seed: int = SEED) -> None:
        torch.manual_seed(seed)
        tokens = corpus(1000 + seed, POOL)
        self.x, self.y = tokens[:, :-1], tokens[:, 1:].clone()
        shift = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(55))
        rows = torch.tensor(bad_ids())
        self.y[rows] = shift[self.y[rows]]
        held = corpus(2000 + seed, 128)
        self.held_x, self.held_y = held[:, :-1], held[:, 1:]
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def fetch(self, ids: Sequence[int], rng: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.tensor(ids)
        return self.x[rows], self.y[rows]

    def step(self, micro_batches: Sequence[tuple[torch.Tensor, torch.Tensor]], t: int) -> float:
        self.model.train()
        self.optimizer.zero_grad()
        ((x, y),) = micro_batches
        loss = nn.functional.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.detach())

    @torch.no_grad()
    def evaluate(self, t: int) -> float:
        with evaluating(self.model):
            return float(nn.functional.cross_entropy(self.model(self.held_x).flatten(0, 1), self.held_y.flatten()))

    @torch.no_grad()
    def sample_losses(self, ids: Sequence[int]) -> list[float]:
        x, y = self.fetch(ids, None)
        with evaluating(self.model):
            each = nn.functional.cross_entropy(self.model(x).transpose(1, 2), y, reduction="none")
        return [float(v) for v in each.mean(-1)]


def build() -> Trainer:
    return Trainer()


def order(seed: int = SEED) -> list[tuple[int, ...]]:
    """The ids of each step. The bad batches stand at 28 of the 30 steps of [162, 192) and nowhere else before."""
    generator = torch.Generator().manual_seed(3000 + seed)
    bad = bad_ids()
    held = set(bad)
    window = range(FIRST_BAD, LAST_BAD)
    left_out = {FIRST_BAD + 9, FIRST_BAD + 19}
    queue = [tuple(bad[k * BATCH : (k + 1) * BATCH]) for k in range(BAD_BATCHES)]
    places = dict(zip([t for t in window if t not in left_out], queue, strict=True))
    clean = [i for i in torch.randperm(POOL, generator=generator).tolist() if i not in held]
    while len(clean) < STEPS * BATCH:
        clean += torch.randperm(POOL, generator=generator).tolist()
    rest = iter(clean)
    return [places.get(t) or tuple(next(rest) for _ in range(BATCH)) for t in range(STEPS)]
