"""`tensor_digest`: any dtype, any shape, any memory layout, against the reference; and what it must leave alone."""

from __future__ import annotations

import math
import random
import struct
import warnings

import digest_reference as reference
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.host import SPARSE_PARTS, dtype_name, plain, tensor_digest, unsupported_reason
from detaudit.digest.select import digest_leaf
from detaudit.digest.spec import DTYPE_CODES

DTYPES = [name for name in DTYPE_CODES if isinstance(getattr(torch, name, None), torch.dtype)]
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
quick = settings(max_examples=60, deadline=None)


def logical_bytes(tensor):
    """Raw bytes in C order by indexing element by element: no contiguous(), no ctypes."""
    tensor = tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor  # a copy of a bool may change its byte
    flat = [tensor[index].reshape(1).resolve_conj().resolve_neg().clone() for index in np.ndindex(*tensor.shape)]
    return b"".join(bytes(one.view(torch.uint8).tolist()) for one in flat)


def expected(tensor):
    return reference.digest(dtype_name(tensor.dtype), tensor.shape, logical_bytes(tensor))


def filled(dtype, shape, seed=0):
    """A tensor of random raw bytes: NaN payloads, -0.0 and bool bytes above 1 among them."""
    dtype = getattr(torch, dtype)
    count = math.prod(shape) * dtype.itemsize
    if not count:
        return torch.empty(shape, dtype=dtype)
    raw = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).reshape(shape)


shapes = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


@quick
@given(st.sampled_from(DTYPES), shapes, st.integers(0, 2**32 - 1))
def test_any_dtype_and_shape(dtype, shape, seed):
    tensor = filled(dtype, shape, seed)
    assert tensor_digest(tensor) == expected(tensor)


VIEWS = {
    "transposed": lambda t: t.transpose(0, -1),
    "strided": lambda t: t[::2],
    "offset": lambda t: t[1:],
    "column": lambda t: t[..., 1],
    "flipped dims": lambda t: t.permute(*reversed(range(t.ndim))),
    "expanded": lambda t: t[:1].expand(5, *t.shape[1:]),
    "overlapping": lambda t: t.reshape(-1).as_strided((4, 3), (1, 1)),
    "unfolded": lambda t: t.reshape(-1).unfold(0, 3, 2),
    "empty slice": lambda t: t[:0].transpose(0, -1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
def test_views(dtype, view):
    tensor = VIEWS[view](filled(dtype, (3, 4, 2), seed=7))
    assert tensor_digest(tensor) == expected(tensor)
    if dtype != "bool":  # torch's own copy turns a bool byte of 2 into 1; the digest must not
        assert tensor_digest(tensor) == tensor_digest(tensor.clone(memory_format=torch.contiguous_format))


def test_channels_last_digests_in_logical_order():
    tensor = torch.randn(2, 3, 4, 5)
    assert tensor_digest(tensor.to(memory_format=torch.channels_last)) == tensor_digest(tensor) == expected(tensor)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "complex32"])
def test_conjugate_and_negative_views(dtype):
    tensor = torch.randn(6, 2, dtype=torch.complex128).to(getattr(torch, dtype))
    lazy = tensor.conj()
    assert lazy.is_conj() and tensor_digest(lazy) == expected(lazy)
    assert tensor_digest(lazy) != tensor_digest(tensor)
    if dtype != "complex32":
        negative = tensor.conj().imag
        assert negative.is_neg() and tensor_digest(negative) == expected(negative)
        assert tensor_digest(negative) == tensor_digest(negative.clone())


def test_a_negative_view_of_contiguous_memory():
    tensor = torch.randn(4)
    negative = torch._neg_view(tensor)
    assert negative.is_contiguous() and negative.data_ptr() == tensor.data_ptr()
    assert tensor_digest(negative) == tensor_digest(-tensor) != tensor_digest(tensor)


@quick
@given(st.integers(0, 3 * 65536 + 17))
def test_chunk_boundaries(nbytes):
    data = np.arange(nbytes, dtype=np.uint64).view(np.uint8)[:nbytes].copy()
    assert tensor_digest(torch.from_numpy(data)) == reference.digest("uint8", (nbytes,), data.tobytes())


@pytest.mark.parametrize("nbytes", [65535, 65536, 65537, 131072, 131073])
def test_every_chunk_counts(nbytes):
    tensor = torch.zeros(nbytes, dtype=torch.uint8)
    places = {0, 65533, 65534, nbytes // 2, nbytes - 2, nbytes - 1}
    seen = {tensor_digest(tensor)}
    for place in places:
        tensor[place] = 1
        seen.add(tensor_digest(tensor))
        tensor[place] = 0
    assert len(seen) == 1 + len(places)


def test_bits_that_compare_equal_still_count():
    zero = torch.zeros(3)
    assert torch.equal(zero, -zero) and tensor_digest(zero) != tensor_digest(-zero)
    one, two = (torch.tensor([raw], dtype=torch.uint8).view(torch.bool) for raw in (1, 2))
    assert torch.equal(one, two) and tensor_digest(one) != tensor_digest(two)
    payloads = [torch.tensor([word], dtype=torch.int32).view(torch.float32) for word in (0x7FC00000, 0x7FC00001)]
    assert tensor_digest(payloads[0]) != tensor_digest(payloads[1])


def test_dtype_shape_and_order_are_inside():
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    others = [
        tensor.reshape(4, 3),
        tensor.reshape(12),
        tensor.reshape(1, 3, 4),
        tensor.t(),
        tensor.to(torch.bfloat16),
        tensor.to(torch.float64),
        tensor.view(torch.int32),
    ]
    digests = [tensor_digest(other) for other in [tensor, *others]]
    assert len(set(digests)) == len(digests)
    assert tensor_digest(torch.zeros(0)) != tensor_digest(torch.zeros(0, 2))
    assert tensor_digest(torch.zeros(())) != tensor_digest(torch.zeros(1))


# -- position: the table of facts/digests-and-kernels.md, 2.3 ---------------------------------------------------------

CHANGES = {
    "two sign flips": lambda t, i, j: t.index_put((torch.tensor([i, j]),), -t[[i, j]]),
    "two sign flips, odd index": lambda t, i, j: t.index_put(
        (torch.tensor([i | 1, (j | 1) ^ 2]),), -t[[i | 1, (j | 1) ^ 2]]
    ),
    "swap": lambda t, i, j: t.index_put((torch.tensor([i, j]),), t[[j, i]]),
    "negate all": lambda t, i, j: -t,
    "same bit in two values": lambda t, i, j: flip_bit(flip_bit(t, i), j),
    "rotate by 1": lambda t, i, j: t.roll(1),
}


def flip_bit(tensor, index):
    words = tensor.view(torch.int32).clone()
    words[index] ^= 1
    return words.view(torch.float32)


@pytest.mark.parametrize("change", CHANGES)
def test_position_sensitivity_where_torchs_own_hash_is_blind(change):
    generator = torch.Generator().manual_seed(11)
    missed = caught = 0
    for trial in range(40):
        tensor = torch.randn(4096, generator=generator)
        i, j = 17 + trial, 2048 + 3 * trial
        changed = CHANGES[change](tensor, i, j)
        assert not torch.equal(changed, tensor)
        missed += torch.hash_tensor(changed).item() == torch.hash_tensor(tensor).item()
        caught += tensor_digest(changed) != tensor_digest(tensor)
    assert caught == 40
    assert missed == 40, "torch.hash_tensor has become sensitive to position: tell the README"


@quick
@given(st.lists(st.integers(-100, 100), min_size=2, max_size=40), st.randoms(use_true_random=False))
def test_a_permutation_changes_the_digest_exactly_when_it_changes_the_order(values, chance):
    shuffled = values[:]
    chance.shuffle(shuffled)
    same = tensor_digest(torch.tensor(values)) == tensor_digest(torch.tensor(shuffled))
    assert same == (values == shuffled)


# -- sparse -----------------------------------------------------------------------------------------------------------


def sparse(layout):
    dense = torch.zeros(4, 6)
    dense[0, 1], dense[2, 3], dense[3, 5] = 1.0, -2.0, 3.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that compressed layouts are in beta
        size = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        return dense.to_sparse(layout=layout, blocksize=size)


@pytest.mark.parametrize("layout", SPARSE_PARTS, ids=str)
def test_sparse(layout):
    tensor = sparse(layout)
    name, parts = SPARSE_PARTS[layout]
    digests = [expected(getattr(tensor, part)()) for part in parts]
    assert tensor_digest(tensor) == reference.composite(name, tensor.shape, digests)
    assert tensor_digest(tensor) != tensor_digest(tensor.to_dense())
    changed = sparse(layout)
    (changed._values() if layout is torch.sparse_coo else changed.values()).view(-1)[-1] += 1
    assert tensor_digest(changed) != tensor_digest(tensor)


def test_uncoalesced_entries_keep_their_order():
    indices = torch.tensor([[0, 0, 1]])
    first = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0]), (3,), check_invariants=True)
    second = torch.sparse_coo_tensor(indices, torch.tensor([2.0, 1.0, 3.0]), (3,), check_invariants=True)
    assert tensor_digest(first) != tensor_digest(second) != tensor_digest(first.coalesce())


def test_sparse_shape_counts_though_the_entries_are_equal():
    entries = torch.tensor([[0], [1]]), torch.tensor([1.0])
    a, b = (torch.sparse_coo_tensor(*entries, shape, check_invariants=True) for shape in [(2, 2), (2, 3)])
    assert tensor_digest(a) != tensor_digest(b)


# -- unsupported: named with a reason ---------------------------------------------------------------------------------


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(4)


def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def freed():
    tensor = torch.ones(16)
    tensor.untyped_storage().resize_(0)
    return tensor


def shrunk():
    tensor = torch.ones(4, 4).t()
    tensor.untyped_storage().resize_(20)
    return tensor


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"no {func}")


UNSUPPORTED = {
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "sparse meta": (lambda: torch.empty(3, 3, layout=torch.sparse_coo, device="meta"), "meta"),
    "quantised": (quantised, "qint8"),
    "nested": (nested, "nested"),
    "jagged": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
    "fake": (fake, "FakeTensor"),
    "mkldnn": (lambda: torch.ones(3, 4).to_mkldnn(), "mkldnn"),
    "wrapper": (Wrapper, "Wrapper"),
    "freed by FSDP": (freed, "holds 0 of the 64 bytes"),
    "shrunk": (shrunk, "holds 20 of the 64 bytes"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_is_named_with_its_reason(case):
    make, reason = UNSUPPORTED[case]
    tensor = make()
    with pytest.raises(UnsupportedLeafError, match=reason):
        tensor_digest(tensor)
    leaf = digest_leaf(tensor)
    assert leaf.digest == 0 and reason in leaf.unsupported


def test_supported_tensors_have_no_reason():
    assert unsupported_reason(torch.ones(3)) == unsupported_reason(torch.ones(0)) == ""
    assert unsupported_reason(torch.ones(8)[2:5]) == unsupported_reason(torch.ones(1).expand(1000)) == ""


# -- what must be left alone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: torch.randn(64), lambda: torch.randn(8, 8).t(), lambda: torch.randn(100000)])
def test_the_storage_stays_resizable(make):
    tensor = make()
    tensor_digest(tensor)
    storage = tensor.untyped_storage()
    assert storage.resizable()
    storage.resize_(0)
    assert storage.nbytes() == 0


def test_numpy_would_have_pinned_it():
    """The trap this avoids: if this stops failing, ctypes is no longer needed."""
    tensor = torch.randn(4)
    tensor.numpy()
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)


def test_no_random_numbers_are_consumed():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    for tensor in [
        torch.ones(3),
        torch.ones(3, 4).t(),
        torch.ones(2, dtype=torch.complex64).conj(),
        sparse(torch.sparse_coo),
    ]:
        tensor_digest(tensor)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()


def test_autograd_is_untouched():
    weight = torch.randn(3, 4, requires_grad=True)
    hidden = weight.t() * 2
    version, node = hidden._version, hidden.grad_fn
    assert tensor_digest(weight) == expected(weight.detach())
    assert tensor_digest(hidden) == expected(hidden.detach())
    assert (hidden._version, hidden.grad_fn) == (version, node)
    hidden.sum().backward()
    assert torch.equal(weight.grad, torch.full((3, 4), 2.0))


def test_inference_tensors():
    with torch.inference_mode():
        tensor = torch.randn(5, 3)
        assert tensor_digest(tensor) == tensor_digest(tensor.clone())
    assert tensor_digest(tensor.t()) == tensor_digest(tensor.t().clone())
    assert tensor.is_inference()


def test_digest_inside_grad_mode_contexts_is_the_same():
    tensor = torch.randn(4, 4, requires_grad=True)
    outside = tensor_digest(tensor.t())
    with torch.no_grad():
        assert tensor_digest(tensor.t()) == outside
    with torch.inference_mode():
        assert tensor_digest(tensor.t()) == outside


def test_plain_returns_the_tensor_itself_when_it_can():
    tensor = torch.randn(3, 4)
    assert plain(tensor) is tensor
    assert plain(tensor.t()).is_contiguous()


@pytest.mark.parametrize("threads", [1, 2])
def test_thread_count_does_not_matter(threads):
    before = torch.get_num_threads()
    array = np.arange(300_000, dtype=np.float32).reshape(300, 1000)
    try:
        torch.set_num_threads(threads)
        assert tensor_digest(torch.tensor(array).t()) == reference.digest("float32", (1000, 300), array.T.tobytes())
    finally:
        torch.set_num_threads(before)


def test_arrays_and_numbers_digest_without_torch_types():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    leaf = digest_leaf(array)
    assert (leaf.dtype, leaf.shape, leaf.unsupported) == ("float32", (2, 3), "")
    assert digest_leaf(array.T.copy()).digest != leaf.digest
    assert digest_leaf(np.asfortranarray(array)).digest == leaf.digest
    assert digest_leaf(1.5).dtype == "value"
    assert digest_leaf(1.5) == digest_leaf(np.float64(1.5)) or digest_leaf(np.float64(1.5)).dtype == "float64"
    assert digest_leaf(struct.unpack("<d", b"\0" * 7 + b"\x80")[0]).digest != digest_leaf(0.0).digest


class Explodes(dict):
    def items(self):
        raise RuntimeError("boom")


class Shaped:
    shape = property(lambda self: 1 / 0)


@pytest.mark.parametrize("value", [object(), Explodes(a=1), Shaped(), np.array([object()]), [torch.ones(2)], len, int])
def test_digest_leaf_never_raises(value):
    leaf = digest_leaf(value)
    assert leaf.digest == 0 and leaf.unsupported
