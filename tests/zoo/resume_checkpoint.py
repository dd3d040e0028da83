"""Resumes from checkpoint.pt in the working directory if there is one: the second run starts where the first ended.

`--fixed` starts afresh.
"""

import sys
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(53)

checkpoint = Path("checkpoint.pt")
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
if checkpoint.exists() and "--fixed" not in sys.argv:
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    print("resumed")

for step in range(8):
    x = torch.randn(32, 6)
    loss = (model(x).squeeze(1) - x[:, 0].relu()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
