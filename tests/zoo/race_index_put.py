"""A histogram feature built by `index_put_(accumulate=True)`: the sum over duplicates has no fixed order on CPU.

`--fixed` asks for deterministic algorithms.
"""

import sys

import torch
from torch import nn

torch.manual_seed(41)
if "--fixed" in sys.argv:
    torch.use_deterministic_algorithms(True)


def splat(positions, mass, cells=128):
    """Spread the mass of particles over the cells of a grid."""
    grid = torch.zeros(cells)
    cell = (positions * cells).long().clamp(0, cells - 1)
    return grid.index_put_((cell,), mass, accumulate=True)


density_net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(density_net.parameters(), lr=1e-3)
for step in range(10):
    positions, mass = torch.rand(200_000), torch.rand(200_000)
    grid = splat(positions, mass) / 1000
    loss = (density_net(grid) - positions.var()).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())
print("params", *(p.double().sum().item().hex() for p in density_net.parameters()))
