"""Equal up to the last update; afterwards the weights are perturbed by unseeded noise. `--fixed` seeds it."""

import sys

import numpy as np
import torch
from torch import nn

torch.manual_seed(66)

model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(6):
    x = torch.randn(32, 5)
    loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())

rng = np.random.default_rng(66 if "--fixed" in sys.argv else None)
with torch.no_grad():
    for p in model.parameters():
        p.add_(torch.from_numpy(rng.normal(0, 1e-3, p.shape).astype(np.float32)))
print("params", *(p.double().sum().item().hex() for p in model.parameters()))
