"""Warm-up, then cosine decay, over two parameter groups."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

torch.manual_seed(18)

backbone = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
head = nn.Linear(32, 4)
optimizer = torch.optim.AdamW(
    [{"params": backbone.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 1e-2, "weight_decay": 0.0}]
)
scheduler = SequentialLR(
    optimizer, [LinearLR(optimizer, 0.1, total_iters=3), CosineAnnealingLR(optimizer, T_max=9)], milestones=[3]
)
for step in range(12):
    x, y = torch.randn(32, 10), torch.randint(0, 4, (32,))
    loss = nn.functional.cross_entropy(head(backbone(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print("loss", step, loss.item().hex(), "lr", *(f"{lr:.6f}" for lr in scheduler.get_last_lr()))
