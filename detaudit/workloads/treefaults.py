"""How the tree of a run is rebuilt and totalled: right, or with one of the faults of the replay memory.

`TreeOperations` is the one place that chooses. On a CUDA device the rebuild and the racing rebuild are our kernels
where these can run (`kernel_tree`); the sound one has the same bits either way.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from detaudit.core.errors import UsageError
from detaudit.workloads.faults import FaultPlan
from detaudit.workloads.kernel_tree import RACY, KernelRebuild, tree_launcher
from detaudit.workloads.races import RACING_ELEMENTS, fixed_permutation, racing_accumulate
from detaudit.workloads.sumtree import leaves, rebuild_levels

STALE_READ = "tree-stale-read"
REBUILD_RACE = "tree-rebuild-race"
WALK_FLIP = "tree-walk-flip"
_BLOCK = 512


class StaleRebuild:
    """Two host threads rebuild level by level with no barrier between levels (the defect of the seed's kernel).

    As in the seed's grid-stride loop, blocks of a level go to the threads in turn, so a parent's children belong to
    both. A thread that runs ahead adds children that still hold the sums of the step before.
    """

    THREADS = 2

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.THREADS, thread_name_prefix="tree-rebuild")

    def __call__(self, nodes: Tensor) -> None:
        for done in [self._pool.submit(self._share, nodes, thread) for thread in range(self.THREADS)]:
            done.result()

    def _share(self, nodes: Tensor, thread: int) -> None:
        width = nodes.shape[0] // 4
        while width >= 1:
            block = max(min(_BLOCK, width // self.THREADS), 1)
            for start in range(width + thread * block, 2 * width, self.THREADS * block):
                children = nodes[2 * start : 2 * (start + block)]
                torch.add(children[0::2], children[1::2], out=nodes[start : start + block])
            width //= 2


class RacingRebuild:
    """Every leaf is added into all of its ancestors by one racing accumulate.

    The (leaf, ancestor) pairs come in a fixed random permutation: in level-major order the threads never meet
    (1 distinct tree in 60 rebuilds, against 60 in 60).
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        leaf_C = torch.arange(capacity, device=device)
        levels = range(1, capacity.bit_length())
        ancestor = torch.cat([(leaf_C + capacity) >> level for level in levels])
        order = fixed_permutation(ancestor.shape[0], device)
        self._ancestor = ancestor[order]
        self._leaf = leaf_C.repeat(len(levels))[order]

    def __call__(self, nodes: Tensor) -> None:
        nodes[: nodes.shape[0] // 2].zero_()
        racing_accumulate(nodes, self._ancestor, leaves(nodes)[self._leaf])


class RacingTotal:
    """The sum of all leaves, accumulated into one cell by racing threads in a fixed random order.

    Each leaf is added in as many equal parts as it takes to reach the size at which the race shows in most steps.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._parts = -(-RACING_ELEMENTS // capacity)
        self._leaf = fixed_permutation(capacity * self._parts, device) % capacity
        self._cell = torch.zeros_like(self._leaf)

    def __call__(self, nodes: Tensor) -> Tensor:
        total = nodes.new_zeros(1)
        racing_accumulate(total, self._cell, leaves(nodes)[self._leaf] / self._parts)
        return total


class TreeOperations:
    """Rebuild and total of the tree at a step, under a fault plan. `capacity` leaves, all tensors on `device`.

    Where two rebuild faults act at one step, the one named first does.
    """

    def __init__(self, plan: FaultPlan, capacity: int, device: torch.device) -> None:
        if STALE_READ in plan and device.type != "cpu":
            raise UsageError(f"fault {STALE_READ!r} races host threads and runs on --device cpu only, not {device}")
        self._plan = plan
        launcher = tree_launcher(device)
        self._sound = rebuild_levels if launcher is None else KernelRebuild(launcher)
        self._rebuilds = {
            name: make()
            for name, make in {
                STALE_READ: StaleRebuild,
                REBUILD_RACE: lambda: (
                    RacingRebuild(capacity, device) if launcher is None else KernelRebuild(launcher, RACY)
                ),
            }.items()
            if name in plan
        }
        self._racing_total = RacingTotal(capacity, device) if WALK_FLIP in plan else None

    def rebuild(self, nodes: Tensor, step: int) -> None:
        """Recompute all inner nodes in place."""
        fault = self._plan.first_active((STALE_READ, REBUILD_RACE), step)
        (self._rebuilds[fault] if fault else self._sound)(nodes)

    def walk_total(self, nodes: Tensor, step: int) -> Tensor:
        """The total that sampled masses are scaled by, float32 `[1]`. The importance weights never use it."""
        if self._racing_total is not None and self._plan.active(WALK_FLIP, step):
            return self._racing_total(nodes)
        return nodes[1:2]
