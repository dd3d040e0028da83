"""Shards are written under random names by tempfile and read back in the order of the names. `--fixed` numbers them."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(70)

with tempfile.TemporaryDirectory() as cache:
    for number in range(12):
        shard = torch.randn(20, 8)
        if "--fixed" in sys.argv:
            torch.save(shard, Path(cache) / f"{number:03d}.pt")
        else:
            with tempfile.NamedTemporaryFile(dir=cache, suffix=".pt", delete=False) as file:
                torch.save(shard, file)
    shards = [torch.load(path, weights_only=True) for path in sorted(Path(cache).glob("*.pt"))]

model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, x in enumerate(shards):
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
