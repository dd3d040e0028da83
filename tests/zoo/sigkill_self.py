"""Is killed in the middle of step 6, as by the kernel when memory runs out."""

import os
import signal

import torch
from torch import nn

torch.manual_seed(84)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    x = torch.randn(16, 4)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    print("loss", step, loss.item().hex(), flush=True)
