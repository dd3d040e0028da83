"""Two copies of the weights kept by hand: an exponential average each step, a plain average at the end (SWA)."""

import copy
import hashlib

import torch
from torch import nn

torch.manual_seed(17)

model = nn.Sequential(nn.Linear(7, 28), nn.BatchNorm1d(28), nn.ReLU(), nn.Linear(28, 1))
ema = copy.deepcopy(model).requires_grad_(False)
swa = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(10):
    x = torch.randn(40, 7)
    loss = (model(x).squeeze(1) - x[:, 0] * x[:, 1]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for average, p in zip(ema.parameters(), model.parameters(), strict=True):
            average.mul_(0.9).add_(p, alpha=0.1)
        if step >= 5:
            for average, p in zip(swa.parameters(), model.parameters(), strict=True):
                average.add_((p - average) / (step - 4))
    print("loss", step, loss.item().hex())

swa.train()
with torch.no_grad():
    for _ in range(4):
        swa(torch.randn(40, 7))
for name, net in (("ema", ema), ("swa", swa)):
    state = torch.cat([t.double().flatten() for t in net.state_dict().values()])
    print("params", name, hashlib.sha256(state.numpy().tobytes()).hexdigest()[:16])
