"""A set of objects without __hash__: iterated by address, which changes with every process. `--fixed` sorts by name."""

import sys

import torch
from torch import nn

torch.manual_seed(48)


class Sensor:
    def __init__(self, name):
        self.name = name
        self.readings = torch.randn(64)


sensors = {Sensor(f"s{i:02d}") for i in range(24)}
ordered = sorted(sensors, key=lambda s: s.name) if "--fixed" in sys.argv else sensors
features = torch.stack([sensor.readings for sensor in ordered], dim=1)
target = features.pow(2).sum(1, keepdim=True) / 24

model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(8):
    loss = nn.functional.mse_loss(model(features), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
