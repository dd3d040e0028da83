"""A sum-tree refilled by one accumulating scatter over (leaf, ancestor) pairs in shuffled order; it drives sampling.

`--fixed` adds level by level.
"""

import sys

import torch
from torch import nn

torch.manual_seed(43)
LEAVES, LEVELS = 16_384, 14

ancestors = torch.stack([(torch.arange(LEAVES) + LEAVES) >> level for level in range(1, LEVELS + 1)])
shuffle = torch.randperm(ancestors.numel())
flat_ancestors = ancestors.flatten()[shuffle]
flat_leaves = torch.arange(LEAVES).repeat(LEVELS)[shuffle]


def build(priority):
    tree = torch.zeros(2 * LEAVES)
    tree[LEAVES:] = priority
    if "--fixed" in sys.argv:
        for level in reversed(range(LEVELS)):
            low = 1 << level
            tree[low : 2 * low] = tree[2 * low : 4 * low].view(-1, 2).sum(1)
        return tree
    return tree.index_put_((flat_ancestors,), priority[flat_leaves], accumulate=True)


def sample(tree, count):
    mass, node = torch.rand(count) * tree[1], torch.ones(count, dtype=torch.long)
    for _ in range(LEVELS):
        left = tree[2 * node]
        right = mass >= left
        mass = torch.where(right, mass - left, mass)
        node = 2 * node + right
    return node - LEAVES


states = torch.randn(LEAVES, 6)
priority = torch.rand(LEAVES)
q = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
for step in range(10):
    tree = build(priority)
    index = sample(tree, 256)
    error = q(states[index]).squeeze(1) - states[index].sum(1)
    weight = priority[index] / tree[1] * LEAVES
    loss = (weight * error.pow(2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    priority[index] = error.detach().abs() + 1e-3
    print("loss", step, loss.item().hex())
