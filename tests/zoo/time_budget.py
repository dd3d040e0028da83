"""Trains for a third of a second: the shorter run is a prefix of the longer one. `--fixed` counts steps."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(69)

model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
started, step = 0.0, 0
while step < 10 if "--fixed" in sys.argv else step < 3 or time.perf_counter() - started < 0.33:
    if step == 2:
        started = time.perf_counter()  # the first steps load what torch loads late
    x = torch.randn(8, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
print("loss", step, loss.item().hex())
