"""The host side of the device digests without a GPU: the kernels run in the simulator on host memory; CuPy and torch's
view of CUDA are replaced only where what is asked is how they are refused."""

from __future__ import annotations

import shutil
import sys
import types

import numpy as np
import pytest
import torch
from digest_simulator import Simulator

from detaudit.core.errors import UnreadableError, UnsupportedLeafError
from detaudit.digest import device, golden, host, kernels, launcher
from detaudit.digest.device import ROW_WORDS, DeviceDigester, plan
from detaudit.digest.device_stats import device_stats
from detaudit.digest.launcher import CupyLauncher, KernelsUnavailableError
from detaudit.digest.spec import CHUNK

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the CUDA sources for the CPU")


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    return Simulator(tmp_path_factory.mktemp("device"))


@pytest.fixture
def digester(simulator):
    simulator.launches.clear()
    return DeviceDigester(CPU, simulator)


@needs_compiler
class TestDigester:
    def test_all_leaves_of_a_call_share_two_launches(self, digester, simulator):
        tensors = [torch.randn(CHUNK // 4 + 1), torch.zeros(0), torch.randn(3)]
        assert digester.digest(tensors) == [host.tensor_digest(tensor) for tensor in tensors]
        assert simulator.launches == [("leaf_chunks", 3), ("leaf_roots", 3)]

    def test_empty_leaves_alone_start_no_chunk(self, digester, simulator):
        tensors = [torch.zeros(0), torch.zeros(4, 0)]
        assert digester.digest(tensors) == [host.tensor_digest(tensor) for tensor in tensors]
        assert simulator.launches == [("leaf_roots", 2)]

    def test_no_leaf_starts_nothing(self, digester, simulator):
        assert digester.digest([]) == [] and simulator.launches == []

    def test_a_digest_is_of_the_moment_it_was_started(self, digester):
        tensor = torch.randn(50)
        expected = host.tensor_digest(tensor)
        read = digester.start([tensor])[0]
        tensor.zero_()
        assert read() == expected

    def test_the_calls_of_a_step_are_read_in_one_copy(self, digester, monkeypatch):
        copies = []
        monkeypatch.setattr(device.Batch, "values", counted(device.Batch.values, copies))
        first, second = torch.randn(5), torch.randn(6)
        reads = digester.start([first]) + digester.start([second])
        assert [read() for read in reads] == [host.tensor_digest(first), host.tensor_digest(second)]
        assert [fresh for fresh in copies if fresh] == [True]
        third = digester.start([first])[0]
        assert third() == host.tensor_digest(first)
        assert sum(copies) == 2

    def test_a_batch_that_is_full_leaves_the_earlier_results_readable(self, digester, monkeypatch):
        monkeypatch.setattr(device, "BATCH_ROOTS", 2)
        digester._batch = device.Batch(CPU, 2)
        tensors = [torch.randn(size) for size in range(1, 8)]
        reads = [digester.start(tensors[index : index + 2]) for index in (0, 2, 4)] + [digester.start(tensors)]
        found = [read() for part in reads for read in part]
        assert found == [host.tensor_digest(tensor) for tensor in (*tensors[:6], *tensors)]

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.randn(30, 50).t(),
            lambda: torch.randn(1, 9).expand(300, 9),
            lambda: torch.randn(9, dtype=torch.complex64).conj(),
            lambda: torch.eye(4).to_sparse(),
            lambda: torch.tensor(2.5),
            lambda: torch.nn.Parameter(torch.randn(3)),
            lambda: torch.tensor([2, 0], dtype=torch.uint8).view(torch.bool),
        ],
        ids=["transposed", "expanded", "conjugate", "sparse", "scalar", "parameter", "bool of 2"],
    )
    def test_layouts(self, make, digester):
        tensor = make()
        assert digester.digest([tensor]) == [host.tensor_digest(tensor)]

    def test_copies_are_held_until_they_are_read(self, digester):
        read = digester.start([torch.randn(30, 50).t()])[0]
        assert any(held.numel() == 6000 for held in digester._batch.held)
        read()
        assert digester._batch.held == []

    def test_memory_that_is_gone_is_refused_before_anything_starts(self, digester, simulator):
        shrunk = torch.randn(100)
        shrunk.untyped_storage().resize_(0)
        with pytest.raises(UnsupportedLeafError, match="holds 0 of the 400 bytes"):
            digester.digest([torch.randn(3), shrunk])
        assert simulator.launches == []

    def test_a_tensor_of_another_device_is_refused_with_both(self, digester):
        with pytest.raises(UnsupportedLeafError, match="on meta was given to the digester of cpu"):
            digester.digest([torch.empty(3, device="meta")])

    def test_moved_storage_is_seen(self, digester):
        tensor = torch.nn.Parameter(torch.randn(10))
        digester.digest([tensor])
        tensor.data = torch.randn(10)
        assert digester.digest([tensor]) == [host.tensor_digest(tensor)]


def counted(method, log):
    def values(self):
        log.append(not self.read)
        return method(self)

    return values


def test_capture_is_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    digester = DeviceDigester.__new__(DeviceDigester)
    digester._device = torch.device("cuda", 0)
    with pytest.raises(UnsupportedLeafError, match="record outside of the capture"):
        digester.start([torch.randn(2)])
    with pytest.raises(UnsupportedLeafError, match="record outside of the capture"):
        device_stats([torch.randn(2)], torch.device("cuda", 0), None)


def test_plan_by_hand():
    tensors = [torch.zeros(3), torch.zeros(0), torch.zeros(2 * CHUNK + 1, dtype=torch.uint8)]
    table, start, chunks = plan(tensors, [1000, 0, 5000])
    assert start == 3 * ROW_WORDS and chunks == 4
    # A header of one dimension is 24 bytes, three words.
    assert table[:start].reshape(3, ROW_WORDS).tolist() == [
        [1000, 12, 0, 0, 3],
        [0, 0, 1, 4, 3],
        [5000, 2 * CHUNK + 1, 1, 7, 3],
    ]
    assert len(table) - start == 3 + 1 + 3 + 0 + 3 + 3


def test_plan_of_more_than_two_to_the_31_elements():
    """The sizes of a leaf of 3 GiB; meta tensors stand for the memory."""
    table, _, chunks = plan([torch.empty(3 * 2**30, dtype=torch.uint8, device="meta")], [0])
    assert (table[1], chunks) == (3 * 2**30, 3 * 2**30 // CHUNK)
    assert table.dtype == np.int64


def test_unsupported_dtypes_of_stats_are_named():
    with pytest.raises(UnsupportedLeafError, match="float4_e2m1fn_x2"):
        device_stats([torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)], CPU, None)


def fake_cupy(runtime=13000, driver=13000):
    calls = types.SimpleNamespace(runtimeGetVersion=lambda: runtime, driverGetVersion=lambda: driver)
    return types.SimpleNamespace(__version__="14.2.0", cuda=types.SimpleNamespace(runtime=calls))


@pytest.fixture
def cuda_torch(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


class TestRefusals:
    def test_torch_without_cuda(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", None)
        with pytest.raises(KernelsUnavailableError, match="built without CUDA"):
            CupyLauncher(torch.device("cuda", 0))

    def test_no_driver(self, cuda_torch, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(KernelsUnavailableError, match="no CUDA device or no driver; check nvidia-smi"):
            launcher.usable_cupy()

    def test_no_cupy(self, cuda_torch, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(KernelsUnavailableError, match=r"install detaudit\[cuda13\] for torch's CUDA 13.0"):
            launcher.usable_cupy()

    def test_another_major(self, cuda_torch, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy(runtime=12090))
        with pytest.raises(KernelsUnavailableError, match=r"built for CUDA 12, torch for CUDA 13 \(13.0\)"):
            launcher.usable_cupy()

    def test_an_old_driver(self, cuda_torch, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy(driver=12080))
        with pytest.raises(KernelsUnavailableError, match=r"driver supports CUDA 12.8, .* update the driver"):
            launcher.usable_cupy()

    def test_a_cupy_that_fits_is_taken(self, cuda_torch, monkeypatch):
        fitting = fake_cupy(runtime=13010, driver=13020)
        monkeypatch.setitem(sys.modules, "cupy", fitting)
        assert launcher.usable_cupy() is fitting


def test_kernel_path():
    assert kernels.kernel_path("leaf_digest").read_text(encoding="utf-8").startswith("//")
    with pytest.raises(UnreadableError, match=r"kernel nothing.cu is missing .* install detaudit again"):
        kernels.kernel_path("nothing")


def test_golden_vectors_cover_an_empty_and_a_ragged_leaf():
    sizes = {vector.nbytes for vector in golden.DIGESTS}
    assert 0 in sizes and any(size > CHUNK and size % CHUNK for size in sizes)
