"""A plain multi-layer perceptron on made-up data: the smallest clean program."""

import hashlib

import torch
from torch import nn

torch.manual_seed(0)

net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
loss_fn = nn.CrossEntropyLoss()

inputs = torch.randn(320, 16)
targets = torch.randint(0, 4, (320,))

for step in range(10):
    x, y = inputs[step * 32 : (step + 1) * 32], targets[step * 32 : (step + 1) * 32]
    opt.zero_grad()
    loss = loss_fn(net(x), y)
    loss.backward()
    opt.step()
    print("loss", step, loss.item().hex())

weights = torch.cat([p.detach().flatten() for p in net.parameters()])
print("params", hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16])
