"""Which rebuild a tree gets on which device, and how its kernels are started; their bits are tested elsewhere."""

from __future__ import annotations

import pytest
import torch

from detaudit.core.errors import UnreadableError
from detaudit.digest.launcher import KernelsUnavailableError
from detaudit.workloads import kernel_tree, treefaults
from detaudit.workloads.faults import NO_FAULTS, FaultKind, parse_faults
from detaudit.workloads.kernel_tree import RACY, REBUILD, KernelRebuild, tree_launcher
from detaudit.workloads.sumtree import leaves, new_tree, rebuild_levels
from detaudit.workloads.treefaults import REBUILD_RACE, RacingRebuild, TreeOperations

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class Noted:
    """A launcher that notes its launches and rebuilds by torch operations."""

    def __init__(self, nodes):
        self.nodes, self.launches = nodes, []

    def launch(self, source, kernel, grid, block, arguments):
        self.launches.append((source, kernel, grid, block, [int(argument) for argument in arguments]))
        rebuild_levels(self.nodes)


@pytest.fixture
def nodes():
    tree = new_tree(64, CPU)
    leaves(tree).copy_(torch.rand(64, generator=torch.Generator().manual_seed(0)))
    return tree


@pytest.fixture
def launcher(nodes, monkeypatch):
    noted = Noted(nodes)
    monkeypatch.setattr(treefaults, "tree_launcher", lambda device: noted)
    return noted


def test_sound_rebuild_is_one_block(nodes, launcher):
    TreeOperations(NO_FAULTS, 64, CPU).rebuild(nodes, 0)
    assert launcher.launches == [(REBUILD, REBUILD, 1, 1024, [nodes.data_ptr(), 64])]


def test_the_fault_is_the_racy_kernel_only_while_it_acts(nodes, launcher):
    plan = parse_faults(f"late:2:{REBUILD_RACE}", {REBUILD_RACE: FaultKind("races", races=True)})
    operations = TreeOperations(plan, 64, CPU)
    for step in range(3):
        operations.rebuild(nodes, step)
    assert [launch[1:4] for launch in launcher.launches] == [(REBUILD, 1, 1024)] * 2 + [(RACY, 128, 256)]


def test_the_cpu_has_torch_operations(nodes):
    assert tree_launcher(CPU) is None
    plan = parse_faults(REBUILD_RACE, {REBUILD_RACE: FaultKind("races", races=True)})
    assert isinstance(TreeOperations(plan, 64, CPU)._rebuilds[REBUILD_RACE], RacingRebuild)
    assert TreeOperations(NO_FAULTS, 64, CPU)._sound is rebuild_levels


@pytest.mark.parametrize("error", [KernelsUnavailableError("no CuPy"), UnreadableError("kernel missing")], ids=str)
def test_without_kernels_a_device_has_torch_operations_and_says_so(error, monkeypatch, capsys):
    def refuse(*_):
        raise error

    monkeypatch.setattr(kernel_tree, "kernel_path", lambda name: name)
    monkeypatch.setattr(kernel_tree, "CupyLauncher", refuse)
    assert tree_launcher(CUDA) is None
    assert capsys.readouterr().err == f"warning: the tree on cuda:0 is rebuilt by torch operations: {error}\n"


def test_a_view_that_is_not_contiguous_is_a_programming_error(nodes):
    with pytest.raises(AssertionError):
        KernelRebuild(Noted(nodes))(nodes[::2])
