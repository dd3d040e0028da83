"""Rollouts by a pool of threads, taken in order of completion (`as_completed`). `--fixed` takes them as submitted."""

import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import nn

torch.manual_seed(52)


def rollout(seed):
    """An episode of a random walk, its length drawn from its own generator."""
    generator = torch.Generator().manual_seed(seed)
    position, visited = torch.zeros(4), []
    for _ in range(40):
        position = position + torch.randn(4, generator=generator)
        visited.append(position)
    return torch.stack(visited), position.norm()


critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
with ThreadPoolExecutor(max_workers=4) as pool:
    for step in range(10):
        futures = [pool.submit(rollout, 100 * step + i) for i in range(16)]
        episodes = [f.result() for f in (futures if "--fixed" in sys.argv else as_completed(futures))]
        states = torch.cat([visited for visited, _ in episodes])
        returns = torch.cat([final.expand(len(visited)) for visited, final in episodes])
        loss = nn.functional.mse_loss(critic(states).squeeze(1), returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", step, loss.item().hex())
