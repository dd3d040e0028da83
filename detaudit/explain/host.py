"""Sees where data crosses between torch and Python below the dispatcher: arrays that become tensors, tensors that are
read as lists or arrays. Only while a window is traced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from detaudit.capture.patch import Patches

MAKES = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack")
READS = ("tolist", "numpy", "__array__")

Seen = Callable[[str, torch.Tensor], None]


def watch(made: Seen, read: Seen) -> Patches:
    """`made(name, tensor)` is called for a tensor made from host data, `read(name, tensor)` before one is read."""
    patches = Patches()
    for name in MAKES:
        patches.wrap(torch, name, partial(_make, made, name))
    for name in READS:
        patches.wrap(torch.Tensor, name, partial(_read, read, name))
    return patches


def _make(made: Seen, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    if isinstance(result, torch.Tensor) and not any(isinstance(value, torch.Tensor) for value in args):
        made(name, result)
    return result


def _read(read: Seen, name: str, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    read(name, tensor)
    return original(tensor, *args, **kwargs)
