"""One layer initialised from a generator of its own that nobody seeded (`seed()` draws from the system).

`--fixed` seeds that generator.
"""

import sys

import torch
from torch import nn

torch.manual_seed(50)


class RandomFourier(nn.Module):
    """Random features; the frequencies are trained too."""

    def __init__(self, inputs, features):
        super().__init__()
        generator = torch.Generator()
        if "--fixed" in sys.argv:
            generator.manual_seed(50)
        else:
            generator.seed()
        self.frequency = nn.Parameter(torch.randn(inputs, features, generator=generator))

    def forward(self, x):
        return torch.cat([(x @ self.frequency).sin(), (x @ self.frequency).cos()], dim=1)


body = nn.Linear(3, 8)
fourier = RandomFourier(8, 16)
model = nn.Sequential(body, fourier, nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    x = torch.rand(32, 3)
    loss = (model(x).squeeze(1) - x.prod(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
