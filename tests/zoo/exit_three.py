"""Trains to the end, then reports a missed target by sys.exit(3)."""

import sys

import torch
from torch import nn

torch.manual_seed(83)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    x = torch.randn(16, 4)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
if loss.item() > 1e-3:
    sys.exit(3)
