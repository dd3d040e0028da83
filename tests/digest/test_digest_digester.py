"""`HostDigester` over steps: equal to `tensor_digest` of each tensor whatever happened to the tensors in between."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.host import HostDigester, tensor_digest


def each(tensors):
    return [tensor_digest(tensor) for tensor in tensors]


def replace(tensors, i):
    tensors[i].data = torch.randn(tensors[i].shape)


def in_place(tensors, i):
    with torch.no_grad():
        tensors[i].add_(1.0)


def resize(tensors, i):
    tensors[i].data = torch.randn(i + 2, 3)


def retype(tensors, i):
    tensors[i] = torch.nn.Parameter(tensors[i].detach().to(torch.bfloat16).clone())


def transpose(tensors, i):
    tensors[i] = torch.randn(3, 5).t()


def empty(tensors, i):
    tensors[i] = torch.zeros(0, i)


def large(tensors, i):
    tensors[i] = torch.randn(20_000 + i)


def set_storage(tensors, i):
    with torch.no_grad():
        tensors[i].set_(torch.randn(7).to(tensors[i].dtype))


def swap(tensors, i):
    tensors[i], tensors[0] = tensors[0], tensors[i]


def longer(tensors, i):
    tensors.append(torch.randn(i + 1))


def shorter(tensors, i):
    del tensors[i:]


EVENTS = [replace, in_place, resize, retype, transpose, empty, large, set_storage, swap, longer, shorter]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5)), max_size=12))
def test_equals_tensor_digest_over_any_history(events):
    tensors = [torch.nn.Parameter(torch.randn(index + 1, 3)) for index in range(6)]
    digester = HostDigester()
    assert digester.digest(tensors) == each(tensors)
    for event, index in events:
        if tensors and index < len(tensors):
            event(tensors, index)
        assert digester.digest(tensors) == each(tensors)


def test_training_with_fresh_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    parameters, gradients = HostDigester(), HostDigester()
    for _ in range(40):
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(3, 4)).square().sum().backward()
        fresh = [parameter.grad for parameter in model.parameters()]
        assert gradients.digest(fresh) == each(fresh)
        optimizer.step()
        assert parameters.digest(list(model.parameters())) == each(model.parameters())


def same_pointer_changes():
    base = torch.randn(4, 4)
    complex_base = torch.randn(4, dtype=torch.complex64)
    real = torch.nn.Parameter(base)
    imaginary = torch.nn.Parameter(complex_base)
    yield "transposed", real, lambda: setattr(real, "data", base.t())
    yield "shape", real, lambda: setattr(real, "data", base.view(2, 8))
    yield "shorter", real, lambda: setattr(real, "data", base[:2])
    yield "conjugated", imaginary, lambda: setattr(imaginary, "data", complex_base.conj())


@pytest.mark.parametrize("name", ["transposed", "shape", "shorter", "conjugated"])
def test_metadata_that_changes_under_the_same_pointer_is_seen_within_a_period(name):
    tensor, change = next((tensor, change) for case, tensor, change in same_pointer_changes() if case == name)
    digester = HostDigester()
    assert digester.digest([tensor]) == each([tensor])
    pointer = tensor.data_ptr()
    change()
    assert tensor.data_ptr() == pointer
    found = [digester.digest([tensor]) for _ in range(HostDigester.METADATA_PERIOD)]
    assert found[-1] == each([tensor])


def test_dtype_under_the_same_pointer_is_seen_within_a_period():
    words = torch.arange(8, dtype=torch.int32)
    digester = HostDigester()
    digester.digest([words])
    for _ in range(HostDigester.METADATA_PERIOD):
        found = digester.digest([words.view(torch.float32)])
    assert found == each([words.view(torch.float32)])


def test_sparse_tensors_among_the_others():
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,), check_invariants=True)
    tensors = [torch.randn(3), sparse, torch.randn(100_000), torch.zeros(0)]
    digester = HostDigester()
    for _ in range(2):
        assert digester.digest(tensors) == each(tensors)
    tensors[1] = torch.randn(4)
    assert digester.digest(tensors) == each(tensors)


def test_only_large_only_empty_and_no_tensors():
    for tensors in ([torch.randn(70_000), torch.randn(16_385)], [torch.zeros(0), torch.zeros(3, 0)], []):
        digester = HostDigester()
        assert digester.digest(tensors) == digester.digest(tensors) == each(tensors)


def test_large_leaves_are_read_anew_at_every_call():
    tensor = torch.zeros(50_000)
    digester = HostDigester()
    before = digester.digest([tensor])
    tensor[49_999] = 1
    assert digester.digest([tensor]) == each([tensor]) != before


def test_an_unreadable_tensor_raises_and_leaves_no_stale_cache():
    tensors = [torch.randn(3), torch.randn(3)]
    digester = HostDigester()
    digester.digest(tensors)
    tensors[1].untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises(UnsupportedLeafError, match="freed"):
            digester.digest(tensors)
    tensors[1] = torch.randn(3)
    assert digester.digest(tensors) == each(tensors)


def test_holds_no_tensor_alive_and_pins_no_storage():
    tensor, big = torch.randn(8), torch.randn(50_000)
    digester = HostDigester()
    digester.digest([tensor, big])
    tensor.untyped_storage().resize_(0)
    big.untyped_storage().resize_(0)
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None


def test_digesters_do_not_share_state():
    a, b = HostDigester(), HostDigester()
    left, right = [torch.randn(3)], [torch.randn(4), torch.randn(5)]
    assert (a.digest(left), b.digest(right), a.digest(left)) == (each(left), each(right), each(left))
