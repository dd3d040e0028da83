"""Frees and restores the storage of its weights between steps, as FSDP does: no one may pin or keep a pointer to it."""

import torch
from torch import nn

torch.manual_seed(39)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    x = torch.randn(32, 64)
    loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
    for p in model.parameters():
        storage, saved = p.untyped_storage(), p.detach().clone()
        size = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size)
        with torch.no_grad():
            p.copy_(saved)
