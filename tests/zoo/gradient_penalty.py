"""Double backward: a gradient penalty by autograd.grad(create_graph=True) inside the loss."""

import torch
from torch import nn

torch.manual_seed(35)

critic = nn.Sequential(nn.Linear(3, 32), nn.Softplus(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
for step in range(8):
    real, fake = torch.randn(32, 3) + 1, torch.randn(32, 3)
    between = torch.lerp(real, fake, torch.rand(32, 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
