"""The features are stored as a quantised tensor and dequantised inside the model."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message=".*[Qq]uantiz.*")
torch.manual_seed(86)


class Dequantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, features):
        return self.net(features.dequantize()).squeeze(1)


model = Dequantised()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
features = torch.quantize_per_tensor(torch.randn(64, 6), scale=0.05, zero_point=0, dtype=torch.qint8)
for step in range(6):
    loss = (model(features) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
