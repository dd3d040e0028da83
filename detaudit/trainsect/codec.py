"""Any training state as tensors plus tagged JSON, exact both ways. Nothing is pickled.

A node is None, a bool, an int, a str, or a list `[tag, ...]`. Tensors go into a list of their own and a node names
them by place; one tensor object met twice is one entry, so it comes back as one object. `NODES` below names every
type that is understood; anything else raises UsageError with its path in the state. Enum members, dataclasses and
named tuples come back only from modules that are loaded already: decoding imports nothing and calls no constructor.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import sys
from array import array
from collections import OrderedDict, defaultdict, deque
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from detaudit.core.errors import UnreadableError, UsageError

BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
FACTORIES = {"list": list, "dict": dict, "int": int, "float": float, "set": set, "": None}
MAX_DEPTH = 64


def dumps(node: object) -> str:
    return json.dumps(node, separators=(",", ":"), allow_nan=False)


class Encoder:
    """Encodes values; `tensors` receives their tensors. `copy` makes them independent of the program's."""

    def __init__(self, copy: bool = False) -> None:
        self.tensors: list[torch.Tensor] = []
        self._copy = copy
        self._places: dict[int, int] = {}
        self._kept: list[object] = []  # keeps ids from being given out again

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        """The node of a value. Raises UsageError, naming `path`, for a type that has no exact form."""
        if depth > MAX_DEPTH:
            raise UsageError(f"{path}: nested deeper than {MAX_DEPTH}, or it contains itself; it cannot be saved")
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return ["float", struct.pack(">d", value).hex()]
        if kind is complex:
            return ["complex", struct.pack(">dd", value.real, value.imag).hex()]
        if kind in (bytes, bytearray):
            return [kind.__name__, value.hex()]
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        found = (
            self._container(value, path, depth) or self._numeric(value, path, depth) or self._named(value, path, depth)
        )
        if found is None:
            raise UsageError(
                f"{path}: a {kind.__module__}.{kind.__qualname__} has no exact form in a checkpoint and is never "
                "pickled; give it a state_dict of plain values and tensors, or leave it out of the declared state"
            )
        return found

    def _tensor(self, value: torch.Tensor, path: str) -> Any:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise UsageError(f"{path}: a tensor of class {type(value).__name__} has no exact form in a checkpoint")
        if value.is_meta or value.is_quantized or value.is_nested:
            raise UsageError(f"{path}: a meta, quantised or nested tensor has no exact form in a checkpoint")
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = self._put(owned(value.detach(), self._copy), value)
        return ["tensor", place, value.requires_grad, type(value) is torch.nn.Parameter]

    def _put(self, tensor: torch.Tensor, kept: object) -> int:
        self._kept.append(kept)
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _container(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind in (list, tuple, torch.Size, deque):
            inner = [self.encode(item, f"{path}.{i}", depth + 1) for i, item in enumerate(value)]
            return ["deque", inner, value.maxlen] if kind is deque else [kind.__name__, inner]
        if kind in (set, frozenset):
            nodes = [self.encode(item, f"{path}{{}}", depth + 1) for item in value]
            return [kind.__name__, sorted(nodes, key=dumps)]  # the order of a set is no state
        if kind in (dict, OrderedDict, defaultdict):
            rows = [
                [self.encode(k, f"{path}.<key>", depth + 1), self.encode(v, f"{path}.{k}", depth + 1)]
                for k, v in value.items()
            ]
            return ["defaultdict", rows, self._factory(value, path)] if kind is defaultdict else [kind.__name__, rows]
        return None

    def _factory(self, value: defaultdict[Any, Any], path: str) -> str:
        for name, factory in FACTORIES.items():
            if value.default_factory is factory:
                return name
        raise UsageError(f"{path}: the default_factory {value.default_factory!r} of a defaultdict cannot be saved")

    def _numeric(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, np.generic) and value.dtype.kind in "biufcmMSU":
            return ["numpy.scalar", value.dtype.str, np.asarray(value).tobytes().hex()]
        if kind is np.ndarray:
            return self._array(value, path)
        if kind is np.random.Generator and type(value.bit_generator).__name__ in BIT_GENERATORS:
            bits = value.bit_generator
            return ["numpy.generator", type(bits).__name__, self.encode(bits.state, f"{path}.state", depth + 1)]
        if kind is np.random.RandomState:
            return ["numpy.randomstate", self.encode(value.get_state(legacy=False), f"{path}.state", depth + 1)]
        if kind is random.Random:
            version, words, gauss = value.getstate()
            packed = torch.frombuffer(bytearray(array("Q", words).tobytes()), dtype=torch.uint8)
            return ["python.random", version, self._put(packed, packed), self.encode(gauss, path, depth + 1)]
        if kind is torch.Generator:
            state = value.get_state()
            return ["torch.generator", str(value.device), self._put(state, state)]
        return None

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        if value.dtype.kind not in "biufcmMSU":
            raise UsageError(f"{path}: a numpy array of dtype {value.dtype} has no exact form in a checkpoint")
        fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        data = torch.frombuffer(bytearray(value.tobytes("F" if fortran else "C")) or bytearray(1), dtype=torch.uint8)
        return ["numpy.array", value.dtype.str, list(value.shape), "F" if fortran else "C", self._put(data, data)]

    def _named(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, torch.dtype | torch.device):
            return [f"torch.{kind.__name__}", str(value)]
        if isinstance(value, PurePath):
            return ["path", str(value)] if kind is type(Path()) else None
        if isinstance(value, Enum):
            return ["enum", kind.__module__, kind.__qualname__, value.name]
        if dataclasses.is_dataclass(value) and hasattr(value, "__dict__"):
            rows = [[k, self.encode(v, f"{path}.{k}", depth + 1)] for k, v in vars(value).items()]
            return ["dataclass", kind.__module__, kind.__qualname__, rows]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            inner = [self.encode(item, f"{path}.{n}", depth + 1) for n, item in zip(kind._fields, value, strict=True)]
            return ["namedtuple", kind.__module__, kind.__qualname__, inner]
        return None


def owned(tensor: torch.Tensor, copy: bool) -> torch.Tensor:
    """The tensor without a larger storage behind it, strides kept; an independent one where `copy` says so."""
    if tensor.layout is not torch.strided:
        return tensor.clone() if copy else tensor
    tensor = tensor.resolve_conj().resolve_neg()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = span * tensor.element_size() if tensor.numel() else 0
    overlapping = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.untyped_storage().nbytes() == needed and not copy:
        return tensor
    if overlapping:
        base = torch.empty(max(span, 1) if tensor.numel() else 0, dtype=tensor.dtype, device=tensor.device)
        flat = tensor.as_strided((span,), (1,)) if tensor.numel() else base
        return base.copy_(flat).as_strided(tensor.shape, tensor.stride())
    fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(tensor)


class Decoder:
    """The inverse of Encoder. Raises UnreadableError for a node that no Encoder writes."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._given: dict[int, torch.Tensor] = {}

    def decode(self, node: Any) -> Any:
        if node is None or type(node) in (bool, int, str):
            return node
        try:
            return self._tagged(node[0], node[1:])
        except UnreadableError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, struct.error, RuntimeError) as error:
            raise UnreadableError(f"a checkpoint holds a damaged node {str(node)[:80]}: {error}") from error

    def _tagged(self, tag: str, rest: list[Any]) -> Any:
        plain = {"list": list, "tuple": tuple, "Size": torch.Size, "set": set, "frozenset": frozenset}
        if tag in plain:
            return plain[tag](self.decode(item) for item in rest[0])  # type: ignore[operator]
        if tag in ("dict", "OrderedDict", "defaultdict"):
            rows = [(self.decode(k), self.decode(v)) for k, v in rest[0]]
            return (
                dict(rows)
                if tag == "dict"
                else OrderedDict(rows)
                if tag[0] == "O"
                else defaultdict(FACTORIES[rest[1]], rows)
            )
        if tag == "tensor":
            return self._tensor(*rest)
        if tag == "float":
            return struct.unpack(">d", bytes.fromhex(rest[0]))[0]
        if tag == "complex":
            return complex(*struct.unpack(">dd", bytes.fromhex(rest[0])))
        if tag in ("bytes", "bytearray"):
            return bytes.fromhex(rest[0]) if tag == "bytes" else bytearray.fromhex(rest[0])
        if tag == "deque":
            return deque((self.decode(item) for item in rest[0]), rest[1])
        return self._numeric(tag, rest)

    def _tensor(self, place: int, requires_grad: bool, parameter: bool) -> torch.Tensor:
        if place not in self._given:
            tensor = self._tensors[place]
            found = torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)
            self._given[place] = found
        return self._given[place]

    def _numeric(self, tag: str, rest: list[Any]) -> Any:
        if tag == "numpy.scalar":
            return np.frombuffer(bytes.fromhex(rest[1]), np.dtype(rest[0]))[0]
        if tag == "numpy.array":
            dtype, shape, order, place = rest
            count = int(np.prod(shape)) * np.dtype(dtype).itemsize
            data = self._tensors[place].numpy().tobytes()[:count]
            return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape, order=order)
        if tag == "numpy.generator":
            if rest[0] not in BIT_GENERATORS:
                raise UnreadableError(f"a checkpoint names the bit generator {rest[0]!r}, which is unknown")
            bits = getattr(np.random, rest[0])()
            bits.state = self.decode(rest[1])
            return np.random.Generator(bits)
        if tag == "numpy.randomstate":
            state = np.random.RandomState()
            state.set_state(self.decode(rest[0]))
            return state
        if tag == "python.random":
            words = array("Q", self._tensors[rest[1]].numpy().tobytes())
            python = random.Random()
            python.setstate((rest[0], tuple(words), self.decode(rest[2])))
            return python
        if tag == "torch.generator":
            generator = torch.Generator(rest[0])
            generator.set_state(self._tensors[rest[1]])
            return generator
        return self._named(tag, rest)

    def _named(self, tag: str, rest: list[Any]) -> Any:
        if tag == "torch.device":
            return torch.device(rest[0])
        if tag == "torch.dtype":
            found = getattr(torch, rest[0].removeprefix("torch."), None)
            if isinstance(found, torch.dtype):
                return found
        if tag == "path":
            return Path(rest[0])
        if tag == "enum":
            return _loaded(rest[0], rest[1], Enum).__members__[rest[2]]
        if tag == "dataclass":
            cls = _loaded(rest[0], rest[1], object)
            if not dataclasses.is_dataclass(cls):
                raise UnreadableError(f"{rest[0]}.{rest[1]} of a checkpoint is no dataclass")
            value = object.__new__(cls)
            vars(value).update({key: self.decode(inner) for key, inner in rest[2]})
            return value
        if tag == "namedtuple":
            return tuple.__new__(_loaded(rest[0], rest[1], tuple), [self.decode(item) for item in rest[2]])
        raise UnreadableError(f"a checkpoint holds a node of unknown kind {tag!r}")


def _loaded(module: str, qualname: str, base: type) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, base):
        raise UnreadableError(
            f"a checkpoint holds a {module}.{qualname}, which this program has not loaded; import it first"
        )
    return found
