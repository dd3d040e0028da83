"""What goes into an operator and what comes out: its tensors, their content, its plain values, its generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.host import tensor_digest
from detaudit.explain.operators import Operator
from detaudit.explain.reseeds import number_of

MAX_TEXT = 200


def content(tensor: torch.Tensor) -> int | None:
    """The digest of what a tensor holds; None where its bytes cannot be read. Of an expanded tensor the elements that
    repeat are read once: it may be larger than the memory."""
    try:
        if tensor.layout is torch.strided and not tensor.is_contiguous() and 0 in tensor.stride():
            base = tensor.detach()
            for dim in reversed(range(tensor.dim())):
                if tensor.stride(dim) == 0 and tensor.size(dim) > 1:
                    base = base.select(dim, 0)
            text = f"{tuple(tensor.shape)}:{tensor_digest(base):016x}"
            return xxh3_64_intdigest(text.encode())
        return tensor_digest(tensor)
    except (UnsupportedLeafError, RuntimeError):
        return None


def outputs(operator: Operator, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """What an operator wrote and returned, each tensor once."""
    written = list(written_tensors(operator, args, kwargs))
    return [*written, *(tensor for tensor in _tensors(result) if not any(tensor is other for other in written))]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner)


def _arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[int | str, Any]]:
    yield from enumerate(args)
    yield from kwargs.items()


def read_tensors(operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors whose content goes into an operator."""
    for key, value in _arguments(args, kwargs):
        if key not in operator.unread:
            yield from _tensors(value)


def written_tensors(operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes in place."""
    for key, value in _arguments(args, kwargs) if operator.written else ():
        if key in operator.written:
            yield from _tensors(value)


def plain_values(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """The arguments that are no tensors, as text; a long one ends in a hash of the whole."""
    for key, value in _arguments(args, kwargs):
        if (
            value is None
            or isinstance(value, torch.Tensor | torch._C.Generator)
            or next(_tensors(value), None) is not None
        ):
            continue
        text = repr(value)
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}... {xxh3_64_hexdigest(text.encode())}"
        yield text if isinstance(key, int) else f"{key}={text}"


def generator_state(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Which generator a random operator draws from, and the digest of its state."""
    generator = _given(args, kwargs) or torch.default_generator
    kind = "torch" if generator is torch.default_generator else f"own {generator.device}"
    return f"{kind}:{tensor_digest(generator.get_state()):016x}"


def own_generator(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Which of the program's own generators a random operator draws from, 0 for another."""
    given = _given(args, kwargs)
    return 0 if given is None else number_of(given)


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch._C.Generator | None:
    return next((value for _, value in _arguments(args, kwargs) if isinstance(value, torch._C.Generator)), None)


def storage_bytes(tensor: torch.Tensor) -> int | None:
    """The bytes of the storage below a tensor; None for one that has no single storage."""
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else None
