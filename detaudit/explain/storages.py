"""Which memory a tensor lies in, and which part of fresh memory nobody has written yet.

A storage is held by a weak reference, so that tracing keeps no memory alive; as long as the weak reference stands,
its address is not given to another. Raw addresses would be reused within a step.
"""

from __future__ import annotations

import gc

import torch
from torch.multiprocessing.reductions import StorageWeakRef

PRUNE_EVERY = 4096


class Storages:
    """Numbers storages in the order in which they are first seen, and keeps a mask of the unwritten elements of those
    that came from `empty`. Guarded by the tracer's lock."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._next = 0
        self._unwritten: dict[int, tuple[int, torch.Tensor]] = {}  # storage -> (bytes an element, mask)

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage; -1 for a tensor without one (sparse, a wrapper)."""
        try:
            storage = tensor.untyped_storage()
            key = storage._cdata
        except RuntimeError:
            return -1
        found = self._known.get(key)
        if found is None:
            if self._next % PRUNE_EVERY == PRUNE_EVERY - 1:
                self._prune()
            found = self._known[key] = (StorageWeakRef(storage), self._next)
            self._next += 1
        return found[1]

    def _prune(self) -> None:
        gone = [key for key, (reference, _) in self._known.items() if reference.expired()]
        for key in gone:
            self._unwritten.pop(self._known.pop(key)[1], None)

    def seen_before(self) -> list[int]:
        """Number the storages of all tensors that Python holds now."""
        return sorted(
            {self.number(found) for found in gc.get_objects() if issubclass(type(found), torch.Tensor)} - {-1}
        )

    def allocated(self, tensor: torch.Tensor) -> None:
        """A tensor came fresh from `empty`: none of it is written."""
        number = self.number(tensor)
        if number >= 0 and tensor.numel() and tensor.layout is torch.strided:
            size = tensor.untyped_storage().nbytes() // tensor.itemsize
            self._unwritten[number] = (tensor.itemsize, torch.ones(size, dtype=torch.bool))

    def written(self, tensor: torch.Tensor) -> None:
        """An operator has written all of `tensor`, which may be a part of its storage."""
        number = self.number(tensor)
        found = self._unwritten.get(number)
        if found is None:
            return
        itemsize, mask = found
        if tensor.itemsize != itemsize or tensor.numel() >= mask.numel():
            del self._unwritten[number]  # a view of another width is not followed: better no claim than a wrong one
            return
        mask.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).fill_(False)
        if not bool(mask.any()):
            del self._unwritten[number]

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Whether some element of `tensor` was allocated in the trace and never written."""
        if not self._unwritten:
            return False
        found = self._unwritten.get(self.number(tensor))
        if found is None or found[0] != tensor.itemsize:
            return False
        return bool(found[1].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).any())
