"""Digests on the device: all leaves of a call in one launch of `kernels/leaf_digest.cu`, read back once a step.

`DeviceDigester.start` writes a table of (address, bytes, first chunk, message, header words), starts the kernels on
torch's current stream and returns without waiting. The roots of every call since the last reading lie in one
`Batch`, which the first reading copies into pinned memory in one piece.

What memory it is: pointers come from `data_ptr()`, everything is allocated by torch, whose allocator knows the
stream; `record_stream` tells it about inputs of other streams. Copies that had to be made (non-contiguous, conjugate)
and tables are held by their batch until its event has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest.host import SPARSE_PARTS, dtype_name
from detaudit.digest.launcher import Launcher
from detaudit.digest.portable import flat_bytes
from detaudit.digest.spec import CHUNK, composite_digest, header

SOURCE, BLOCK = "leaf_digest", 256
ROW_WORDS = 5
BATCH_ROOTS = 4096
CAPTURING = (
    "a CUDA graph is being captured, so nothing can be read now; record outside of the capture "
    "(a replay of the graph runs no Python)"
)


class Batch:
    """Roots that are computed but not yet read: `roots` int64 on the device, filled from the front."""

    def __init__(self, device: torch.device, capacity: int) -> None:
        self.roots = torch.empty(capacity, dtype=torch.int64, device=device)
        self.used = 0
        self.held: list[torch.Tensor] = []
        self._values: list[int] | None = None

    @property
    def read(self) -> bool:
        return self._values is not None

    def values(self) -> list[int]:
        """All roots; the first call copies them to the host and waits for that copy alone."""
        if self._values is None:
            source = self.roots[: self.used]
            on_gpu = source.is_cuda
            host = torch.empty(self.used, dtype=torch.int64, pin_memory=on_gpu)
            host.copy_(source, non_blocking=on_gpu)
            if on_gpu:
                done = torch.cuda.Event()  # type: ignore[no-untyped-call,unused-ignore]
                done.record(torch.cuda.current_stream(source.device))
                done.synchronize()
            self._values = [value & 0xFFFFFFFFFFFFFFFF for value in host.tolist()]
            self.held.clear()
        return self._values


class DeviceDigester:
    """Digests of tensors of one device. Not thread-safe; the recorder calls it under its lock."""

    def __init__(self, device: torch.device, launcher: Launcher) -> None:
        self._device = device
        self._launcher = launcher
        self._batch = Batch(device, BATCH_ROOTS)

    def digest(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """The digests of `tensors` in order, waiting for them. Raises UnsupportedLeafError."""
        return [read() for read in self.start(tensors)]

    def start(self, tensors: Sequence[torch.Tensor]) -> list[Callable[[], int]]:
        """Start the digests of `tensors` as they are now in stream order; each result, when called, is the digest.

        Raises UnsupportedLeafError before anything has started.
        """
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise UnsupportedLeafError(CAPTURING)
        if any(tensor.layout in SPARSE_PARTS for tensor in tensors):
            return [self._sparse(t) if t.layout in SPARSE_PARTS else self.start([t])[0] for t in tensors]
        for tensor in tensors:
            if tensor.device != self._device:
                raise UnsupportedLeafError(f"a tensor on {tensor.device} was given to the digester of {self._device}")
        if not tensors:
            return []
        flats = [flat_bytes(tensor) for tensor in tensors]
        batch = self._room(len(tensors))
        start = batch.used
        batch.used += len(tensors)
        self._start(tensors, flats, batch, start)
        return [lambda index=start + index: batch.values()[index] for index in range(len(tensors))]  # type: ignore[misc]

    def _room(self, count: int) -> Batch:
        if self._batch.read or self._batch.used + count > len(self._batch.roots):
            self._batch = Batch(self._device, max(BATCH_ROOTS, count))
        return self._batch

    def _start(self, tensors: Sequence[torch.Tensor], flats: Sequence[torch.Tensor], batch: Batch, start: int) -> None:
        table, message_start, chunks = plan(tensors, [flat.data_ptr() for flat in flats])
        words = torch.from_numpy(table)
        on_gpu = self._device.type == "cuda"
        held = (words.pin_memory() if on_gpu else words).to(self._device, non_blocking=on_gpu)
        batch.held += [held, *(flat for flat, t in zip(flats, tensors, strict=True) if _copied(flat, t))]
        if on_gpu:
            stream = torch.cuda.current_stream(self._device)
            for flat in flats:
                flat.record_stream(stream)
        rows, messages = np.uint64(held.data_ptr()), np.uint64(held.data_ptr() + 8 * message_start)
        roots = np.uint64(batch.roots.data_ptr() + 8 * start)
        if chunks:
            arguments = (rows, np.uint32(len(tensors)), messages)
            self._launcher.launch(SOURCE, "leaf_chunks", chunks, BLOCK, arguments)
        self._launcher.launch(SOURCE, "leaf_roots", len(tensors), BLOCK, (rows, messages, roots))

    def _sparse(self, tensor: torch.Tensor) -> Callable[[], int]:
        name, parts = SPARSE_PARTS[tensor.layout]
        whole, shape = tensor.detach(), tensor.shape
        started = self.start([getattr(whole, part)() for part in parts])
        return lambda: composite_digest(name, shape, [read() for read in started])


def _copied(flat: torch.Tensor, tensor: torch.Tensor) -> bool:
    return bool(flat.numel()) and flat.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def plan(tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> tuple[np.ndarray, int, int]:
    """The table of leaves and their messages as one int64 array, the word at which messages start, and the chunks.

    A message is a header with room for its chunk digests; no device work, so a step without change costs this alone.
    """
    rows = np.zeros((len(tensors), ROW_WORDS), np.uint64)
    parts: list[bytes] = []
    chunk = word = 0
    for index, (tensor, address) in enumerate(zip(tensors, addresses, strict=True)):
        head = header(dtype_name(tensor.dtype), tensor.shape, tensor.nbytes)
        count = -(-tensor.nbytes // CHUNK)
        rows[index] = (address, tensor.nbytes, chunk, word, len(head) // 8)
        parts += [head, bytes(8 * count)]
        chunk, word = chunk + count, word + len(head) // 8 + count
    table = np.concatenate([rows.reshape(-1), np.frombuffer(b"".join(parts), np.uint64)])
    return table.view(np.int64), rows.size, chunk
