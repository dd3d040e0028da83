"""Which path digests a device's tensors, how it is proved, and what it says."""

from __future__ import annotations

import shutil

import pytest
import torch
from digest_simulator import Simulator

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest import golden, host, paths
from detaudit.digest.paths import FallbackPath, HostCopy, KernelPath, choose, unproved
from detaudit.digest.select import LeafDigest, PendingDigest, digest_leaf, start_digests
from detaudit.digest.stats import EMPTY, leaf_stats, tensor_stats

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LEAVES = [torch.randn(10), torch.zeros(0), torch.randn(20, 30).t(), torch.eye(3).to_sparse(), torch.tensor(1.0)]


@pytest.fixture
def simulator(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("g++ compiles the CUDA sources for the CPU")
    return Simulator(tmp_path)


@pytest.fixture
def fresh(monkeypatch):
    """No path chosen yet, and none kept afterwards."""
    monkeypatch.setattr(paths, "_PATHS", {})
    monkeypatch.setattr(paths, "_CHOICES", [])


def on_cuda(monkeypatch, path):
    """`path` stands for the one of cuda:0, and tensors of the class `Placed` claim to be there."""
    monkeypatch.setitem(paths._PATHS, CUDA, path)


class Placed(torch.Tensor):
    """A host tensor that says it lies on cuda:0."""

    is_cpu = False
    device = CUDA


def placed(tensor):
    return tensor.as_subclass(Placed)


@pytest.mark.parametrize("path", [FallbackPath(), HostCopy()], ids=lambda path: type(path).__name__)
def test_paths_without_kernels_equal_the_host(path):
    assert unproved(path, CPU) == []
    assert [read() for read in path.start(LEAVES)] == [host.tensor_digest(leaf) for leaf in LEAVES]
    assert path.stats(LEAVES[2]) == tensor_stats(LEAVES[2])


def test_kernels_equal_the_host(simulator):
    path = KernelPath(CPU, simulator)
    assert unproved(path, CPU) == []
    assert [read() for read in path.start(LEAVES)] == [host.tensor_digest(leaf) for leaf in LEAVES]
    for leaf in (*LEAVES, torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)):
        assert path.stats(leaf) == leaf_stats(leaf)


def test_large_leaves_are_hashed_where_they_lie(monkeypatch):
    seen = []
    path = FallbackPath()
    original = path._portable.digest
    monkeypatch.setattr(path._portable, "digest", lambda tensors: seen.extend(tensors) or original(tensors))
    large = torch.arange(paths.SMALL + 1, dtype=torch.int64).to(torch.uint8)
    found = [read() for read in path.start([torch.ones(4), large])]
    assert found == [host.tensor_digest(torch.ones(4)), host.tensor_digest(large)]
    assert len(seen) == 1 and seen[0] is large


def test_a_wrong_kernel_is_found_out_and_passed_over(monkeypatch, simulator):
    class Wrong(KernelPath):
        def start(self, tensors, /):
            return [lambda read=read: read() ^ 1 for read in super().start(tensors)]

    monkeypatch.setattr(paths, "_kernel_path", lambda device: Wrong(CPU, simulator))
    path, why = choose(CPU)
    assert isinstance(path, FallbackPath)
    assert why.startswith("CUDA kernels missed the golden vectors uint8[0], uint8[1]")


def test_a_wrong_stat_is_found_out(monkeypatch, simulator):
    path = KernelPath(CPU, simulator)
    monkeypatch.setattr(path, "stats", lambda tensor: EMPTY)
    missed = unproved(path, CPU)
    assert len(missed) == len(golden.STATS) - 1 and missed[0] == "stats of float32[]"


def test_wrong_torch_operations_leave_the_copy_to_the_host(monkeypatch):
    monkeypatch.setattr(paths.PortableDigester, "digest", lambda self, tensors: [0 for _ in tensors])
    path, why = choose(CPU)
    assert isinstance(path, HostCopy)
    assert "there are no kernels for cpu" in why and "uint8[0] by torch operations" in why


def test_a_compiler_that_fails_is_named_and_passed_over(monkeypatch):
    def fail(device):
        raise OSError("nvrtc: no such library\nand more")

    monkeypatch.setattr(paths, "_kernel_path", fail)
    path, why = choose(CPU)
    assert isinstance(path, FallbackPath) and why == "OSError: nvrtc: no such library"


def test_a_device_is_proved_once_and_its_choice_kept(fresh, monkeypatch):
    made = []
    monkeypatch.setattr(paths, "choose", lambda device: made.append(device) or (HostCopy(), "a reason"))
    device = torch.device("xpu", 0)
    assert paths.device_path(device) is paths.device_path(device)
    assert made == [device]
    assert list(paths.choices()) == [paths.Choice("xpu:0", "copy to the host", "a reason")]


def test_nothing_is_chosen_while_a_graph_is_captured(fresh, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UnsupportedLeafError, match="CUDA graph"):
        paths.device_path(CUDA)
    assert list(paths.choices()) == []


def test_host_tensors_choose_no_path(fresh):
    assert isinstance(digest_leaf(torch.randn(3)), LeafDigest)
    paths.leaf_stats(torch.randn(3))
    assert list(paths.choices()) == []


def test_a_tensor_of_a_device_is_pending(monkeypatch):
    on_cuda(monkeypatch, HostCopy())
    waited = []

    def start(tensors, /):
        return [lambda: waited.append(1) or 77 for _ in tensors]

    monkeypatch.setattr(paths._PATHS[CUDA], "start", start, raising=False)
    found = digest_leaf(placed(torch.zeros(2, 3)))
    assert isinstance(found, PendingDigest) and not waited
    assert (found.dtype, found.shape, found.unsupported) == ("float32", (2, 3), "")
    assert found.digest == 77 and waited


def test_what_a_device_cannot_read_is_named(monkeypatch):
    class Refusing(HostCopy):
        def start(self, tensors, /):
            raise UnsupportedLeafError("a reason")

    on_cuda(monkeypatch, Refusing())
    assert digest_leaf(placed(torch.zeros(2))).unsupported == "a reason"
    assert paths.leaf_stats(placed(torch.zeros(2))) == tensor_stats(torch.zeros(2))


def test_a_meta_tensor_is_refused_as_before():
    assert "meta" in digest_leaf(torch.empty(3, device="meta")).unsupported


def test_tensors_of_two_devices_are_not_digested_together():
    with pytest.raises(ValueError, match="2 devices"):
        start_digests([torch.zeros(1), torch.empty(1, device="meta")])
