"""The tree's rebuild by CUDA kernels: `per_tree_rebuild.cu`, or the seed's defect `per_tree_rebuild_racy.cu`.

Both kernels take the address of the nodes (float32 `[2 C]`, see `sumtree`) and C as a 32-bit integer, and recompute
the inner nodes in place on torch's current stream.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from detaudit.core.errors import DetauditError
from detaudit.digest.kernels import kernel_path
from detaudit.digest.launcher import CupyLauncher, Launcher

REBUILD, RACY = "per_tree_rebuild", "per_tree_rebuild_racy"
SHAPES = {REBUILD: (1, 1024), RACY: (128, 256)}
"""Grid and block: one block, so that `__syncthreads()` stands between levels; the racy has 128 and no such thing."""


class KernelRebuild:
    """Recomputes all inner nodes by one launch of the named kernel."""

    def __init__(self, launcher: Launcher, kernel: str = REBUILD) -> None:
        self._launcher, self._kernel = launcher, kernel

    def __call__(self, nodes: Tensor) -> None:
        grid, block = SHAPES[self._kernel]
        assert nodes.dtype is torch.float32 and nodes.is_contiguous(), (nodes.dtype, nodes.stride())
        arguments = (np.uint64(nodes.data_ptr()), np.uint32(nodes.shape[0] // 2))
        self._launcher.launch(self._kernel, self._kernel, grid, block, arguments)


class TwoLaunchRebuild:
    """The same bits by 64 blocks, each with a subtree, and a second launch for the levels above."""

    SOURCE = "per_tree_rebuild_two_launch"

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def __call__(self, nodes: Tensor) -> None:
        assert nodes.dtype is torch.float32 and nodes.is_contiguous(), (nodes.dtype, nodes.stride())
        arguments = (np.uint64(nodes.data_ptr()), np.uint32(nodes.shape[0] // 2))
        self._launcher.launch(self.SOURCE, "per_tree_subtrees", 64, 256, arguments)
        self._launcher.launch(self.SOURCE, "per_tree_top", 1, 64, arguments)


def tree_launcher(device: torch.device) -> Launcher | None:
    """What starts the tree's kernels on a device: None on the CPU, and where kernels cannot run, which stderr says."""
    if device.type != "cuda":
        return None
    try:
        for kernel in SHAPES:
            kernel_path(kernel)
        return CupyLauncher(device)
    except DetauditError as error:
        print(f"warning: the tree on {device} is rebuilt by torch operations: {error}", file=sys.stderr)
        return None
