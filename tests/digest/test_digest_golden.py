"""Golden vectors: stored numbers, reproduced by the package and by the independent reference."""

from __future__ import annotations

import dataclasses

import digest_reference as reference
import numpy as np
import pytest
import torch
import xxhash

from detaudit.digest import golden, spec
from detaudit.digest.host import HostDigester, tensor_digest
from detaudit.digest.select import prove
from detaudit.digest.stats import sum_of_squares, tensor_stats


def named(vector):
    return f"{vector.dtype}{list(vector.shape)}"


@pytest.mark.parametrize("vector", golden.DIGESTS, ids=named)
def test_digest(vector):
    assert tensor_digest(golden.tensor(vector)) == vector.digest
    data = spec.pattern_bytes(vector.nbytes)
    assert spec.digest_bytes(vector.dtype, vector.shape, data) == vector.digest
    assert reference.digest(vector.dtype, vector.shape, data) == vector.digest


@pytest.mark.parametrize(("vector", "expected"), golden.STATS, ids=lambda v: named(v) if hasattr(v, "dtype") else "")
def test_stats(vector, expected):
    tensor = golden.tensor(vector)
    assert tensor_digest(tensor) == vector.digest
    assert tensor_stats(tensor) == expected
    assert reference.stats(vector.dtype, spec.pattern_bytes(vector.nbytes)) == dataclasses.astuple(expected)


def test_host_digester_reproduces_the_vectors():
    tensors = [golden.tensor(vector) for vector in golden.DIGESTS]
    digester = HostDigester()
    for _ in range(3):
        assert digester.digest(tensors) == [vector.digest for vector in golden.DIGESTS]


def test_prove_accepts_the_host_and_names_what_a_wrong_implementation_misses():
    assert prove(tensor_digest) == []
    wrong = prove(lambda tensor: tensor_digest(tensor) ^ 1)
    assert len(wrong) == len(golden.DIGESTS)
    assert wrong[1] == "uint8[1]: expected cb386ba147cae675, found cb386ba147cae674"


def test_stats_vectors_notice_another_order_of_addition():
    """A plain numpy sum adds in pairs; some vector must round differently then."""

    def pairwise(vector):
        numbers = golden.tensor(vector).to(torch.float64).numpy().reshape(-1)
        return float((numbers * numbers).sum())

    ordered = [(v, s) for v, s in golden.STATS if v.dtype.startswith(("int", "uint"))]
    assert any(pairwise(vector) != stats.sumsq for vector, stats in ordered)


def test_segment_sums_are_added_in_order():
    numbers = np.random.default_rng(3).standard_normal(3 * 65536 + 777) * 1e3
    assert sum_of_squares(numbers) == reference.sum_of_squares(numbers.tolist())


def test_xxh3_is_the_published_one():
    """The known answers of xxHash's own test-suite for an empty input and its 64-byte secret-free case."""
    assert xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2
    assert xxhash.xxh3_64_intdigest(b"", seed=0x9E3779B185EBCA8D) == 0xA8A6B918B2F0364A


def test_every_length_class_of_xxh3_is_among_the_vectors():
    lengths = {vector.nbytes for vector in golden.DIGESTS}
    for low, high in [(0, 0), (1, 3), (4, 8), (9, 16), (17, 128), (129, 240), (241, 65535), (65536, 65536)]:
        assert any(low <= length <= high for length in lengths), (low, high)
    assert any(length > 65536 and length % 65536 for length in lengths)


def test_pattern_bytes_by_hand():
    state, expected = 1, []
    for _ in range(5):
        state = (6364136223846793005 * state + 1442695040888963407) % 2**64
        expected.append(state // 2**56)
    assert list(spec.pattern_bytes(5)) == expected


def test_dtype_codes_are_the_ones_of_the_format():
    assert spec.DTYPE_CODES == reference.CODES
    assert spec.VERSION == 1
