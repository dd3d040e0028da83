"""Two networks and two optimizers that take turns."""

import hashlib

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

G = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.999))


def real_batch(n):
    angle = torch.rand(n) * 6.2831853
    return torch.stack([angle.cos(), angle.sin()], dim=1)


ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for step in range(6):
    fake = G(torch.randn(64, 8))

    opt_d.zero_grad()
    d_loss = F.binary_cross_entropy_with_logits(D(real_batch(64)), ones)
    d_loss = d_loss + F.binary_cross_entropy_with_logits(D(fake.detach()), zeros)
    d_loss.backward()
    opt_d.step()

    opt_g.zero_grad()
    g_loss = F.binary_cross_entropy_with_logits(D(fake), ones)
    g_loss.backward()
    opt_g.step()
    print("loss", step, d_loss.item().hex(), g_loss.item().hex())

for name, net in (("G", G), ("D", D)):
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    print("params", name, hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16])
