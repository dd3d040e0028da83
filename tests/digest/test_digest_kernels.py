"""The kernels of digests and stats themselves, run on the CPU by a simulator under seeded schedules."""

from __future__ import annotations

import ctypes
import re
import shutil

import numpy as np
import pytest
import torch
from digest_simulator import Simulator

from detaudit.digest import golden, host
from detaudit.digest.device import ROW_WORDS, DeviceDigester, plan
from detaudit.digest.device_stats import READINGS, device_stats, stats_plan
from detaudit.digest.kernels import kernel_path
from detaudit.digest.portable import flat_bytes
from detaudit.digest.spec import CHUNK
from detaudit.digest.stats import SEGMENT, tensor_stats

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the CUDA sources for the CPU")
CPU = torch.device("cpu")
SOURCES = ("leaf_digest", "leaf_digest_single_block", "leaf_stats")


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    return Simulator(tmp_path_factory.mktemp("kernels"))


def many_blocks(tensors, simulator):
    return DeviceDigester(CPU, simulator).digest(tensors)


def single_block(tensors, simulator, threads=1024):
    flats = [flat_bytes(tensor) for tensor in tensors]
    table, start, _ = plan(tensors, [flat.data_ptr() for flat in flats])
    roots = np.zeros(len(tensors), np.uint64)
    rows = np.uint64(table.ctypes.data)
    arguments = (rows, np.uint32(len(tensors)), rows + np.uint64(8 * start), np.uint64(roots.ctypes.data))
    simulator.launch("leaf_digest_single_block", "leaf_digest_single_block", 1, threads, arguments)
    return roots.tolist()


FORMS = {"many blocks": many_blocks, "single block": single_block}


def random_bytes(count, seed=0):
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed + count))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_golden_vectors(form, simulator):
    tensors = [golden.tensor(vector) for vector in golden.DIGESTS]
    assert form(tensors, simulator) == [vector.digest for vector in golden.DIGESTS]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_short_length(form, simulator):
    tensors = [random_bytes(count) for count in range(300)]
    assert form(tensors, simulator) == [host.tensor_digest(tensor) for tensor in tensors]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_sizes_and_ragged_tails_together(form, simulator):
    sizes = [0, 1, 7, 240, 241, 1024, 1025, 1088, 1089, CHUNK - 1, CHUNK, 0, CHUNK + 1, 2 * CHUNK + 77, 0]
    tensors = [random_bytes(size) for size in sizes]
    assert form(tensors, simulator) == [host.tensor_digest(tensor) for tensor in tensors]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("offset", range(1, 8))
def test_unaligned_bases(form, offset, simulator):
    data = random_bytes(3000)
    tensors = [data[offset : offset + count] for count in (1, 5, 12, 100, 200, 2500)]
    assert form(tensors, simulator) == [host.tensor_digest(tensor) for tensor in tensors]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_hundred_schedules(form, simulator):
    tensors = [random_bytes(count) for count in (0, 7, 240, 241, 2111)]
    expected = [host.tensor_digest(tensor) for tensor in tensors]
    small = {"threads": 64} if form is single_block else {}
    for simulator.seed in range(100):
        assert form(tensors, simulator, **small) == expected


def test_the_number_of_threads_of_the_single_block_decides_nothing(simulator):
    tensors = [random_bytes(5000)]
    assert {single_block(tensors, simulator, threads)[0] for threads in (32, 64, 256, 1024)} == {
        host.tensor_digest(tensors[0])
    }


@pytest.mark.slow
def test_a_message_longer_than_a_chunk(simulator):
    """A leaf of more than 8,192 chunks has a message above 64 KiB, which the root kernel takes in tiles."""
    message = random_bytes(3 * CHUNK + 1234)[: 3 * CHUNK + 1232]
    rows = np.array([0, message.numel() // 8 * CHUNK, 0, 0, 0], np.uint64)
    root = np.zeros(1, np.uint64)
    pointers = (np.uint64(rows.ctypes.data), np.uint64(message.data_ptr()), np.uint64(root.ctypes.data))
    simulator.launch("leaf_digest", "leaf_roots", 1, 256, pointers)
    assert int(root[0]) == host.xxh3_64_intdigest(host.view(message))


def test_a_barrier_taken_out_is_noticed(simulator, tmp_path):
    """The proof can fail: without its barriers the long path reads sums that are not there yet."""
    code = kernel_path("leaf_digest").read_text(encoding="utf-8")
    broken = tmp_path / "leaf_digest.cu"
    broken.write_text(code.replace("        __syncthreads();\n", ""), encoding="utf-8")
    assert broken.read_text(encoding="utf-8") != code
    other = Simulator(tmp_path)
    other._libraries["leaf_digest"] = ctypes.CDLL(str(other.compile(broken)))
    tensor = random_bytes(20_000)
    assert many_blocks([tensor], other) != [host.tensor_digest(tensor)]


def test_both_digest_sources_hold_the_same_hash():
    parts = [
        re.search(r"// ---- XXH3.*?// ---- end of the part kept equal ----", kernel_path(name).read_text(), re.S)[0]
        for name in SOURCES[:2]
    ]
    assert parts[0] == parts[1]


@pytest.mark.parametrize("name", SOURCES)
def test_sources_have_no_includes_atomics_or_fences(name):
    code = re.sub(r"//.*", "", kernel_path(name).read_text(encoding="utf-8"))
    assert not re.search(r"#include|atomic\w+\(|__threadfence|\bfloat\b", code)


def test_stats_of_the_golden_vectors(simulator):
    tensors = [golden.tensor(vector) for vector, _ in golden.STATS]
    assert device_stats(tensors, CPU, simulator) == [stats for _, stats in golden.STATS]


@pytest.mark.parametrize("name", READINGS)
def test_stats_of_every_dtype(name, simulator):
    """All patterns of the types of one byte; random bits, hence subnormals, NaN and Inf, of the wider ones."""
    dtype = getattr(torch, name)
    data = torch.arange(256).to(torch.uint8) if dtype.itemsize == 1 else random_bytes(dtype.itemsize * 3001)
    if dtype.is_complex:
        data = random_bytes(dtype.itemsize * 1500)
    tensor = data.view(dtype)
    assert device_stats([tensor], CPU, simulator) == [tensor_stats(tensor)]


SPECIAL = {
    "subnormal": torch.tensor([1, 0x80000001 - 2**32, 0x7FFFFF], dtype=torch.int32).view(torch.float32),
    "zeros of both signs": torch.tensor([-0.0, 0.0, -0.0]),
    "NaN alone": torch.full((300,), float("nan")),
    "infinities": torch.tensor([float("inf"), -float("inf"), 2.0]),
    "half subnormal": torch.arange(1, 1024, dtype=torch.int16).view(torch.float16),
    "half special": torch.tensor([0x7C00, 0x7C01, -1024, -1], dtype=torch.int16).view(torch.float16),
    "nothing": torch.zeros(0),
    "integers that round": torch.tensor([2**63 - 1, -(2**63), 2**53 + 1]),
    "a segment": torch.randn(SEGMENT, generator=torch.Generator().manual_seed(0)),
    "a segment and one": torch.randn(SEGMENT + 1, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("tensor", SPECIAL.values(), ids=SPECIAL)
def test_stats_of_special_values(tensor, simulator):
    found, expected = device_stats([tensor], CPU, simulator)[0], tensor_stats(tensor)
    assert found == expected
    assert str(found) == str(expected)  # -0.0 equals 0.0, but is not written like it


def test_stats_of_several_leaves_under_schedules(simulator):
    tensors = [torch.zeros(0), torch.randn(700), torch.randn(3).double(), torch.zeros(0), torch.arange(1000)]
    expected = [tensor_stats(tensor) for tensor in tensors]
    for simulator.seed in range(100):
        assert device_stats(tensors, CPU, simulator) == expected


def test_more_segments_than_a_tile_of_the_last_kernel(simulator):
    """301 segments, given as partial sums: added in order, where another order rounds otherwise."""
    generator = np.random.default_rng(5)
    partials = np.zeros((301, 6), np.uint64)
    sums, lows = generator.random(301) * 10.0 ** generator.integers(-2, 3, 301), generator.standard_normal(301)
    partials[:, 0], partials[:, 2], partials[:, 3] = sums.view(np.uint64), lows.view(np.uint64), lows.view(np.uint64)
    partials[:, 1], partials[:, 4], partials[:, 5] = 2**63 + 5, 3, 4
    rows, segments = stats_plan([torch.empty(301 * SEGMENT, device="meta")], [0])
    assert segments == 301
    out = np.zeros(6, np.uint64)
    pointers = tuple(np.uint64(array.ctypes.data) for array in (rows, partials, out))
    simulator.launch("leaf_stats", "stats_leaves", 1, 256, pointers)
    total, backwards = 0.0, 0.0
    for part, other in zip(sums.tolist(), reversed(sums.tolist()), strict=True):
        total, backwards = total + part, backwards + other
    assert total != backwards
    assert out.view(np.float64)[[0, 2, 3]].tolist() == [total, lows.min(), lows.max()]
    assert out[[1, 4, 5]].tolist() == [(2**63 + 5) * 301 % 2**64, 903, 1204]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    return Simulator(tmp_path_factory.mktemp("watched"), watched=True)


def stats_form(tensors, simulator):
    return device_stats(tensors, CPU, simulator)


WATCHED = {
    "many blocks": (many_blocks, host.tensor_digest, (0, 7, 240, 241, 1300)),
    "single block": (lambda tensors, it: single_block(tensors, it, 64), host.tensor_digest, (0, 7, 240, 241, 1300)),
    "stats": (stats_form, tensor_stats, (0, 7, 700)),
}


@pytest.mark.parametrize(("form", "reference", "sizes"), WATCHED.values(), ids=WATCHED)
def test_no_race_and_one_result_under_preemption(form, reference, sizes, watched):
    """A hundred schedules that yield at one access in seven. More than any result the detector counts: it would flag
    a missing barrier on a schedule that gives the right answer, too."""
    tensors = [random_bytes(size) for size in sizes]
    expected = [reference(tensor) for tensor in tensors]
    watched.preempt = 7
    for watched.seed in range(100):
        assert form(tensors, watched) == expected
    assert watched.races() == (0, None)


@pytest.mark.slow
@pytest.mark.parametrize("form", [many_blocks, single_block, stats_form])
def test_no_race_at_full_size(form, watched):
    """Three ragged chunks, a few schedules, pre-emption now and then."""
    tensors = [random_bytes(2 * CHUNK + 77), random_bytes(CHUNK + 1)]
    expected = [(tensor_stats if form is stats_form else host.tensor_digest)(tensor) for tensor in tensors]
    watched.preempt = 1000
    for watched.seed in range(3):
        assert form(tensors, watched) == expected
    assert watched.races() == (0, None)


BREAKS = {
    "a barrier of the long path": ("leaf_digest", "        __syncthreads();\n        if (threadIdx.x < 8) {"),
    "the barrier before the root": ("leaf_digest_single_block", "        __syncthreads();  // thread 0 wrote"),
    "the barrier of the tree": ("leaf_stats", "        __syncthreads();\n    }\n    if (lane == 0)"),
}


@pytest.mark.parametrize(("name", "text"), BREAKS.values(), ids=BREAKS)
def test_a_missing_barrier_is_a_race(name, text, tmp_path):
    """The control of the detector: each barrier that is taken out shows as a race in one schedule."""
    code = kernel_path(name).read_text(encoding="utf-8")
    assert code.count(text) == 1
    broken = tmp_path / f"{name}.cu"
    broken.write_text(code.replace(text, text.replace("__syncthreads();", "", 1)), encoding="utf-8")
    simulator = Simulator(tmp_path, watched=True)
    simulator._libraries[name] = ctypes.CDLL(str(simulator.compile(broken)))
    form = {"leaf_digest": many_blocks, "leaf_stats": stats_form}.get(name, single_block)
    # The digest of a long last chunk is read behind other barriers. Where a short tail follows, and 29 dimensions make
    # a message of 264 bytes, that of the chunk before is not: it ends at byte 256, the last of a whole stripe.
    leaf = random_bytes(CHUNK + 100).reshape(*[1] * 28, -1) if form is single_block else random_bytes(3000)
    form([leaf], simulator)
    count, (earlier, later) = simulator.races()
    assert count > 0 and earlier[0] == later[0] and earlier[1:] != later[1:]


def test_two_blocks_that_write_one_word_are_a_race(watched):
    """The control across blocks: two rows whose messages overlap."""
    data = random_bytes(600)
    table, start, chunks = plan([data, data], [data.data_ptr()] * 2)
    table[ROW_WORDS + 3] = table[3]
    rows = np.uint64(table.ctypes.data)
    watched.launch("leaf_digest", "leaf_chunks", chunks, 256, (rows, np.uint32(2), rows + np.uint64(8 * start)))
    count, (earlier, later) = watched.races()
    assert count == 8 and {earlier[1], later[1]} == {0, 1}
