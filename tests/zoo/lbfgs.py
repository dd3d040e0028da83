"""LBFGS: one step calls the closure, hence forward and backward, several times."""

import torch
from torch import nn

torch.manual_seed(5)

net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
x = torch.linspace(-3, 3, 100).unsqueeze(1)
y = torch.sin(x) + 0.05 * torch.randn(100, 1)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss


for step in range(6):
    loss = optimizer.step(closure)
    print("loss", step, loss.item().hex())
