"""Runs a model over a loader under no_grad; there is no training step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(81)
x = torch.randn(100, 8)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=25)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()

correct, total = 0, 0.0
with torch.no_grad():
    for inputs, labels in loader:
        logits = model(inputs)
        correct += (logits.argmax(1) == labels).sum().item()
        total += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
print(f"accuracy {correct / len(x):.2f}")
print("loss", total.hex())
