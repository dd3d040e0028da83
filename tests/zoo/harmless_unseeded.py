"""Consumes Python's and numpy's unseeded generators, for a run name and a log colour; training is untouched by them."""

import random
import string

import numpy as np
import torch
from torch import nn

torch.manual_seed(46)

run_name = "run-" + "".join(random.choices(string.ascii_lowercase, k=8))
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(8):
    x = torch.randn(32, 4)
    loss = (model(x).squeeze(1) - x.abs().max(1).values).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    colour = np.random.choice(["red", "green", "blue"])
    if random.random() < 0.5:
        colour = f"bold {colour}"
    print("loss", step, loss.item().hex())
print(f"{run_name}: done in {colour}")
