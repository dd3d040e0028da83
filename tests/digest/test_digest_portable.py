"""The digest by torch operations: every length class of XXH3, dtypes, layouts, batches; the host is the reference."""

from __future__ import annotations

import pytest
import torch
import xxhash

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest import golden, host
from detaudit.digest.portable import BATCH, SECRET, PortableDigester, chunk_digests_of, tensor_digest, xxh3_64
from detaudit.digest.select import prove
from detaudit.digest.spec import CHUNK, DTYPE_CODES

DTYPES = [name for name in DTYPE_CODES if hasattr(torch, name) and isinstance(getattr(torch, name), torch.dtype)]


def random_bytes(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


def expected_hash(row):
    return xxhash.xxh3_64_intdigest(bytes(row.tolist()))


def test_secret_is_the_published_one():
    assert len(SECRET) == 192
    assert SECRET[:4].hex() == "b8fe6c39" and SECRET[-3:].hex() == "4b407e"
    assert xxhash.xxh3_64_intdigest(SECRET) == xxh3_64(torch.tensor([list(SECRET)], dtype=torch.uint8)).item() % 2**64


@pytest.mark.parametrize("length", [*range(1, 20), 31, 32, 33, 64, 65, 96, 97, 127, 128, 129, 143, 144, 239, 240, 241])
def test_short_and_middle_lengths(length):
    rows = random_bytes(3, length)
    assert [value % 2**64 for value in xxh3_64(rows).tolist()] == [expected_hash(row) for row in rows]


@pytest.mark.parametrize("length", [255, 256, 257, 1023, 1024, 1025, 1088, 1089, 2048, 2049, 4096, 65535, 65536])
def test_long_lengths(length):
    rows = random_bytes(2, length)
    assert [value % 2**64 for value in xxh3_64(rows).tolist()] == [expected_hash(row) for row in rows]


@pytest.mark.parametrize("fill", [0, 255], ids=["zeros", "ones"])
@pytest.mark.parametrize("length", [1, 4, 9, 17, 130, 300, 1100])
def test_extreme_bits(fill, length):
    """Every carry of the 128-bit product at once."""
    rows = torch.full((1, length), fill, dtype=torch.uint8)
    assert xxh3_64(rows).item() % 2**64 == expected_hash(rows[0])


def test_golden_vectors():
    assert prove(tensor_digest) == []


@pytest.mark.parametrize("nbytes", [0, 1, 7, 240, 241, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 240, 3 * CHUNK])
def test_sizes_equal_the_host(nbytes):
    tensor = random_bytes(nbytes)
    assert tensor_digest(tensor) == host.tensor_digest(tensor)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_equal_the_host(name):
    dtype = getattr(torch, name)
    tensor = random_bytes(dtype.itemsize * 35).view(dtype).reshape(5, 7)
    assert tensor_digest(tensor) == host.tensor_digest(tensor)


LAYOUTS = {
    "transposed": lambda: torch.randn(30, 50).t(),
    "strided": lambda: torch.randn(40, 40)[::2, 1::3],
    "expanded": lambda: torch.randn(1, 9).expand(300, 9),
    "channels last": lambda: torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),
    "conjugate": lambda: torch.randn(9, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(9, dtype=torch.complex64).conj().imag,
    "odd offset": lambda: random_bytes(70_001)[1:],
    "scalar": lambda: torch.tensor(3.5),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "bool of 2": lambda: torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool),
    "bool of 2, strided": lambda: torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)[::2],
    "coo": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_equal_the_host(make):
    tensor = make()
    assert tensor_digest(tensor) == host.tensor_digest(tensor)


def test_a_list_of_leaves_of_equal_and_of_different_lengths():
    tensors = [torch.randn(10), torch.zeros(0), torch.randn(10), torch.eye(3).to_sparse(), torch.randn(20_000)]
    tensors += [torch.randn(40), torch.randn(20_000), torch.randn(16_384)]
    assert PortableDigester().digest(tensors) == [host.tensor_digest(tensor) for tensor in tensors]


def test_more_chunks_than_a_batch():
    tensor = random_bytes((BATCH + 1) * CHUNK + 5)
    assert tensor_digest(tensor) == host.tensor_digest(tensor)
    assert [digests.numel() for digests in chunk_digests_of([tensor, tensor[:0]])] == [BATCH + 2, 0]


def test_order_and_single_bits_count():
    tensor = torch.randn(40_000)
    swapped, flipped = tensor.clone(), tensor.clone()
    swapped[[0, 30_000]] = tensor[[30_000, 0]]
    flipped[39_999] = -flipped[39_999]
    assert len({tensor_digest(t) for t in (tensor, swapped, flipped, tensor.reshape(200, 200))}) == 4


def test_what_cannot_be_read_is_refused():
    shrunk = torch.randn(100)
    shrunk.untyped_storage().resize_(8)
    for tensor, reason in [(torch.empty(3, device="meta"), "meta"), (shrunk, "holds 8 of the 400 bytes")]:
        with pytest.raises(UnsupportedLeafError, match=reason):
            tensor_digest(tensor)


def test_the_users_storage_stays_resizable():
    tensor = torch.randn(100)
    tensor_digest(tensor)
    tensor.untyped_storage().resize_(0)


def test_no_random_numbers_are_drawn():
    before = torch.get_rng_state()
    tensor_digest(golden.tensor(golden.DIGESTS[-3]))
    assert torch.equal(before, torch.get_rng_state())
