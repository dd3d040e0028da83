"""A sum-tree over priorities: `nodes[1]` is the root, the children of `i` are `2i` and `2i + 1`, leaves come last.

Shape legend: B samples, C leaves (a power of two). `nodes` is float32 `[2 C]`; `nodes[0]` is unused and stays 0.
Source: Schaul et al., "Prioritized Experience Replay", 2016, appendix B.2.1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def new_tree(capacity: int, device: torch.device) -> Tensor:
    """An all-zero tree of `2 * capacity` float32 nodes. `capacity` must be a power of two."""
    assert capacity >= 1 and capacity & (capacity - 1) == 0, capacity
    return torch.zeros(2 * capacity, dtype=torch.float32, device=device)


def leaves(nodes: Tensor) -> Tensor:
    """The leaf level, a view `[C]`."""
    return nodes[nodes.shape[0] // 2 :]


def rebuild_levels(nodes: Tensor) -> None:
    """Recompute every inner node from the leaves, level by level: each node is one addition of its two children.

    The shape of the tree alone fixes the order of additions, so every properly synchronised rebuild has these bits.
    """
    width = nodes.shape[0] // 4
    while width >= 1:
        children = nodes[2 * width : 4 * width]
        torch.add(children[0::2], children[1::2], out=nodes[width : 2 * width])
        width //= 2


def walk(nodes: Tensor, mass_B: Tensor) -> Tensor:
    """The leaf whose interval of the running sum holds each mass, int64 `[B]` in 0..C-1; float32 masses.

    A mass beyond the total ends at the last leaf that has priority on its path.
    """
    node_B = torch.ones_like(mass_B, dtype=torch.int64)
    for _ in range((nodes.shape[0] // 2).bit_length() - 1):
        left_B = 2 * node_B
        left_sum_B = nodes[left_B]
        right_B = mass_B >= left_sum_B
        mass_B = torch.where(right_B, mass_B - left_sum_B, mass_B)
        node_B = left_B + right_B
    return node_B - nodes.shape[0] // 2
