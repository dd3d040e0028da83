"""The checkpoint codec: exact both ways for what it knows, a refusal with the path for what it does not."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch

from detaudit.core.errors import UnreadableError, UsageError
from detaudit.trainsect import checkpoint
from detaudit.trainsect.codec import Decoder, Encoder

Pair = namedtuple("Pair", "left right")


class Colour(Enum):
    RED = 1


@dataclass
class Meter:
    total: float
    history: list


def round_trip(value, tmp_path):
    entry = checkpoint.write(tmp_path, 3, checkpoint.encode({"x": value}, copy=False))
    return checkpoint.read(entry).decode()["x"]


PLAIN = [
    None,
    True,
    -(2**80),
    0.1,
    -0.0,
    float("inf"),
    1 + 2j,
    "text \ud800",
    b"\0\xff",
    bytearray(b"ab"),
    [1, (2, [3])],
    {1: "a", "b": None, (1, 2): 3.5},
    {3, 1, 2},
    frozenset({"a"}),
    OrderedDict([("z", 1), ("a", 2)]),
    defaultdict(list, {"a": [1]}),
    deque([1, 2], maxlen=5),
    Path("a/b"),
    Colour.RED,
    Pair(1, 2.5),
    Meter(1.5, [1, 2]),
    torch.float16,
    torch.device("cpu"),
    torch.Size([1, 2]),
    np.float64(0.1),
    np.int32(-4),
    np.bool_(True),
    np.datetime64("2026-01-01"),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_values_come_back_exactly(value, tmp_path):
    found = round_trip(value, tmp_path)
    assert type(found) is type(value) and found == value and repr(found) == repr(value)


def test_order_maxlen_and_factory_are_kept(tmp_path):
    assert list(round_trip(OrderedDict([("z", 1), ("a", 2)]), tmp_path)) == ["z", "a"]
    assert round_trip(deque([1], maxlen=5), tmp_path).maxlen == 5
    assert round_trip(defaultdict(list), tmp_path).default_factory is list


def test_the_payload_of_a_nan_is_kept():
    nan = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0].item()
    found = Decoder([]).decode(Encoder().encode(nan, "x"))
    assert np.float64(found).view(np.uint64) == 0x7FF8000000000123


ARRAYS = [
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.zeros((0, 3), np.float32),
    np.array(2.5),
    np.array(["a", "bc"]),
    np.arange(4, dtype=">i4"),
]


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype}{value.shape}")
def test_arrays_come_back_with_dtype_and_order(value, tmp_path):
    found = round_trip(value, tmp_path)
    assert found.dtype == value.dtype and found.shape == value.shape and found.tobytes() == value.tobytes()
    assert found.flags.f_contiguous == value.flags.f_contiguous


TENSORS = [
    torch.randn(3, 4).t(),
    torch.randn(6)[::2],
    torch.ones(1).expand(4),
    torch.randn(2).to(torch.bfloat16),
    torch.randn(2, dtype=torch.complex128),
    torch.zeros(0, 2),
    torch.tensor(float("nan")),
    torch.tensor([True, False]),
    torch.eye(3).to_sparse(),
]


@pytest.mark.parametrize("value", TENSORS, ids=lambda value: f"{value.dtype}{list(value.shape)}")
@pytest.mark.parametrize("copy", [False, True])
def test_tensors_keep_dtype_shape_strides_and_bits(value, copy, tmp_path):
    state = checkpoint.encode({"x": value}, copy=copy)
    found = checkpoint.read(checkpoint.write(tmp_path, 0, state)).decode()["x"]
    again = checkpoint.encode({"x": found}, copy=False)
    assert again.leaves == checkpoint.encode({"x": value}, copy=False).leaves
    if value.layout is torch.strided:
        assert found.stride() == value.stride()


def test_a_view_does_not_drag_its_storage_along(tmp_path):
    entry = checkpoint.write(tmp_path, 0, checkpoint.encode({"x": torch.zeros(100_000)[:2]}, copy=False))
    assert entry.path.stat().st_size < 20_000


def test_one_tensor_met_twice_stays_one(tmp_path):
    shared = torch.ones(2)
    found = round_trip([shared, shared], tmp_path)
    assert found[0] is found[1]


def test_a_copy_is_independent():
    value = torch.ones(2)
    state = checkpoint.encode({"x": value}, copy=True)
    value.zero_()
    assert state.decode()["x"].tolist() == [1, 1]


def _draws(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator).tolist()
    return [generator.random() for _ in range(3)]


GENERATORS = [
    random.Random(3),
    np.random.default_rng(3),
    np.random.Generator(np.random.MT19937(3)),
    np.random.Generator(np.random.Philox(3)),
    np.random.RandomState(3),
    torch.Generator().manual_seed(3),
]


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda value: type(value).__name__)
def test_generators_go_on_where_they_were(generator, tmp_path):
    _draws(generator)
    found = round_trip(generator, tmp_path)
    assert _draws(found) == _draws(generator)


class Unknown:
    pass


@pytest.mark.parametrize(
    "value",
    [Unknown(), lambda: 0, object(), open, np.array([object()]), defaultdict(lambda: 0), torch.empty(2, device="meta")],
)
def test_an_unknown_type_is_refused_with_its_path(value):
    with pytest.raises(UsageError, match=r"state\.ema\.1\.inner"):
        checkpoint.encode({"ema": [0, {"inner": value}]}, copy=False)


def test_a_state_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(UsageError, match="contains itself"):
        checkpoint.encode({"x": loop}, copy=False)


@pytest.mark.parametrize(
    "node",
    [
        ["numpy.generator", "os.system", None],
        ["dataclass", "pathlib", "Path", []],
        ["dataclass", "not_loaded_module", "X", []],
        ["enum", "os", "system", "X"],
        ["namedtuple", "builtins", "list", []],
        ["anything", 1],
        ["float", "zz"],
        ["tensor", 7, False, False],
        [],
    ],
)
def test_a_damaged_or_hostile_node_is_an_error(node):
    with pytest.raises(UnreadableError):
        Decoder([]).decode(node)
