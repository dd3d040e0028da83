"""Digests of tensors in host memory: xxhash straight over `data_ptr()`, no copy, no `.numpy()`.

`.numpy()` on a user's tensor would make its storage non-resizable for good, and FSDP then fails; a ctypes view of the
same memory does not. Legend: a *view* is a ctypes array over the bytes of a tensor; it is only valid while the tensor
is, so nothing here outlives the call except through `HostDigester`, which checks the pointer every time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.spec import CHUNK, DTYPE_CODES, chunk_digests, chunks, composite_digest, header, leaf_digest

SPARSE_PARTS: dict[torch.layout, tuple[str, tuple[str, ...]]] = {
    torch.sparse_coo: ("sparse_coo", ("_indices", "_values")),
    torch.sparse_csr: ("sparse_csr", ("crow_indices", "col_indices", "values")),
    torch.sparse_csc: ("sparse_csc", ("ccol_indices", "row_indices", "values")),
    torch.sparse_bsr: ("sparse_bsr", ("crow_indices", "col_indices", "values")),
    torch.sparse_bsc: ("sparse_bsc", ("ccol_indices", "row_indices", "values")),
}

_OWN = (torch.Tensor, torch.nn.Parameter)
"""Classes known to own the memory they show; a subclass may not."""

_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype without the prefix: `float32`."""
    name = _NAMES.get(dtype)
    if name is None:
        name = _NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def unsupported_reason(tensor: torch.Tensor) -> str:
    """Why the bytes of a tensor cannot be read; empty when they can."""
    if tensor.is_meta:
        return "a meta tensor has no data"
    if tensor.is_quantized:
        return f"quantised tensor ({dtype_name(tensor.dtype)})"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.layout is not torch.strided and tensor.layout not in SPARSE_PARTS:
        return f"layout {tensor.layout}"
    if dtype_name(tensor.dtype) not in DTYPE_CODES:
        return f"dtype {dtype_name(tensor.dtype)}"
    return _missing_memory(tensor) if tensor.layout is torch.strided else ""


def _missing_memory(tensor: torch.Tensor) -> str:
    """Why the memory a strided tensor speaks of is not there. Reading it all the same would end the user's process."""
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":
        return f"a {type(tensor).__name__} has no data"
    if tensor.is_contiguous():
        needed = tensor.storage_offset() * tensor.itemsize + tensor.nbytes
    else:
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        needed = (tensor.storage_offset() + 1 + reach) * tensor.itemsize if tensor.numel() else 0
    held = storage.nbytes()
    if tensor.nbytes and held < needed:
        return f"its storage holds {held} of the {needed} bytes it needs (freed or resized)"
    if tensor.nbytes and not tensor.data_ptr():  # a wrapper subclass such as DTensor claims bytes it does not own
        return f"a {type(tensor).__name__} has no memory of its own"
    return ""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A strided, contiguous host tensor with the same logical bytes: the tensor itself when it is one already.

    Device tensors are copied to the host; expanded, transposed, conjugated and negated views are materialised.
    Raises UnsupportedLeafError.
    """
    if _is_plain(tensor):
        return tensor
    reason = unsupported_reason(tensor)
    if reason:
        raise UnsupportedLeafError(reason)
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    with torch.no_grad():
        if tensor.dtype is torch.bool:  # torch's copy of a bool may turn a byte of 2 into 1
            return tensor.detach().view(torch.uint8).contiguous().cpu().view(torch.bool)
        return tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is surely one that `plain` returns as it is: the usual case, in as few reads as it takes."""
    return (
        type(tensor) in _OWN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and dtype_name(tensor.dtype) in DTYPE_CODES
        and tensor.storage_offset() * tensor.itemsize + tensor.nbytes <= tensor.untyped_storage().nbytes()
    )


def view(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """A ctypes view of a plain tensor's bytes (see `plain`)."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


def _bytes(source: torch.Tensor) -> memoryview:
    return memoryview(view(source)).cast("B")


def tensor_digest(tensor: torch.Tensor) -> int:
    """The 64-bit digest of one tensor of any layout the format knows. Raises UnsupportedLeafError."""
    try:
        if tensor.layout in SPARSE_PARTS:
            return _sparse_digest(tensor)
        source = plain(tensor)
        if source.nbytes <= CHUNK:
            return leaf_digest(_header(source), xxh3_64_digest(view(source)) if source.nbytes else b"")
        return leaf_digest(_header(source), chunk_digests(_bytes(source)))
    except RuntimeError as error:
        # Wrapper subclasses (fake, functional, some distributed tensors) own no memory and say so from data_ptr().
        raise UnsupportedLeafError(f"{type(tensor).__name__}: {str(error).splitlines()[0]}") from error


def _sparse_digest(tensor: torch.Tensor) -> int:
    reason = unsupported_reason(tensor)
    if reason:
        raise UnsupportedLeafError(reason)
    name, parts = SPARSE_PARTS[tensor.layout]
    whole = tensor.detach()
    # Entries of an uncoalesced tensor stay as they are: their order is state, and coalescing sums in that order.
    return composite_digest(name, tensor.shape, [tensor_digest(getattr(whole, part)()) for part in parts])


class HostDigester:
    """Digests of one list of tensors step after step, for small leaves at about 0.2 microseconds each.

    The i-th tensor must be the same piece of state at every call (the i-th parameter, its gradient). Views of the
    memory and headers are kept between calls and rebuilt when a pointer changes, so `p.data = ...`, `set_` and fresh
    gradients are always seen. Dtype, shape, stride and lazy bits (conjugate, negative) are checked at every rebuild
    and at every `METADATA_PERIOD`-th call: reading them costs more than hashing 512 bytes, and torch refuses to change
    them in place on a parameter outside `no_grad`. Holds no tensor alive.

    Small leaves (one chunk) share a slab of headers, each with 8 bytes left for its chunk digest; a leaf of several
    chunks has a view for each of them; whatever is not plain host memory (sparse, empty, transposed, on a device) goes
    through `tensor_digest` at every call.
    """

    METADATA_PERIOD = 32

    def __init__(self) -> None:
        self._pointers: list[int] = []
        self._metadata: list[list[object]] = []
        self._calls = 0
        self._small: list[int] = []  # indices into the list of tensors; parallel to views and rows
        self._views: list[ctypes.Array[ctypes.c_char]] = []
        self._slab = np.zeros(0, np.uint64)
        self._slots = np.zeros(0, np.intp)
        self._rows: list[memoryview] = []
        self._large: list[tuple[int, bytes, list[memoryview | bytes]]] = []
        self._other: list[int] = []

    def digest(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """The digests of `tensors` in order. Raises UnsupportedLeafError for one that cannot be read."""
        self._calls += 1
        try:
            pointers = list(map(torch.Tensor.data_ptr, tensors))
        except RuntimeError:  # a sparse tensor has no pointer
            return list(map(tensor_digest, tensors))
        if pointers != self._pointers or (self._calls % self.METADATA_PERIOD == 0 and self._metadata != _meta(tensors)):
            self._rebuild(tensors, pointers)
        small: list[int] = []
        if self._rows:
            self._slab[self._slots] = np.frombuffer(b"".join(map(xxh3_64_digest, self._views)), np.uint64)
            small = list(map(xxh3_64_intdigest, self._rows))
            if len(small) == len(tensors):
                return small
        found = dict(zip(self._small, small, strict=True))
        for index, head, views in self._large:
            found[index] = leaf_digest(head, b"".join(map(xxh3_64_digest, views)))
        for index in self._other:
            found[index] = tensor_digest(tensors[index])
        return [found[index] for index in range(len(tensors))]

    def _rebuild(self, tensors: Sequence[torch.Tensor], pointers: list[int]) -> None:
        """Sort the tensors into small, large and other, and cache views and headers of the first two."""
        self._pointers, self._metadata = [], []  # an error below must not leave a cache that looks valid
        self._small, self._large, self._other = [], [], []
        for index, tensor in enumerate(tensors):
            if not tensor.nbytes or plain(tensor) is not tensor:
                self._other.append(index)
            elif tensor.nbytes <= CHUNK:
                self._small.append(index)
            else:
                self._large.append((index, _header(tensor), chunks(_bytes(tensor))))
        self._cache_small([tensors[index] for index in self._small])
        self._pointers, self._metadata = pointers, _meta(tensors)

    def _cache_small(self, tensors: Sequence[torch.Tensor]) -> None:
        heads = [_header(tensor) + bytes(8) for tensor in tensors]
        ends = np.cumsum([len(head) for head in heads], dtype=np.intp)
        self._slab = np.array(np.frombuffer(b"".join(heads), np.uint64))
        self._slots = ends // 8 - 1
        self._views = [view(tensor) for tensor in tensors]
        slab = memoryview(self._slab).cast("B") if heads else memoryview(b"")
        self._rows = [slab[end - len(head) : end] for end, head in zip(ends.tolist(), heads, strict=True)]


def _header(tensor: torch.Tensor) -> bytes:
    return _header_of(tensor.dtype, tensor.shape)


@lru_cache(maxsize=4096)
def _header_of(dtype: torch.dtype, shape: torch.Size) -> bytes:
    return header(dtype_name(dtype), shape, shape.numel() * dtype.itemsize)


_METADATA: tuple[Callable[[torch.Tensor], object], ...] = (
    torch.Tensor.size,
    torch.Tensor.stride,
    torch.Tensor.dtype.__get__,  # type: ignore[attr-defined]
    torch.Tensor.is_conj,
    torch.Tensor.is_neg,
)


def _meta(tensors: Sequence[torch.Tensor]) -> list[list[object]]:
    return [list(map(read, tensors)) for read in _METADATA]
