"""random.shuffle without random.seed decides the order of the data; torch is seeded. `--fixed` seeds it."""

import random
import sys

import torch
from torch import nn

torch.manual_seed(45)
if "--fixed" in sys.argv:
    random.seed(45)

samples = [(torch.randn(5), float(i % 2)) for i in range(160)]
model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

random.shuffle(samples)
for start in range(0, len(samples), 16):
    chunk = samples[start : start + 16]
    x = torch.stack([features for features, _ in chunk])
    y = torch.tensor([label for _, label in chunk])
    loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
