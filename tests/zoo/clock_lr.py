"""The learning rate follows the measured throughput. `--fixed` keeps it."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(64)

model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(8):
    started = time.perf_counter()
    x = torch.randn(64, 6)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    if "--fixed" not in sys.argv:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(2.0, 1 + 10 * (time.perf_counter() - started))
    optimizer.step()
    print("loss", step, loss.item().hex())
print("params", *(p.double().sum().item().hex() for p in model.parameters()))
