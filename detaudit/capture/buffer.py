"""The leaves of the step that is under way, in execution order, whatever thread they come from.

The thread that closes a step has its leaves in order. Leaves of other threads stand before them, marked `@threads`
and sorted, because their order of arrival is not the program's. The first leaves of all are the generators' states.
Occurrences of a name beyond `MAX_OCCURRENCES` fold into one rolling leaf.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from detaudit.core.model import Leaf, Stats
from detaudit.core.names import occurrence
from detaudit.digest.select import LeafDigest, PendingDigest
from detaudit.digest.stats import EMPTY

MAX_OCCURRENCES = 16
FOLDED = "folded"


class Entry(NamedTuple):
    """A leaf before it has its place: `name` without occurrence."""

    name: str
    found: LeafDigest | PendingDigest
    stats: Stats
    aliases: tuple[str, ...] = ()


@dataclass
class Fold:
    """What occurrences beyond the limit became: a hash rolled over their digests, and how many there were."""

    rolling: int = 0
    count: int = 0

    def take(self, digest: int) -> None:
        self.rolling = xxh3_64_intdigest(struct.pack("<QQ", self.rolling, digest))
        self.count += 1

    @property
    def digest(self) -> int:
        return xxh3_64_intdigest(struct.pack("<QQ", self.rolling, self.count))


@dataclass
class _Stream:
    """The entries of one thread."""

    entries: list[Entry] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    folds: dict[str, Fold] = field(default_factory=dict)


class StepBuffer:
    """Collects the leaves of one step. Guarded by the recorder's lock."""

    def __init__(self) -> None:
        self._head: list[Entry] = []
        self._streams: dict[int, _Stream] = {}
        self._leaves: dict[tuple[str, str, tuple[int, ...], str, tuple[str, ...]], Leaf] = {}

    @property
    def empty(self) -> bool:
        return not self._head and not self._streams

    def add(self, entry: Entry, head: bool = False) -> None:
        """Append an entry of the calling thread; `head` puts it before everything."""
        if head:
            self._head.append(entry)
            return
        stream = self._streams.get(threading.get_ident())
        if stream is None:
            stream = self._streams[threading.get_ident()] = _Stream()
        count = stream.counts.get(entry.name, 0)
        stream.counts[entry.name] = count + 1
        if count < MAX_OCCURRENCES:
            stream.entries.append(entry)
        else:
            fold = stream.folds.get(entry.name)
            if fold is None:
                fold = stream.folds[entry.name] = Fold()
                stream.entries.append(Entry(entry.name, LeafDigest(0, FOLDED, ()), EMPTY))
            fold.take(entry.found.digest)

    def close(self) -> tuple[list[Leaf], list[int], list[Stats]]:
        """The leaves, digests and stats of the step as the calling thread closes it; empties the buffer."""
        own = self._streams.pop(threading.get_ident(), _Stream())
        ordered = [*self._head, *_settled(self._others()), *_settled(own)]
        self._head, self._streams = [], {}
        leaves: list[Leaf] = []
        counts: dict[str, int] = {}
        for entry in ordered:
            index = counts.get(entry.name, 0)
            counts[entry.name] = index + 1
            leaves.append(self._leaf(entry, index))
        return leaves, [entry.found.digest for entry in ordered], [entry.stats for entry in ordered]

    def _others(self) -> _Stream:
        """All other threads as one stream: as a multiset, so that their order of arrival leaves no trace."""
        merged = _Stream()
        for stream in self._streams.values():
            for entry in _settled(stream):
                merged.entries.append(Entry(entry.name + "@threads", entry.found, entry.stats, entry.aliases))
        merged.entries.sort(key=lambda e: (e.name, e.found.dtype, e.found.shape, e.found.digest))
        return merged

    def _leaf(self, entry: Entry, index: int) -> Leaf:
        found = entry.found
        name = entry.name + "#more" if found.dtype == FOLDED else occurrence(entry.name, index)
        key = (name, found.dtype, found.shape, found.unsupported, entry.aliases)
        leaf = self._leaves.get(key)
        if leaf is None:
            leaf = self._leaves[key] = Leaf(name, found.dtype, found.shape, found.unsupported, entry.aliases)
        return leaf


def _settled(stream: _Stream) -> Sequence[Entry]:
    """The entries of a stream with the digests of its folds filled in."""
    if not stream.folds:
        return stream.entries
    return [
        Entry(e.name, LeafDigest(stream.folds[e.name].digest, FOLDED, ()), EMPTY) if e.found.dtype == FOLDED else e
        for e in stream.entries
    ]
