"""A Langevin optimizer of the user's own with unseeded noise; gradients of step 0 are equal. `--fixed` seeds it."""

import sys

import numpy as np
import torch
from torch import nn

torch.manual_seed(63)


class SGLD(torch.optim.Optimizer):
    def __init__(self, params, lr, temperature=1e-4, seed=None):
        super().__init__(params, {"lr": lr, "temperature": temperature})
        self.rng = np.random.default_rng(seed)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            scale = (2 * group["lr"] * group["temperature"]) ** 0.5
            for p in group["params"]:
                noise = torch.from_numpy(self.rng.standard_normal(p.shape, dtype=np.float32))
                p.add_(p.grad, alpha=-group["lr"]).add_(noise, alpha=scale)


model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
sampler = SGLD(model.parameters(), lr=0.05, seed=63 if "--fixed" in sys.argv else None)
for step in range(8):
    x = torch.randn(32, 4)
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    sampler.zero_grad()
    loss.backward()
    sampler.step()
    print("loss", step, loss.item().hex())
