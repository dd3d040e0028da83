"""A small training program with every kind of state, once as a loop that records itself and once as a target."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
from torch import nn

SAMPLES, FEATURES, CLASSES, BATCH = 96, 6, 3, 8


def data():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    return x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(12, CLASSES)
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.head(self.body(x)) + 1e-3 * torch.sin(self.calls)


class Average:
    """An exponential moving average that knows nothing of torch.nn."""

    def __init__(self, model):
        self.model, self.shadow = model, {n: p.detach().clone() for n, p in model.named_parameters()}

    def update(self):
        for name, parameter in self.model.named_parameters():
            self.shadow[name].mul_(0.9).add_(parameter.detach(), alpha=0.1)

    def state_dict(self):
        return {"shadow": self.shadow, "decay": np.float64(0.9)}

    def load_state_dict(self, saved):
        self.shadow = saved["shadow"]


class Trainer:
    def __init__(self, micro=1):
        torch.manual_seed(1)
        self.micro = micro
        self.x, self.y = data()
        self.model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda e: np.float64(0.99) ** e)
        self.ema = Average(self.model)
        self.loop = {"seen": 0}
        self.noise = np.random.default_rng(3)

    def state(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "ema": self.ema,
            "loop": self.loop,
            "noise": self.noise,
        }

    def fetch(self, ids, rng):
        index = torch.tensor(ids)
        return self.x[index], self.y[index]

    def step(self, micro_batches, t):
        self.optimizer.zero_grad()
        total = 0.0
        for x, y in micro_batches:
            logits = self.model(x)
            logits = logits + 0.01 * torch.from_numpy(self.noise.standard_normal(logits.shape)).float()
            logits = logits * (1 + 0.01 * random.random()) + 0.001 * float(np.random.rand())
            loss = nn.functional.cross_entropy(logits, y) / len(micro_batches)
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update()
        self.loop["seen"] += sum(len(y) for _, y in micro_batches)
        return total

    def evaluate(self, t):
        net = copy.deepcopy(self.model).eval()
        with torch.no_grad():
            return nn.functional.cross_entropy(net(self.x[:32]), self.y[:32]).item()


def build():
    return Trainer()
