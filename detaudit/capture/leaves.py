"""Enumerates model and optimizer state as named leaves, cached between steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from detaudit.capture.naming import Namer, visible_modules
from detaudit.core.errors import UnsupportedLeafError
from detaudit.core.names import join, strip_wrappers
from detaudit.digest.host import HostDigester, dtype_name
from detaudit.digest.select import LeafDigest, PendingDigest, digest_leaf, start_digests

MAX_DEPTH = 8


class Roots:
    """The modules that the user calls or his optimizers train, by label, and the names of all they hold.

    Holds modules and tensors weakly. A tensor in two places has its first name; the others are its aliases.
    """

    def __init__(self, namer: Namer) -> None:
        self._namer = namer
        self._roots: dict[str, weakref.ref[nn.Module]] = {}
        self._paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], list[str]]] = {}

    def path(self, module: nn.Module) -> str:
        """`root.path` of a module of a known root; empty for a stranger."""
        entry = self._paths.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else ""

    def register(self, module: nn.Module) -> str:
        """Make a module a root, unless it belongs to one; returns its label."""
        known = self.path(module)
        if known:
            return known
        label = self._namer.name(module)
        self._roots[label] = weakref.ref(module)
        for path, inner in module.named_modules():
            if not self.path(inner):
                self._paths[id(inner)] = (weakref.ref(inner), join(label, strip_wrappers(path)))
        for path, tensor in _named_tensors(module):
            self._add_name(tensor, join(label, strip_wrappers(path)))
        return label

    def unseen_modules(self) -> list[nn.Module]:
        """The modules that the user's frames name and that belong to no root yet: EMA copies, teachers, owners of
        parameters that are called by other means than `module(...)`."""
        return [module for _, module in visible_modules() if not self.path(module)]

    def names(self, tensor: torch.Tensor) -> list[str]:
        """All names of a parameter or buffer, the first being its own; empty for a stranger."""
        entry = self._tensors.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else []

    def adopt(self, module: nn.Module, tensor: torch.Tensor) -> list[str]:
        """Name a tensor that replaced one of a known module after it was registered (`module.buffer = ...`)."""
        label = self._namer.known(module)
        for path, held in _named_tensors(module):
            if held is tensor:
                self._add_name(tensor, join(label, strip_wrappers(path)))
        return self.names(tensor)

    def alive(self) -> Iterator[tuple[str, nn.Module]]:
        for label, reference in self._roots.items():
            module = reference()
            if module is not None:
                yield label, module

    def _add_name(self, tensor: torch.Tensor, name: str) -> None:
        names = self.names(tensor)
        if not names:
            self._tensors[id(tensor)] = (weakref.ref(tensor), [name])
        elif name not in names:
            names.append(name)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


class Group:
    """A list of tensors digested together step after step: parameters of an optimizer, their gradients, buffers.

    `digests` returns one LeafDigest a tensor. The i-th tensor must be the same piece of state at every call as long
    as the names stay the same; other names begin anew.
    """

    def __init__(self) -> None:
        self._digester = HostDigester()
        self._names: list[str] = []

    def digests(self, names: list[str], tensors: Sequence[torch.Tensor]) -> Sequence[LeafDigest | PendingDigest]:
        if names != self._names:
            self._digester, self._names = HostDigester(), names
        try:
            if tensors and not tensors[0].is_cpu:
                return start_digests(tensors)
            values = self._digester.digest(tensors)
        except (UnsupportedLeafError, RuntimeError, ValueError):
            return [digest_leaf(tensor) for tensor in tensors]
        return [
            LeafDigest(value, dtype_name(tensor.dtype), tuple(tensor.shape))
            for value, tensor in zip(values, tensors, strict=True)
        ]


def optimizer_parameters(optimizer: torch.optim.Optimizer, roots: Roots) -> list[tuple[str, torch.Tensor]]:
    """The parameters of an optimizer in order, by name; one that no module holds is `opt[i]`, i counted over groups."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [(next(iter(roots.names(p)), f"opt[{index}]"), p) for index, p in enumerate(parameters)]


def optimizer_state(
    label: str, optimizer: torch.optim.Optimizer, parameters: Sequence[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, object]]:
    """Hyper-parameters of each group, then the state of each parameter, as (name, value); lists are walked into."""
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params":
                yield from flatten(value, f"optim.{label}.group{index}.{key}")
    for name, parameter in parameters:
        state = optimizer.state.get(parameter)
        if state:
            for key, value in state.items():
                if isinstance(value, torch.Tensor):  # nearly always: spare the generator
                    yield f"optim.{label}.{name}.{key}", value
                else:
                    yield from flatten(value, f"optim.{label}.{name}.{key}")


def flatten(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """The leaves of a nested structure as (name, value): tensors and arrays apart, a container of plain values whole.

    Objects with attributes (a batch class, a dataclass) are walked through their `__dict__`. Nothing is left out: what
    has no exact bytes comes out as it is, and its digest will say that it is unsupported.
    """
    whole = isinstance(value, torch.Tensor | np.ndarray | np.generic)
    if whole or depth > MAX_DEPTH or not _holds_tensors(value, depth):
        yield name, value
        return
    for key, inner in _children(value):
        yield from flatten(inner, f"{name}.{key}", depth + 1)


def _children(value: Any) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", None)
        yield from zip(fields, value, strict=True) if fields else enumerate(value)
    else:
        yield from vars(value).items()


def _holds_tensors(value: Any, depth: int) -> bool:
    """Whether a structure has tensors or arrays somewhere, so that it must be walked into."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return True
    if depth > MAX_DEPTH or isinstance(value, (str, bytes, int, float, type(None), type)):
        return False
    if isinstance(value, (Mapping, list, tuple)) or _walkable(value):
        return any(_holds_tensors(inner, depth + 1) for _, inner in _children(value))
    return False


def _walkable(value: Any) -> bool:
    return hasattr(value, "__dict__") and not callable(value) and not isinstance(value, nn.Module)
