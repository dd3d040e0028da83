"""Autocast to bfloat16 on CPU; the weights stay float32."""

import torch
from torch import nn

torch.manual_seed(23)

net = nn.Sequential(nn.Conv1d(4, 16, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 5))
optim = torch.optim.AdamW(net.parameters(), lr=2e-3)
for step in range(8):
    x, y = torch.randn(16, 4, 40), torch.randint(0, 5, (16,))
    optim.zero_grad(set_to_none=True)
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
    loss.backward()
    optim.step()
    print("loss", step, loss.item().hex())
