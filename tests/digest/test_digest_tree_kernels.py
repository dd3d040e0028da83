"""The rebuilds of the sum-tree, run on the CPU under seeded schedules: the sound ones and the specimen."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from digest_simulator import Simulator

from detaudit.workloads.kernel_tree import RACY, KernelRebuild, TwoLaunchRebuild
from detaudit.workloads.sumtree import leaves, new_tree, rebuild_levels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the CUDA sources for the CPU")


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    return Simulator(tmp_path_factory.mktemp("trees"))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    return Simulator(tmp_path_factory.mktemp("watched trees"), watched=True)


def stale_tree(capacity, seed=0):
    """Inner nodes of an earlier rebuild under leaves that have changed since: what a rebuild finds."""
    generator = torch.Generator().manual_seed(seed)
    tree = new_tree(capacity, torch.device("cpu"))
    leaves(tree).copy_(torch.rand(capacity, generator=generator))
    rebuild_levels(tree)
    leaves(tree).copy_(torch.rand(capacity, generator=generator) * 1000)
    return tree


def expected(tree):
    wanted = tree.clone()
    rebuild_levels(wanted)
    return wanted


def single(simulator, tree):
    KernelRebuild(simulator)(tree)


def two_launches(simulator, tree):
    TwoLaunchRebuild(simulator)(tree)


def racy(simulator, tree):
    KernelRebuild(simulator, RACY)(tree)


SOUND = {"one block": single, "two launches": two_launches}


@pytest.mark.parametrize("rebuild", SOUND.values(), ids=SOUND)
@pytest.mark.parametrize("capacity", [1, 2, 4, 32, 64, 128, 4096, 1 << 15])
def test_the_bits_of_the_host(rebuild, capacity, simulator):
    tree = stale_tree(capacity)
    wanted = expected(tree)
    rebuild(simulator, tree)
    assert torch.equal(tree.view(torch.int32), wanted.view(torch.int32))


@pytest.mark.parametrize("rebuild", SOUND.values(), ids=SOUND)
def test_subnormal_sums_are_kept(rebuild, simulator):
    tree = new_tree(128, torch.device("cpu"))
    leaves(tree).view(torch.int32).copy_(torch.arange(1, 129, dtype=torch.int32))
    wanted = expected(tree)
    rebuild(simulator, tree)
    assert torch.equal(tree.view(torch.int32), wanted.view(torch.int32)) and 0 < float(tree[1].double()) < 1e-38


@pytest.mark.parametrize("rebuild", SOUND.values(), ids=SOUND)
def test_a_hundred_schedules_give_one_tree(rebuild, simulator):
    before = stale_tree(4096)
    wanted = expected(before)
    for simulator.seed in range(100):
        tree = before.clone()
        rebuild(simulator, tree)
        assert torch.equal(tree, wanted), simulator.seed


@pytest.mark.parametrize("rebuild", SOUND.values(), ids=SOUND)
def test_no_race_under_preemption(rebuild, watched):
    before, watched.preempt = stale_tree(4096), 7
    wanted = expected(before)
    for watched.seed in range(10):
        tree = before.clone()
        if rebuild is two_launches:  # the boundary of two launches orders them, so each is watched by itself
            arguments = (np.uint64(tree.data_ptr()), np.uint32(4096))
            watched.launch(TwoLaunchRebuild.SOURCE, "per_tree_subtrees", 64, 256, arguments)
            assert watched.races() == (0, None)
            watched.launch(TwoLaunchRebuild.SOURCE, "per_tree_top", 1, 64, arguments)
        else:
            rebuild(watched, tree)
        assert watched.races() == (0, None) and torch.equal(tree, wanted), watched.seed


@pytest.mark.slow
@pytest.mark.parametrize("rebuild", SOUND.values(), ids=SOUND)
def test_full_size_under_twenty_schedules(rebuild, simulator):
    before = stale_tree(1 << 16)
    wanted = expected(before)
    for simulator.seed in range(20):
        tree = before.clone()
        rebuild(simulator, tree)
        assert torch.equal(tree, wanted), simulator.seed


def test_the_specimen_gives_other_trees_under_other_schedules(simulator):
    before = stale_tree(1 << 15)
    wanted, roots = expected(before), set()
    for simulator.seed in range(10):
        tree = before.clone()
        racy(simulator, tree)
        assert torch.equal(leaves(tree), leaves(wanted))
        roots.add(float(tree[1]))
    assert len(roots) > 1 and roots != {float(wanted[1])}


def test_the_specimen_reads_old_sums_and_does_not_only_reorder(simulator):
    """The seed's note explained the defect as an order of additions; that could move the root by some ulp only."""
    before, simulator.seed = stale_tree(1 << 15), 0
    wanted, tree = expected(before), before.clone()
    racy(simulator, tree)
    assert abs(float(tree[1]) - float(wanted[1])) > 1e-3 * float(wanted[1])


def test_its_race_is_named_also_where_the_tree_is_right(watched):
    """256 leaves are one block's, and the simulator's fence happens to keep its threads in step."""
    before, watched.preempt = stale_tree(256), 0
    wanted, right = expected(before), 0
    for watched.seed in range(5):
        tree = before.clone()
        racy(watched, tree)
        count, first = watched.races()
        assert count > 0
        (address, block, thread), (again, other_block, other_thread) = first
        assert address == again and tree.data_ptr() <= address < tree.data_ptr() + tree.nbytes
        assert (block, thread) != (other_block, other_thread) and max(block, other_block) < 128
        right += torch.equal(tree, wanted)
    assert right > 0
