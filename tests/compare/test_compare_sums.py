"""The bound on what another order of additions can make: no reordering is beyond it, a stale child soon is."""

from __future__ import annotations

import numpy as np
import pytest

from detaudit.compare.sums import heap_terms, reordered
from detaudit.compare.tensors import Buffer, compare_buffers
from detaudit.core.buffers import Nearness


def tree(leaves, order=None):
    """A float32 sum tree: by levels, or (`order`) each leaf added into its ancestors in that order."""
    size = len(leaves)
    nodes = np.zeros(2 * size, np.float32)
    nodes[size:] = leaves
    if order is None:
        for i in reversed(range(1, size)):
            nodes[i] = nodes[2 * i] + nodes[2 * i + 1]
        return nodes
    for leaf in order:
        node = (size + leaf) // 2
        while node:
            nodes[node] += nodes[size + leaf]
            node //= 2
    return nodes


def compared(a, b, **how):
    left, right = (Buffer(str(x.dtype), x.shape, x.tobytes()) for x in (a, b))
    return compare_buffers(left, right, **{"cancels": False, "sums": "heap", **how})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0, 12])
def test_a_reordered_rebuild_is_rounding(seed, spread):
    """The fault that races: the right numbers in another order, also where they differ by orders of magnitude."""
    chance = np.random.default_rng(seed)
    leaves = (chance.random(256) * 10.0 ** chance.uniform(0, spread, 256)).astype(np.float32)
    found = compared(tree(leaves), tree(leaves, chance.permutation(256)))
    assert found is not None and found.nearness is Nearness.ROUNDING


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("change", [1e-6, 1e-5, 1e-4, 3e-4])
def test_a_stale_child_that_hardly_changed_is_none(seed, change):
    """The fault of the stale read: the leaf moved by a few ulp, and its parent was added up before it."""
    chance = np.random.default_rng(seed)
    leaves = chance.random(256).astype(np.float32) + np.float32(1)
    right = leaves.copy()
    right[17] *= np.float32(1 + change)
    nodes, stale = tree(right), tree(leaves)
    stale[256:] = right
    found = compared(nodes, stale)
    assert found is not None and found.nearness is Nearness.BEYOND
    assert compared(nodes, stale, sums="").nearness is Nearness.ROUNDING  # what the values alone would say


def test_one_that_did_not_reach_the_bound_stays_rounding():
    """Honest about what the values cannot tell: the root of many leaves, off by an ulp."""
    nodes = tree(np.ones(256, np.float32))
    off = nodes.copy()
    off[1] = np.nextafter(off[1], np.float32(999))
    assert compared(nodes, off).nearness is Nearness.ROUNDING


@pytest.mark.parametrize(
    ("index", "nearness"), [(64, Nearness.BEYOND), (255, Nearness.BEYOND), (32, Nearness.ROUNDING)]
)
def test_a_sum_of_two_terms_has_one_order(index, nearness):
    nodes = tree(np.ones(128, np.float32))
    off = nodes.copy()
    off[index] = np.nextafter(off[index], np.float32(999))
    assert compared(nodes, off).nearness is nearness


def test_far_apart_stays_far():
    nodes = tree(np.ones(16, np.float32))
    off = nodes.copy()
    off[1] += 4
    assert compared(nodes, off).nearness is Nearness.FAR and compared(nodes, nodes) is None


@pytest.mark.parametrize("shape", [(24,), (4, 8)])
def test_what_is_no_such_tree_is_unclear(shape):
    nodes = np.ones(shape, np.float32)
    off = nodes.copy()
    off.reshape(-1)[1] = np.nextafter(np.float32(1), np.float32(2))
    assert compared(nodes, off).nearness is Nearness.UNCLEAR


def test_how_many_leaves_a_node_sums_up():
    assert heap_terms(np.arange(16), 16).tolist() == [1, 8, 4, 4, 2, 2, 2, 2, *[1] * 8]
    assert heap_terms(np.arange(3), 12) is None


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_no_number_is_no_rounding(value):
    assert not reordered(np.array([1.0]), np.array([value]), np.array([8]), 1e-7)
