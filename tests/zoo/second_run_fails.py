"""Refuses to overwrite its output folder: the first run succeeds, the second ends with FileExistsError."""

from pathlib import Path

import torch
from torch import nn

torch.manual_seed(87)
output = Path("run-output")
output.mkdir()

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    x = torch.randn(16, 4)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
torch.save(model.state_dict(), output / "model.pt")
