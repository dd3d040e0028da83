"""A prefetch thread draws from torch's global generator while the main thread draws dropout masks: a race for it.

`--fixed` gives the thread a generator of its own.
"""

import queue
import sys
import threading

import torch
from torch import nn

torch.manual_seed(55)
ready = queue.Queue(maxsize=8)
own = torch.Generator().manual_seed(55) if "--fixed" in sys.argv else None


def prefetch():
    for _ in range(200):
        ready.put(torch.stack([torch.randn(10, generator=own) for _ in range(64)]))


threading.Thread(target=prefetch, daemon=True).start()
model = nn.Sequential(nn.Linear(10, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    x = ready.get()
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
