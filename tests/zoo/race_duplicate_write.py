"""`memory[slot] = value` with duplicate slots: which of the duplicates wins is up to the threads.

`--fixed` writes each slot once.
"""

import sys

import torch
from torch import nn

torch.manual_seed(42)


class EpisodicMemory(nn.Module):
    def __init__(self, slots=512, width=8):
        super().__init__()
        self.register_buffer("memory", torch.zeros(slots, width))
        self.read = nn.Linear(width, 1)

    def write(self, slot, value):
        if "--fixed" in sys.argv:
            slot, order = slot.unique(return_inverse=True)
            last = torch.zeros_like(slot).scatter_reduce(0, order, torch.arange(len(order)), "amax")
            value = value[last]
        self.memory[slot] = value

    def forward(self, slot):
        return self.read(self.memory.index_select(0, slot)).squeeze(1)


model = EpisodicMemory()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(10):
    value = torch.randn(40_000, 8)
    slot = torch.randint(0, 512, (40_000,))
    model.write(slot, value)
    query = torch.randint(0, 512, (256,))
    loss = (model(query) - query / 512).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex(), model.memory.double().sum().item().hex())
