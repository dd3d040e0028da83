"""Training runs in a thread of its own while the main thread waits, as a notebook or a server would do it."""

import queue
import threading

import torch
from torch import nn

torch.manual_seed(12)
progress = queue.Queue()


def train():
    model = nn.Sequential(nn.Linear(9, 30), nn.ELU(), nn.Linear(30, 2))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for step in range(10):
        x = torch.randn(24, 9)
        y = (x[:, 0] > x[:, 1]).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.put((step, loss.item()))
    progress.put(None)


thread = threading.Thread(target=train, name="trainer")
thread.start()
while (item := progress.get()) is not None:
    print("loss", item[0], item[1].hex())
thread.join()
