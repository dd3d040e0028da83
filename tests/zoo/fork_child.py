"""Forks in the middle of training: the child evaluates a snapshot and leaves by os._exit, the parent trains on."""

import os

import torch
from torch import nn

torch.manual_seed(29)
torch.set_num_threads(1)  # a forked child must not touch the parent's OpenMP pool

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(8):
    x = torch.randn(16, 8)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex(), flush=True)
    if step % 4 == 3:
        pid = os.fork()
        if pid == 0:
            with torch.no_grad():
                error = (model(torch.ones(4, 8)).squeeze(1) - 8).abs().mean()
            print("snapshot", step, error.item().hex(), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
