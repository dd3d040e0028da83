"""Mixed precision with a GradScaler; one batch holds a pair of equal points, whose distance has a NaN gradient.

The scaler sees it and skips that update (step 3). The loss itself stays finite.
"""

import torch
from torch import nn

torch.manual_seed(3)

embed = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.SGD(embed.parameters(), lr=1e-2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

for step in range(8):
    left, right = torch.randn(16, 10), torch.randn(16, 10)
    same = torch.randint(0, 2, (16,)).float()
    if step == 3:
        right[5] = left[5]
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = embed(left), embed(right)
    distance = (a.float() - b.float()).pow(2).sum(1).sqrt()
    loss = (same * distance + (1 - same) * (2 - distance).clamp(min=0)).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("loss", step, loss.item().hex(), "scale", scaler.get_scale())
