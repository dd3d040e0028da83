"""A thread refills the batch buffer while the training loop already reads it: nobody waits (pytorch#130785 on a host).

`--fixed` joins the thread first.
"""

import sys
import threading

import torch
from torch import nn

torch.manual_seed(51)

pool = torch.randn(64, 1000, 16)
buffer = torch.zeros(1000, 16)


def refill(step):
    """Copies in pieces, as a decoder would."""
    for row in range(1000):
        buffer[row] = pool[step, row]


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(10):
    filler = threading.Thread(target=refill, args=(step,))
    filler.start()
    optimizer.zero_grad()
    if "--fixed" in sys.argv:
        filler.join()
    x = buffer.clone()
    loss = (model(x).squeeze(1) - x[:, 0].abs()).pow(2).mean()
    loss.backward()
    optimizer.step()
    filler.join()
    print("loss", step, loss.item().hex())
