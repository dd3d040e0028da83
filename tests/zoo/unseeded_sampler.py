"""The sampler has a generator seeded from the system. `--fixed` seeds it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

torch.manual_seed(60)

generator = torch.Generator()
if "--fixed" in sys.argv:
    generator.manual_seed(60)
else:
    generator.seed()
x = torch.randn(160, 6)
dataset = TensorDataset(x, x.sum(1))
loader = DataLoader(dataset, batch_size=20, sampler=RandomSampler(dataset, generator=generator))
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for inputs, target in loader:
    loss = nn.functional.mse_loss(model(inputs).squeeze(1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
