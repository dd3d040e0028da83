"""Weights, gradients and optimizer state all in bfloat16."""

import torch
from torch import nn

torch.manual_seed(21)

model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(8):
    x = torch.randn(48, 32, dtype=torch.bfloat16)
    y = torch.randint(0, 8, (48,))
    loss = nn.functional.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
