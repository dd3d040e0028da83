"""Blocks are skipped by Python's unseeded generator: a module that ran in one run did not in the other.

`--fixed` seeds it.
"""

import random
import sys

import torch
from torch import nn

torch.manual_seed(68)
if "--fixed" in sys.argv:
    random.seed(68)


class Deep(nn.Module):
    def __init__(self, width=16, depth=8, survive=0.5):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth))
        self.head = nn.Linear(width, 1)
        self.survive = survive

    def forward(self, x):
        for block in self.blocks:
            if not self.training or random.random() < self.survive:
                x = x + block(x)
        return self.head(x)


model = Deep()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(8):
    x = torch.randn(32, 16)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
