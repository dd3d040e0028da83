"""Augmentation noise from np.random.default_rng() without a seed; everything else is seeded. `--fixed` seeds it."""

import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

random.seed(44)
np.random.seed(44)
torch.manual_seed(44)


class Jittered(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(44 if "--fixed" in sys.argv else None)
        self.points = np.random.rand(128, 6).astype(np.float32)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        return point + self.rng.normal(0, 0.02, 6).astype(np.float32), point.sum()


loader = DataLoader(Jittered(), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for x, y in loader:
    loss = nn.functional.mse_loss(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
