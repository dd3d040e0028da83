"""Bucketed batches whose size comes from Python's unseeded generator: shapes differ. `--fixed` seeds it."""

import random
import sys

import torch
from torch import nn

torch.manual_seed(67)
if "--fixed" in sys.argv:
    random.seed(67)

data = torch.randn(3200, 6)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
position = 0
for step in range(8):
    size = random.randint(8, 400)
    x = data[position : position + size]
    position += size
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, size, loss.item().hex())
