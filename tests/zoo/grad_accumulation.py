"""Four backward calls to one update, with gradient clipping before it."""

import torch
from torch import nn

torch.manual_seed(2)

model = nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Dropout(0.1), nn.Linear(40, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulate = 4

optimizer.zero_grad()
for micro in range(24):
    x = torch.randn(8, 20)
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean() / accumulate
    loss.backward()
    print("loss", micro, loss.item().hex())
    if (micro + 1) % accumulate == 0:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print("norm", norm.item().hex())
