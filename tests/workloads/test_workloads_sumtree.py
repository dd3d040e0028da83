"""The sum-tree against brute force, right and faulty rebuilds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.core.errors import UsageError
from detaudit.workloads.faults import parse_faults
from detaudit.workloads.per_rl import FAULTS
from detaudit.workloads.sumtree import leaves, new_tree, rebuild_levels, walk
from detaudit.workloads.treefaults import RacingRebuild, RacingTotal, StaleRebuild, TreeOperations

CPU = torch.device("cpu")
sizes = st.integers(0, 7).map(lambda exponent: 2**exponent)
whole = st.integers(1, 1000).map(float)  # small integers: float32 sums are exact, so brute force may add in any order


def filled(priorities):
    nodes = new_tree(len(priorities), CPU)
    leaves(nodes).copy_(torch.tensor(priorities))
    return nodes


priority_lists = sizes.flatmap(lambda size: st.lists(whole, min_size=size, max_size=size))


@settings(max_examples=60, deadline=None)
@given(priority_lists)
def test_every_node_is_the_sum_of_its_leaves(priorities):
    nodes = filled(priorities)
    rebuild_levels(nodes)
    size = len(priorities)
    for node in range(1, 2 * size):
        low = high = node
        while low < size:
            low, high = 2 * low, 2 * high + 1
        assert nodes[node].item() == sum(priorities[low - size : high - size + 1])
    assert nodes[0] == 0


@settings(max_examples=60, deadline=None)
@given(priority_lists, st.lists(st.floats(0, 1, exclude_max=True, width=32), min_size=1, max_size=20))
def test_the_walk_finds_the_leaf_by_running_sum(priorities, shares):
    nodes = filled(priorities)
    rebuild_levels(nodes)
    mass_B = torch.tensor(shares) * nodes[1]
    expected = torch.searchsorted(torch.tensor(priorities).cumsum(0), mass_B, right=True).clamp(max=len(priorities) - 1)
    assert walk(nodes, mass_B).tolist() == expected.tolist()


def test_the_walk_skips_leaves_without_priority():
    nodes = filled([0.0, 2.0, 0.0, 1.0])
    rebuild_levels(nodes)
    assert walk(nodes, torch.tensor([0.0, 1.9, 2.0, 2.9])).tolist() == [1, 1, 3, 3]


def test_a_mass_beyond_the_total_still_ends_at_a_leaf():
    nodes = filled([1.0, 1.0, 1.0, 1.0])
    rebuild_levels(nodes)
    assert walk(nodes, torch.tensor([4.0, 5.0, 100.0])).tolist() == [3, 3, 3]


def test_only_powers_of_two():
    with pytest.raises(AssertionError):
        new_tree(6, CPU)


@pytest.mark.parametrize("size", [2, 8, 4096])
def test_a_racing_rebuild_sums_the_same_leaves(size):
    nodes = filled([float(1 + i % 3) for i in range(size)])
    reference = nodes.clone()
    rebuild_levels(reference)
    RacingRebuild(size, CPU)(nodes)
    assert torch.equal(nodes, reference)


@pytest.mark.parametrize("size", [2, 8, 4096])
def test_the_threads_of_a_stale_rebuild_cover_every_node(size):
    """Run one after the other, level by level, the two shares are the right rebuild: only the barrier is missing."""
    nodes = filled([float(1 + i % 5) for i in range(size)])
    reference = nodes.clone()
    rebuild_levels(reference)
    stale = StaleRebuild()
    for _ in range(size.bit_length()):
        for thread in range(StaleRebuild.THREADS):
            stale._share(nodes, thread)
    assert torch.equal(nodes, reference)


def test_a_stale_rebuild_leaves_sums_of_the_tree_before():
    size = 4096
    nodes = filled([1.0] * size)
    rebuild_levels(nodes)
    leaves(nodes).fill_(2.0)
    StaleRebuild()._share(nodes, 0)
    assert size <= nodes[1].item() < 2 * size


def test_a_racing_total_is_the_total():
    nodes = filled([float(1 + i % 3) for i in range(4096)])
    rebuild_levels(nodes)
    assert RacingTotal(4096, CPU)(nodes).item() == nodes[1].item()


def test_operations_are_right_until_the_fault_begins():
    operations = TreeOperations(parse_faults("late:5:tree-rebuild-race,late:5:tree-walk-flip", FAULTS), 64, CPU)
    nodes = filled([0.1 * (i + 1) for i in range(64)])
    reference = nodes.clone()
    rebuild_levels(reference)
    operations.rebuild(nodes, 4)
    assert torch.equal(nodes, reference)
    assert operations.walk_total(nodes, 4).data_ptr() == nodes[1:].data_ptr()
    assert operations.walk_total(nodes, 5).data_ptr() != nodes[1:].data_ptr()


def test_stale_reads_are_refused_on_another_device():
    with pytest.raises(UsageError, match="--device cpu only"):
        TreeOperations(parse_faults("tree-stale-read", FAULTS), 64, torch.device("meta"))
