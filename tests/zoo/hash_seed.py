"""The seed is derived by hash() from the experiment's name, and hash() of a string is salted. `--fixed` uses crc32."""

import sys
import zlib

import torch
from torch import nn

experiment = "baseline-v2"
torch.manual_seed(zlib.crc32(experiment.encode()) if "--fixed" in sys.argv else hash(experiment) % 2**32)

model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x, y = torch.randn(32, 10), torch.randint(0, 2, (32,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
