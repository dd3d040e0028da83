"""Runs an operator again on clones of its inputs: results that differ prove that the operator itself is at fault.

The clones keep strides, offsets and shared storages, so the same kernel runs; only what the operator writes is cloned,
before it runs, and again for each repeat. Nothing of the user's is touched, and no generator is consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

CONFIRM = 10
"""Repeats at least, once one of them differed: enough for a rate."""

PATIENCE = 40
"""Repeats of an operator that is known to race, until one differs: on a busy machine its threads seldom meet."""

Digests = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], list[int | None]]


class Snapshot:
    """The storages that an operator is about to write, as they are before it."""

    def __init__(self, written: list[torch.Tensor]) -> None:
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        for tensor in written:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._saved:
                self._saved[storage._cdata] = (storage, storage.clone())

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments over fresh copies of the saved storages; what is not written is handed on as it is."""
        fresh = {key: saved.clone() for key, (_, saved) in self._saved.items()}
        return tuple(_moved(value, fresh) for value in args), {k: _moved(v, fresh) for k, v in kwargs.items()}


def _moved(value: Any, fresh: Mapping[int, torch.UntypedStorage]) -> Any:
    if isinstance(value, torch.Tensor):
        storage = fresh.get(value.untyped_storage()._cdata) if fresh and value.layout is torch.strided else None
        if storage is None:
            return value
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(storage, value.storage_offset(), value.size(), value.stride())
    if isinstance(value, list | tuple):
        return [_moved(inner, fresh) for inner in value]
    return value


def can_rerun(tensors: list[torch.Tensor]) -> bool:
    """Whether all tensors are plain: a subclass may do anything when it is handed to an operator."""
    return all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not tensor.is_meta for tensor in tensors
    )


def repeat(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    before: Snapshot | None,
    outcome: list[int | None],
    digests: Digests,
    times: int,
) -> tuple[int, int, int] | None:
    """(differing, total, distinct): how many of the repeats gave other digests than `outcome`, of how many, and how
    many different results there were with the original. None where a digest is missing."""
    if not times or None in outcome:
        return None
    results = {tuple(outcome)}
    differing = total = 0
    while total < (CONFIRM if differing else times):
        again, more = before.arguments(args, kwargs) if before is not None else (args, dict(kwargs))
        found = digests(func(*again, **more), again, more)
        total += 1
        differing += found != outcome
        results.add(tuple(found))
    return differing, total, len(results)
