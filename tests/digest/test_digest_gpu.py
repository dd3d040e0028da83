"""Kernels on a real device, against the host. Needs a CUDA device and CuPy; skipped with the reason elsewhere."""

from __future__ import annotations

import pytest
import torch

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest import golden, host
from detaudit.digest.device import DeviceDigester
from detaudit.digest.device_stats import READINGS, device_stats
from detaudit.digest.launcher import CupyLauncher, KernelsUnavailableError, usable_cupy
from detaudit.digest.paths import FallbackPath, KernelPath, choose, unproved
from detaudit.digest.portable import PortableDigester
from detaudit.digest.spec import CHUNK
from detaudit.digest.stats import tensor_stats
from detaudit.workloads.kernel_tree import KernelRebuild, TwoLaunchRebuild
from detaudit.workloads.sumtree import leaves, new_tree, rebuild_levels

pytestmark = [pytest.mark.gpu]


@pytest.fixture(scope="module")
def cuda():
    try:
        usable_cupy()
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="module")
def digester(cuda):
    return DeviceDigester(cuda, CupyLauncher(cuda))


def random_bytes(count, device):
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device=device)


def test_the_kernels_are_chosen_and_proved(cuda):
    path, why = choose(cuda)
    assert isinstance(path, KernelPath) and why == "" and unproved(path, cuda) == []


def test_the_fallback_is_proved(cuda):
    assert unproved(FallbackPath(), cuda) == []


@pytest.mark.parametrize("nbytes", [0, 1, 7, 240, 241, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 240, 2**24 + 3])
def test_sizes(nbytes, digester, cuda):
    tensor = random_bytes(nbytes, cuda)
    assert digester.digest([tensor]) == [host.tensor_digest(tensor.cpu())]
    assert PortableDigester().digest([tensor]) == [host.tensor_digest(tensor.cpu())]


def test_many_leaves_with_offsets_and_layouts(digester, cuda):
    base = random_bytes(100_000, cuda)
    tensors = [base[offset : offset + 3000 + offset] for offset in range(9)]
    tensors += [
        torch.randn(30, 50, device=cuda).t(),
        torch.zeros(0, device=cuda),
        torch.eye(5, device=cuda).to_sparse(),
    ]
    tensors += [torch.randn(9, dtype=torch.complex64, device=cuda).conj(), torch.tensor(1.5, device=cuda)]
    assert digester.digest(tensors) == [host.tensor_digest(tensor.cpu()) for tensor in tensors]


@pytest.mark.parametrize("name", READINGS)
def test_stats_of_every_dtype(name, cuda):
    """Random bits, hence subnormals: what CuPy's -ftz=true would flush."""
    dtype = getattr(torch, name)
    tensor = torch.randint(0, 256, (dtype.itemsize * 70_001,), dtype=torch.uint8).view(dtype)
    assert device_stats([tensor.to(cuda)], cuda, CupyLauncher(cuda)) == [tensor_stats(tensor)]


def test_golden_stats(cuda):
    tensors = [golden.tensor(vector).to(cuda) for vector, _ in golden.STATS]
    assert device_stats(tensors, cuda, CupyLauncher(cuda)) == [stats for _, stats in golden.STATS]


def test_another_stream_is_followed(digester, cuda):
    stream = torch.cuda.Stream(cuda)
    with torch.cuda.stream(stream):
        tensor = torch.zeros(2**24, device=cuda)
        for _ in range(50):
            tensor.add_(1.0)
        read = digester.start([tensor])[0]
        tensor.zero_()
        del tensor
        torch.full((2**24,), 7.0, device=cuda)
        assert read() == host.tensor_digest(torch.full((2**24,), 50.0))


def test_starting_does_not_synchronise(digester, cuda):
    tensor = torch.randn(1000, device=cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        reads = digester.start([tensor])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert reads[0]() == host.tensor_digest(tensor.cpu())


def test_a_capture_is_refused_and_left_whole(digester, cuda):
    tensor, graph = torch.zeros(4, device=cuda), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(UnsupportedLeafError, match="CUDA graph"):
            digester.start([tensor])
        tensor.add_(1.0)
    graph.replay()
    assert tensor.tolist() == [1.0] * 4


def test_more_than_two_to_the_31_elements(digester, cuda):
    free, _ = torch.cuda.mem_get_info(cuda)
    if free < 5 * 2**30:
        pytest.skip(f"needs 5 GiB of device memory, {free / 2**30:.1f} are free")
    tensor = torch.zeros(2**31 + 9, dtype=torch.uint8, device=cuda)
    plain = digester.digest([tensor])
    tensor[2**31 + 3] = 1
    flipped = digester.digest([tensor])
    assert flipped != plain and flipped == [host.tensor_digest(tensor.cpu())]


def test_another_device_than_the_current_one(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    other = torch.device("cuda", 1)
    tensor = torch.randn(70_000, device=other)
    found = DeviceDigester(other, CupyLauncher(other)).digest([tensor])
    assert found == [host.tensor_digest(tensor.cpu())] and torch.cuda.current_device() == cuda.index


@pytest.mark.parametrize("form", [KernelRebuild, TwoLaunchRebuild])
@pytest.mark.parametrize("capacity", [1, 64, 4096, 65_536])
def test_the_tree_has_the_hosts_bits(form, capacity, cuda):
    tree = new_tree(capacity, torch.device("cpu"))
    leaves(tree).copy_(torch.rand(capacity, generator=torch.Generator().manual_seed(0)))
    found = tree.to(cuda)
    form(CupyLauncher(cuda))(found)
    rebuild_levels(tree)
    assert torch.equal(found.cpu(), tree)
