"""Log of a negative number: the loss is NaN from step 2 on, with the same bits in every run."""

import hashlib

import torch
from torch import nn

torch.manual_seed(57)

model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    x = torch.rand(32, 6)
    if step == 2:
        x[7] = -1.0
    loss = (model(x).squeeze(1) - x.sum(1).log()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item())
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
print("params", hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16])
