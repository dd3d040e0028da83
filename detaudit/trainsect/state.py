"""The whole state of a training program as named values, taken and put back exactly.

An object of the state is a module, something with `state_dict` and `load_state_dict` (optimizer, scheduler, GradScaler,
EMA ...), a random generator, or a plain value. Of a module everything is taken that its state_dict leaves out: buffers
outside of it, the train/eval flag of every submodule, requires_grad, gradients that are there. What `load_state_dict`
of an optimizer would cast (the state of a bf16 parameter kept in fp32) is put back as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from detaudit.core.errors import UsageError
from detaudit.trainsect import generators

MUTABLE = (dict, list, set, deque)


def take(objects: Mapping[str, Any]) -> dict[str, Any]:
    """The state of named objects, still sharing memory with them; encode it before the training goes on."""
    return {name: _take(value) for name, value in objects.items()}


def _take(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return _take_module(value)
    if isinstance(value, generators.DECLARABLE):
        return value
    if callable(getattr(value, "state_dict", None)):
        return value.state_dict()
    return value() if callable(value) else value


def _take_module(module: nn.Module) -> dict[str, Any]:
    modules = dict(module.named_modules())
    return {
        "param": {name: p.detach() for name, p in module.named_parameters()},
        "buffer": {name: b.detach() for name, b in module.named_buffers()},
        "extra": {path: m.get_extra_state() for path, m in modules.items() if _has_extra(m)},
        "training": {path or ".": m.training for path, m in modules.items()},
        "requires_grad": {name: p.requires_grad for name, p in module.named_parameters()},
        "grad": {name: p.grad.detach() for name, p in module.named_parameters() if p.grad is not None},
    }


def _has_extra(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def put(
    objects: Mapping[str, Any], saved: Mapping[str, Any], set_plain: Callable[[str, Any], None] | None = None
) -> None:
    """Put a decoded state back into the objects. `saved` must be independent memory: parts of it are kept.

    Raises UsageError, naming the object and leaf, when names, shapes or dtypes do not fit."""
    missing, strange = sorted(set(saved) - set(objects)), sorted(set(objects) - set(saved))
    if missing or strange:
        raise UsageError(
            f"the state of the target is {', '.join(sorted(objects)) or 'empty'}; the checkpoint has "
            f"{', '.join(sorted(saved)) or 'nothing'}: name the same objects in both"
        )
    for name, value in objects.items():
        _put(name, value, saved[name], set_plain)


def _put(name: str, value: Any, saved: Any, set_plain: Callable[[str, Any], None] | None) -> None:
    if isinstance(value, nn.Module):
        _put_module(name, value, saved)
    elif isinstance(value, generators.DECLARABLE):
        generators.copy_into(value, saved)
    elif isinstance(value, torch.optim.Optimizer):
        _put_optimizer(name, value, saved)
    elif callable(getattr(value, "load_state_dict", None)):
        value.load_state_dict(saved)
    elif set_plain is not None:
        set_plain(name, saved)
    elif type(value) in MUTABLE and type(saved) is type(value):
        _refill(value, saved)
    elif not _same_plain(value, saved):
        raise UsageError(
            f"{name} is a plain {type(value).__name__}, which cannot be changed in place: give the target a method "
            "restore(name, value), or put it into a dict"
        )


def _same_plain(value: Any, saved: Any) -> bool:
    return type(value) is type(saved) and isinstance(value, int | str | float | None) and value == saved


def _refill(value: Any, saved: Any) -> None:
    value.clear()
    (value.update if isinstance(value, dict | set) else value.extend)(saved)


def _put_module(name: str, module: nn.Module, saved: Mapping[str, Any]) -> None:
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for kind, here in (("param", parameters), ("buffer", buffers)):
        _same_names(f"{name}.{kind}", here, saved[kind])
        for leaf, tensor in here.items():
            _put_tensor(f"{name}.{kind}.{leaf}", tensor, saved[kind][leaf])
    for path, value in saved["extra"].items():
        module.get_submodule(path).set_extra_state(value)
    for path, inner in module.named_modules():
        inner.training = saved["training"].get(path or ".", inner.training)
    for leaf, parameter in parameters.items():
        parameter.requires_grad_(saved["requires_grad"][leaf])
        gradient = saved["grad"].get(leaf)
        parameter.grad = gradient


def _same_names(name: str, here: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    if set(here) != set(saved):
        lost, more = sorted(set(saved) - set(here)), sorted(set(here) - set(saved))
        raise UsageError(
            f"{name}: the target lacks {lost or 'nothing'} and has {more or 'nothing'} beyond the checkpoint"
        )


def _put_tensor(name: str, tensor: torch.Tensor, saved: torch.Tensor) -> None:
    if tensor.shape != saved.shape or tensor.dtype != saved.dtype:
        raise UsageError(
            f"{name}: the target has {tensor.dtype} {list(tensor.shape)}, "
            f"the checkpoint {saved.dtype} {list(saved.shape)}"
        )
    with torch.no_grad():
        if tensor.layout is torch.strided and tensor.stride() != saved.stride():
            tensor.data = torch.empty_strided(saved.shape, saved.stride(), dtype=saved.dtype, device=tensor.device)
        tensor.copy_(saved)


def _put_optimizer(name: str, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    try:
        optimizer.load_state_dict(dict(saved))
    except ValueError as error:
        raise UsageError(f"{name}: the checkpoint does not fit the target's optimizer: {error}") from error
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        if index in saved["state"]:
            # torch casts floating state to the parameter's dtype; bits decide here.
            optimizer.state[parameter] = _on_device(saved["state"][index], parameter.device)


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {
            k: v.to(device) if isinstance(v, torch.Tensor) and k != "step" else _on_device(v, device)
            for k, v in value.items()
        }
    return value
