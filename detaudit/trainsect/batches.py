"""What a training loop received: ids, content digests, and where in its loader each batch came from."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter
from xxhash import xxh3_64_hexdigest

from detaudit.capture.leaves import flatten
from detaudit.capture.patch import Patches
from detaudit.core.errors import UsageError
from detaudit.digest.select import digest_leaf
from detaudit.trainsect.model import MicroBatches


def content(micro_batches: Sequence[Any]) -> str:
    """Hexadecimal XXH3-64 over the leaves of each micro-batch in order. Containers leave no trace, so that a batch that
    a loop unpacked from a list equals one that a target returns as a tuple."""
    return xxh3_64_hexdigest(" ".join(_one(batch) for batch in micro_batches).encode())


def _one(batch: Any) -> str:
    found = [digest_leaf(value) for _, value in flatten(batch, "")]
    lost = next((leaf.unsupported for leaf in found if leaf.unsupported), "")
    if lost:
        raise UsageError(f"the batch has a part whose content cannot be digested: {lost}")
    return ",".join(f"{leaf.dtype}{list(leaf.shape)}{leaf.digest:016x}" for leaf in found)


def micro(ids: Any) -> MicroBatches:
    """Ids as micro-batches: a flat sequence of ids is one. Raises UsageError for anything that is not whole numbers."""
    if isinstance(ids, torch.Tensor):
        ids = ids.tolist()
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in ids]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows]
    try:
        return tuple(tuple(_whole(value) for value in row) for row in rows)
    except TypeError:
        raise UsageError(
            f"ids={ids!r:.80}: batch ids are whole numbers, or a list of them for each micro-batch"
        ) from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError
    return int(value.__index__())


@dataclass
class Delivered:
    """One batch that a DataLoader handed to the loop in training."""

    ids: tuple[int, ...] | None
    batch: Any
    place: dict[str, int]


@dataclass
class _Epoch:
    loader: int = 0
    number: int = 0
    position: int = 0
    drawn_count: int = 0
    drawn: deque[tuple[int, ...] | None] = field(default_factory=deque)


Substitute = Callable[[int, int, int, Any], Any]
"""(loader, epoch, position, drawn indices) -> the indices to fetch instead."""


class LoaderTap:
    """Follows every DataLoader of the training process. `wanted` tells whether a batch delivered now is trained on.

    Indices are exchanged where they are drawn (`_next_index`), which holds with and without workers; in the fetcher it
    would silently do nothing with workers."""

    def __init__(self, wanted: Callable[[], bool], substitute: Substitute | None = None) -> None:
        self.pending: list[Delivered] = []
        self._wanted, self._substitute = wanted, substitute
        self._epochs: weakref.WeakKeyDictionary[Any, _Epoch] = weakref.WeakKeyDictionary()
        self._loaders: weakref.WeakKeyDictionary[DataLoader[Any], list[int]] = weakref.WeakKeyDictionary()
        self._seen = 0
        self.datasets: dict[int, Any] = {}
        """The data set of each loader, by the loader's number."""
        self._patches = Patches()
        self._patches.wrap(DataLoader, "__iter__", self._iter)
        self._patches.wrap(_BaseDataLoaderIter, "__init__", self._init)
        self._patches.wrap(_BaseDataLoaderIter, "_reset", self._reset)
        self._patches.wrap(_BaseDataLoaderIter, "_next_index", self._next_index)
        self._patches.wrap(_BaseDataLoaderIter, "__next__", self._next)

    def remove(self) -> None:
        self._patches.remove()

    def taken(self) -> list[Delivered]:
        """What was delivered for training since the last call."""
        found, self.pending = self.pending, []
        return found

    def _begin(self, loader: DataLoader[Any]) -> _Epoch:
        entry = self._loaders.get(loader)
        if entry is None:
            entry = self._loaders[loader] = [self._seen, -1]
            self.datasets[self._seen] = loader.dataset
            self._seen += 1
        entry[1] += 1
        return _Epoch(entry[0], entry[1])

    def _iter(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        return original(loader)

    def _init(self, original: Callable[..., Any], iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        # Workers prefetch inside the iterator's own __init__, so its epoch must be known before.
        if get_worker_info() is None:
            self._epochs[iterator] = self._begin(loader)
        return original(iterator, loader, *args, **kwargs)

    def _reset(self, original: Callable[..., Any], iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        epoch = self._epochs.get(iterator)
        first = args[0] if args else kwargs.get("first_iter", False)
        if epoch is not None and not first:
            self._epochs[iterator] = self._begin(loader)
        return original(iterator, loader, *args, **kwargs)

    def _next_index(self, original: Callable[..., Any], iterator: Any) -> Any:
        index = original(iterator)
        epoch = self._epochs.get(iterator)
        if epoch is None or get_worker_info() is not None:
            return index
        if self._substitute is not None:
            index = self._substitute(epoch.loader, epoch.number, epoch.drawn_count, index)
        epoch.drawn_count += 1
        epoch.drawn.append(_ids(index))
        return index

    def _next(self, original: Callable[..., Any], iterator: Any) -> Any:
        batch = original(iterator)
        epoch = self._epochs.get(iterator)
        if epoch is None or get_worker_info() is not None:
            return batch
        ids = epoch.drawn.popleft() if epoch.drawn else None
        place = {"loader": epoch.loader, "epoch": epoch.number, "position": epoch.position}
        epoch.position += 1
        if self._wanted():
            seed = getattr(iterator, "_base_seed", None)
            workers = int(getattr(iterator, "_num_workers", 0))
            if isinstance(seed, int):
                place |= {"base_seed": seed, "workers": workers}
            self.pending.append(Delivered(ids, batch, place))
        return batch


def _ids(index: Any) -> tuple[int, ...] | None:
    rows = index if isinstance(index, list | tuple) else [index]
    try:
        return tuple(_whole(value) for value in rows)
    except TypeError:
        return None
