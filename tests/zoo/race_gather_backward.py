"""Neighbour features fetched by `h[index]`: its backward adds into few rows from two threads, in no fixed order.

`--fixed` uses index_select, whose backward is deterministic on CPU.
"""

import sys

import torch
from torch import nn

torch.manual_seed(40)


class GraphConv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(width, width)

    def forward(self, h, source, target):
        rows = torch.index_select(h, 0, source) if "--fixed" in sys.argv else h[source]
        summed = torch.zeros_like(h).index_add(0, target, rows)
        return h + torch.tanh(self.message(summed / 100))


class GNN(nn.Module):
    def __init__(self, nodes=64, width=16):
        super().__init__()
        self.features = nn.Parameter(torch.randn(nodes, width))
        self.conv1, self.conv2 = GraphConv(width), GraphConv(width)
        self.classify = nn.Linear(width, 3)

    def forward(self, source, target):
        return self.classify(self.conv2(self.conv1(self.features, source, target), source, target))


model = GNN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
source, target = torch.randint(0, 64, (2, 40_000))
labels = torch.arange(64) % 3
for step in range(10):
    loss = nn.functional.cross_entropy(model(source, target), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex(), model.features.grad.double().sum().item().hex())
print("params", model.features.double().sum().item().hex())
