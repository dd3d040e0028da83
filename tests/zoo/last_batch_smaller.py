"""50 samples in batches of 16: the last batch of each epoch has 2, so leaf shapes change within a run."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(32)

points = torch.rand(50, 2) * 2 - 1
inside = (points.norm(dim=1) < 0.8).float()
loader = DataLoader(TensorDataset(points, inside), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.02)

for epoch in range(3):
    for xy, label in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(net(xy).squeeze(1), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("loss", epoch, len(xy), loss.item().hex())
