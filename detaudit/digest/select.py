"""Picks the implementation that digests a value, and proves an implementation on the golden vectors first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from detaudit.core.errors import UnsupportedLeafError
from detaudit.digest import golden
from detaudit.digest.host import dtype_name, tensor_digest
from detaudit.digest.paths import device_path
from detaudit.digest.values import digest_value


class LeafDigest(NamedTuple):
    """A digest with what it was taken over. `unsupported` holds the reason when there is no digest (then 0)."""

    digest: int
    dtype: str
    shape: tuple[int, ...]
    unsupported: str = ""


class PendingDigest:
    """A LeafDigest whose number is still being computed on a device: reading `digest` waits for it."""

    __slots__ = ("_read", "dtype", "shape")
    unsupported = ""

    def __init__(self, read: Callable[[], int], dtype: str, shape: tuple[int, ...]) -> None:
        self._read, self.dtype, self.shape = read, dtype, shape

    @property
    def digest(self) -> int:
        return self._read()


def start_digests(tensors: Sequence[torch.Tensor]) -> list[PendingDigest]:
    """Digests of tensors that share a device other than the CPU, started together as they are now in stream order.

    Raises UnsupportedLeafError; ValueError where they do not share one.
    """
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors on {len(devices)} devices cannot be digested together")
    reads = device_path(devices.pop()).start(tensors)
    return [
        PendingDigest(read, dtype_name(tensor.dtype), tuple(tensor.shape))
        for read, tensor in zip(reads, tensors, strict=True)
    ]


def digest_leaf(value: object) -> LeafDigest | PendingDigest:
    """The digest of a tensor, array or plain value; never raises for a value it cannot read, but says why."""
    try:
        if isinstance(value, torch.Tensor):
            value = _local(value)
            if not value.is_cpu and not value.is_meta:
                return start_digests([value])[0]
            return LeafDigest(tensor_digest(value), dtype_name(value.dtype), tuple(value.shape))
        digest = digest_value(value)
        if isinstance(value, np.ndarray | np.generic):
            return LeafDigest(digest, str(value.dtype), tuple(value.shape))
        return LeafDigest(digest, "value", ())
    except UnsupportedLeafError as error:
        return LeafDigest(0, type(value).__name__, (), error.reason)
    except Exception as error:  # a user's own container may raise anything while it is read
        return LeafDigest(0, type(value).__name__, (), f"reading it raised {type(error).__name__}: {error}")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor that this rank holds; each rank has a trail of its own. Any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if callable(to_local) else tensor


def prove(digest: Callable[[torch.Tensor], int], device: torch.device | str = "cpu") -> list[str]:
    """The golden vectors that `digest` does not reproduce on `device`; empty when it may be trusted."""
    failures = []
    for vector in golden.DIGESTS:
        found = digest(golden.tensor(vector).to(device))
        if found != vector.digest:
            failures.append(f"{vector.dtype}{list(vector.shape)}: expected {vector.digest:016x}, found {found:016x}")
    return failures
