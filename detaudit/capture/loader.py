"""What a DataLoader draws and delivers: indices when they are drawn, emitted with the batch they became.

`_BaseDataLoaderIter._next_index` is the one place through which single- and multi-process iterators draw indices. It
runs ahead of the training by the prefetch, so the digests wait in a queue until their batch is delivered.
"""

from __future__ import annotations

import weakref
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from detaudit.capture.buffer import Entry
from detaudit.capture.leaves import flatten
from detaudit.capture.patch import Patches
from detaudit.capture.recorder import Recorder, event
from detaudit.capture.rng import generator_digest
from detaudit.digest.select import LeafDigest
from detaudit.digest.spec import digest_bytes
from detaudit.digest.stats import EMPTY
from detaudit.digest.values import encode_value

MAX_BATCH_LEAVES = 256


@dataclass
class _Epoch:
    """One iterator: where its batches come from, and the index digests not yet delivered."""

    loader: weakref.ref[DataLoader[Any]] | None = None
    label: str = ""
    number: int = 0
    delivered: int = 0
    drawn: deque[bytes | None] = field(default_factory=deque)


class LoaderWatch:
    """Wraps DataLoader iteration in the training process; does nothing in a worker."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._epochs: weakref.WeakKeyDictionary[Any, _Epoch] = weakref.WeakKeyDictionary()
        self._counts: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._patches = Patches()
        self._patches.wrap(_BaseDataLoaderIter, "_next_index", self._next_index)
        self._patches.wrap(_BaseDataLoaderIter, "_reset", self._reset)
        self._patches.wrap(_BaseDataLoaderIter, "__next__", self._next)
        self._patches.wrap(DataLoader, "__iter__", self._iter)

    def remove(self) -> None:
        self._patches.remove()

    def _next_index(self, original: Callable[..., Any], iterator: Any) -> Any:
        index = original(iterator)
        self._drawn(iterator, index)
        return index

    def _reset(self, original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> Any:
        self._restarted(iterator)
        return original(iterator, *args, **kwargs)

    def _iter(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        iterator = original(loader)
        self._began(loader, iterator)
        return iterator

    def _next(self, original: Callable[..., Any], iterator: Any) -> Any:
        batch = original(iterator)
        self._delivered(iterator, batch)
        return batch

    def _epoch(self, iterator: Any) -> _Epoch:
        epoch = self._epochs.get(iterator)
        if epoch is None:
            epoch = self._epochs[iterator] = _Epoch()
        return epoch

    @event
    def _drawn(self, iterator: Any, index: Any) -> None:
        if get_worker_info() is None:
            self._epoch(iterator).drawn.append(_index_bytes(index))

    @event
    def _restarted(self, iterator: Any) -> None:
        """A persistent iterator starts again: what was drawn ahead in an epoch left early is void."""
        epoch = self._epoch(iterator)
        epoch.drawn.clear()
        epoch.delivered = 0

    @event
    def _began(self, loader: DataLoader[Any], iterator: Any) -> None:
        if get_worker_info() is not None:
            return
        epoch = self._epoch(iterator)
        number = self._counts.get(loader, 0)
        self._counts[loader] = number + 1
        epoch.loader, epoch.label, epoch.number = weakref.ref(loader), self.recorder.namer.name(loader), number
        epoch.delivered = 0

    @event
    def _delivered(self, iterator: Any, batch: Any) -> None:
        if get_worker_info() is not None:
            return
        epoch = self._epoch(iterator)
        drawn = epoch.drawn.popleft() if epoch.drawn else None
        position, epoch.delivered = epoch.delivered, epoch.delivered + 1
        if not self.recorder.live:
            return
        if drawn is not None:
            place = f"{epoch.number}:{position}:".encode()
            self._add_bytes(f"sampler.{epoch.label}.indices", place + drawn)
        self._add_generators(epoch)
        self._add_batch(batch, f"batch.{epoch.label}")

    def _add_bytes(self, name: str, data: bytes) -> None:
        found = LeafDigest(digest_bytes("value", (len(data),), data), "value", ())
        self.recorder.add_entry(Entry(name, found, EMPTY))

    def _add_generators(self, epoch: _Epoch) -> None:
        """The generators that the loader and its samplers own: unlike the global ones, nobody else digests them."""
        loader = epoch.loader() if epoch.loader is not None else None
        batch_sampler = getattr(loader, "batch_sampler", None)
        owners = {
            "": loader,
            ".sampler": getattr(loader, "sampler", None),
            ".batch_sampler": batch_sampler,
            ".batch_sampler.sampler": getattr(batch_sampler, "sampler", None),
        }
        seen: list[torch.Generator] = []
        for suffix, owner in owners.items():
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator) and not any(generator is other for other in seen):
                seen.append(generator)
                entry = Entry(f"rng.loader.{epoch.label}{suffix}", generator_digest(generator), EMPTY)
                self.recorder.add_entry(entry)

    def _add_batch(self, batch: Any, name: str) -> None:
        """The leaves of a batch; beyond MAX_BATCH_LEAVES they share one name and fold into a rolling leaf."""
        for count, (leaf, value) in enumerate(flatten(batch, name)):
            self.recorder.add(leaf if count < MAX_BATCH_LEAVES else f"{name}.more", value)


def _index_bytes(index: Any) -> bytes | None:
    """The bytes of drawn indices; None for an IterableDataset, which draws nothing."""
    if index is None or (isinstance(index, list) and all(item is None for item in index)):
        return None
    try:
        return array("q", index if isinstance(index, (list, tuple)) else [index]).tobytes()
    except (TypeError, OverflowError):
        return encode_value(index)
