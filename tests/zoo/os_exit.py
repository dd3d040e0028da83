"""Leaves by os._exit(0): no atexit handler runs, no file object is flushed for it."""

import os
import sys

import torch
from torch import nn

torch.manual_seed(30)

policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for step in range(8):
    observation = torch.randn(32, 4)
    actions = torch.distributions.Categorical(logits=policy(observation))
    action = actions.sample()
    reward = (action == (observation[:, 0] > 0)).float()
    loss = -(actions.log_prob(action) * (reward - reward.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex())

sys.stdout.flush()
os._exit(0)
