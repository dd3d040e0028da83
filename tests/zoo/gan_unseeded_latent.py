"""A GAN whose latent noise is unseeded from the generator's fourth turn on (step 7). `--fixed` takes it from torch."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(71)
rng = np.random.default_rng()

G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3)


def latent(turn):
    if turn < 3 or "--fixed" in sys.argv:
        return torch.randn(32, 4)
    return torch.from_numpy(rng.standard_normal((32, 4), dtype=np.float32))


for turn in range(6):
    opt_d.zero_grad()
    d_loss = F.softplus(-D(torch.rand(32, 2))).mean() + F.softplus(D(G(torch.randn(32, 4)).detach())).mean()
    d_loss.backward()
    opt_d.step()
    opt_g.zero_grad()
    g_loss = F.softplus(-D(G(latent(turn)))).mean()
    g_loss.backward()
    opt_g.step()
    print("loss", turn, d_loss.item().hex(), g_loss.item().hex())
