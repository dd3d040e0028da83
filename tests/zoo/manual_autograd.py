"""A module updated by hand from torch.autograd.grad: neither an optimizer nor a call of backward()."""

import torch
from torch import nn

torch.manual_seed(16)

net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
for step in range(8):
    x = torch.randn(32, 4)
    loss = (net(x).squeeze(1) - x.norm(dim=1)).pow(2).mean()
    grads = torch.autograd.grad(loss, list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(net.parameters(), grads, strict=True):
            p.sub_(0.05 * g)
    print("loss", step, loss.item().hex())
