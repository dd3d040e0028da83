"""Re-seeds torch from the clock when the second epoch starts: equal until step 5. `--fixed` seeds by the epoch."""

import sys
import time

import torch
from torch import nn

model_seed = 61
torch.manual_seed(model_seed)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(80, 8)
for epoch in range(2):
    if epoch > 0:
        torch.manual_seed(model_seed + epoch if "--fixed" in sys.argv else time.time_ns() % 2**31)
    for chunk in x.split(16):
        loss = (model(chunk).squeeze(1) - chunk[:, 0]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", epoch, loss.item().hex())
