"""A running statistic kept in a buffer is fed with the time; nothing else reads it. `--fixed` counts steps instead."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(65)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last_seen", torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        self.last_seen.fill_(self.last_seen.item() + 1 if "--fixed" in sys.argv else time.time())
        return x


model = nn.Sequential(nn.Linear(5, 20), Counter(), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(6):
    x = torch.randn(32, 5)
    loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex(), model[1].last_seen.item().hex())
