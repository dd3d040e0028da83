"""Dies of an unequal batch at step 50: exit status 1 after 50 whole steps."""

import torch
from torch import nn

torch.manual_seed(82)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(100):
    x = torch.randn(16, 5 if step == 50 else 4)
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print("loss", step, loss.item().hex())
