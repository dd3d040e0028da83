"""Digests of tensors in host memory: xxhash straight over `data_ptr()`, no copy, no `.numpy()`.

`.numpy()` on a user's tensor would make its storage non-resizable for good, and FSDP then fails; a ctypes view of the
same memory does not. Legend: a *view* is a ctypes array over the bytes of a tensor; it is only valid while the tensor
is, so nothing here outlives the call except through `HostDigester`, which checks the pointer every time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.spec import CHUNK, DTYPE_CODES, chunk_digests, composite_digest, header, leaf_digest

SPARSE_PARTS: dict[torch.layout, tuple[str, tuple[str, ...]]] = {
    torch.sparse_coo: ("sparse_coo", ("_indices", "_values")),
    torch.sparse_csr: ("sparse_csr", ("crow_indices", "col_indices", "values")),
    torch.sparse_csc: ("sparse_csc", ("ccol_indices", "row_indices", "values")),
    torch.sparse_bsr: ("sparse_bsr", ("crow_indices", "col_indices", "values")),
    torch.sparse_bsc: ("sparse_bsc", ("ccol_indices", "row_indices", "values")),
}

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
    if tensor.layout is torch.strided or tensor.layout in SPARSE_PARTS:
        return "" if dtype_name(tensor.dtype) in DTYPE_CODES else f"dtype {dtype_name(tensor.dtype)}"
    return f"layout {tensor.layout}"


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A strided, contiguous host tensor with the same logical bytes: the tensor itself when it is one already.

    Device tensors are copied to the host; expanded, transposed, conjugated and negated views are materialised.
    Raises UnsupportedLeafError.
    """
    reason = unsupported_reason(tensor)
    if reason:
        raise UnsupportedLeafError(reason)
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    with torch.no_grad():
        return tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()


def view(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """A ctypes view of a plain tensor's bytes (see `plain`)."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


def tensor_digest(tensor: torch.Tensor) -> int:
    """The 64-bit digest of one tensor of any layout the format knows. Raises UnsupportedLeafError."""
    if tensor.layout in SPARSE_PARTS:
        return _sparse_digest(tensor)
    try:
        source = plain(tensor)
        head = header(dtype_name(source.dtype), source.shape, source.nbytes)
        return leaf_digest(head, chunk_digests(memoryview(view(source)).cast("B")) if source.nbytes else b"")
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
    memory and one slab of headers, each with 8 bytes left for a chunk digest, are kept between calls and rebuilt when
    a pointer changes, so `p.data = ...`, `set_` and fresh gradients are always seen. Shape, stride and dtype are
    checked at every rebuild and at every `METADATA_PERIOD`-th call: reading them costs more than hashing 512 bytes,
    and torch refuses to change them in place on a parameter outside `no_grad`. Holds no tensor alive.
    """

    METADATA_PERIOD = 32

    def __init__(self) -> None:
        self._pointers: list[int] = []
        self._metadata: list[tuple[object, ...]] = []
        self._calls = 0
        self._views: list[ctypes.Array[ctypes.c_char]] = []
        self._slab = np.zeros(0, np.uint64)
        self._slots = np.zeros(0, np.intp)
        self._rows: list[memoryview] = []

    def digest(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """The digests of `tensors`, all strided, in order. Raises UnsupportedLeafError for one that cannot be read."""
        self._calls += 1
        pointers = list(map(torch.Tensor.data_ptr, tensors))
        if pointers != self._pointers or (self._calls % self.METADATA_PERIOD == 0 and self._metadata != _meta(tensors)):
            self._rebuild(tensors, pointers)
        if not self._rows:
            return list(map(tensor_digest, tensors))
        self._slab[self._slots] = np.frombuffer(b"".join(map(xxh3_64_digest, self._views)), np.uint64)
        return list(map(xxh3_64_intdigest, self._rows))

    def _rebuild(self, tensors: Sequence[torch.Tensor], pointers: list[int]) -> None:
        """Cache views and headers, if every tensor is small, plain and not empty; otherwise leave the cache empty."""
        self._pointers, self._metadata, self._rows = pointers, _meta(tensors), []
        if not all(0 < t.nbytes <= CHUNK and t.layout is torch.strided and plain(t) is t for t in tensors):
            return
        heads = [header(dtype_name(t.dtype), t.shape, t.nbytes) + bytes(8) for t in tensors]
        ends = np.cumsum([len(head) for head in heads])
        self._slab = np.frombuffer(bytearray(b"".join(heads)), np.uint64)
        self._slots = ends // 8 - 1
        self._views = [view(tensor) for tensor in tensors]
        rows = memoryview(self._slab).cast("B")
        self._rows = [rows[end - len(head) : end] for end, head in zip(ends.tolist(), heads, strict=True)]


def _meta(tensors: Sequence[torch.Tensor]) -> list[tuple[object, ...]]:
    return [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors]
