"""Class numbers from enumerate(set(labels)): the order of a set of strings changes with Python's hash salt (pygcn#41).

`--fixed` sorts the set.
"""

import sys

import torch
from torch import nn

torch.manual_seed(47)

names = ["theory", "neural_networks", "genetic_algorithms", "rule_learning", "case_based", "reinforcement", "methods"]
labels = [names[i] for i in torch.randint(0, 7, (210,)).tolist()]
classes = sorted(set(labels)) if "--fixed" in sys.argv else set(labels)
number = {name: i for i, name in enumerate(classes)}
y = torch.tensor([number[label] for label in labels])
x = torch.randn(210, 12)

model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 7))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(7):
    rows = slice(step * 30, (step + 1) * 30)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
