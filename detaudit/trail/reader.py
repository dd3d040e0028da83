"""Reads a trail. Opening it verifies every frame; nothing that fails its checksum is ever returned.

A torn tail (a killed writer) is dropped and reported in `dropped_bytes`; a frame that is whole but wrong raises
TrailCorruptError naming it. "Not a trail", "another version" and "torn" are three different texts.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from detaudit.core.errors import NotATrailError, TrailCorruptError, TrailVersionError, UnreadableError
from detaudit.core.model import Layout, RunManifest, Stats, StepRecord
from detaudit.trail import frames
from detaudit.trail.frames import CHECKSUM, HEAD, OVERHEAD, PREAMBLE, STEP, Kind

_KINDS = {kind.value: kind for kind in Kind}


class FrameRef(NamedTuple):
    """Where a frame's payload lies. `number` counts frames from 0."""

    number: int
    kind: Kind
    start: int
    end: int


class TrailReader:
    """A trail on disk.

    `steps` are the step numbers in order of writing; `chains[i]` the running hash after `steps[i]`. `notes` are the
    note frames as dicts. `has_stats` tells whether any step holds stats. `outcome` is what the `end` note says, empty
    for a run that did not end by itself. `dropped_bytes` counts the bytes of a torn tail.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._data = _map(self.path)
        self._view = memoryview(self._data)
        _check_preamble(self.path, self._view)
        self.manifest = RunManifest()
        self.layouts: list[Layout] = []
        self.notes: list[dict[str, Any]] = []
        self.steps: list[int] = []
        self.chains: list[int] = []
        self._layout_ids: list[int] = []
        self._first_uses: dict[int, int] = {}
        self._frames: list[FrameRef] = []
        self.frame_count = 0
        self.dropped_bytes = 0
        self.has_stats = False
        for reference in self._scan():
            self._take(reference)
            self.frame_count = reference.number + 1
        if not self.frame_count:
            raise UnreadableError(f"{self.path}: an empty trail, it ends within its header frame")
        self._index = {step: position for position, step in enumerate(self.steps)}

    def close(self) -> None:
        self._view.release()
        self._data.close()

    def __enter__(self) -> TrailReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[StepRecord]:
        for position in range(len(self.steps)):
            yield self.record(position)

    @property
    def outcome(self) -> str:
        ends = [note for note in self.notes if note["note"] == "end"]
        return str(ends[-1].get("outcome", "")) if ends else ""

    def position(self, step: int) -> int | None:
        """The position of a step number, None when the trail does not hold it."""
        return self._index.get(step)

    def layout(self, position: int) -> Layout:
        return self.layouts[self._layout_ids[position]]

    def layout_id(self, position: int) -> int:
        return self._layout_ids[position]

    def raw_digests(self, position: int) -> bytes:
        """The digests of the position-th step as 8 little-endian bytes a leaf."""
        start = self._frames[position].start + STEP.size
        return bytes(self._view[start : start + 8 * len(self.layout(position).leaves)])

    def digests(self, position: int) -> tuple[int, ...]:
        raw = self.raw_digests(position)
        return struct.unpack(f"<{len(raw) // 8}Q", raw)

    def stats(self, position: int) -> tuple[Stats, ...]:
        reference = self._frames[position]
        return frames.unpack_stats(self._view[reference.start : reference.end], len(self.layout(position).leaves))

    def first_uses(self) -> list[int]:
        """The position of the first step of each layout in use, in order."""
        return list(self._first_uses.values())

    def record(self, position: int) -> StepRecord:
        return StepRecord(
            step=self.steps[position],
            layout=self.layout(position),
            digests=self.digests(position),
            chain=self.chains[position],
            stats=self.stats(position),
        )

    def _scan(self) -> Iterator[FrameRef]:
        offset, number = PREAMBLE.size, 0
        view, size = self._view, len(self._view)
        while offset < size:
            if size - offset < HEAD.size:
                break
            kind, zero, check, length = HEAD.unpack_from(view, offset)
            if zero or check != frames.head_check(kind, length):
                raise self._corrupt(number, offset, "its head does not match its own check")
            end = offset + HEAD.size + length
            if size < end + CHECKSUM.size:
                break
            if CHECKSUM.unpack_from(view, end)[0] != xxh3_64_intdigest(view[offset:end], seed=number):
                raise self._corrupt(number, offset, "its checksum does not match its bytes")
            if kind not in _KINDS:
                raise self._corrupt(number, offset, f"kind {kind} is unknown")
            yield FrameRef(number, _KINDS[kind], offset + HEAD.size, end)
            offset, number = offset + OVERHEAD + length, number + 1
        self.dropped_bytes = size - offset

    def _take(self, reference: FrameRef) -> None:
        payload = self._view[reference.start : reference.end]
        if (reference.number == 0) != (reference.kind is Kind.HEADER):
            raise self._corrupt(reference.number, reference.start, f"a {reference.kind.name} frame stands out of place")
        try:
            match reference.kind:
                case Kind.STEP:
                    self._take_step(reference, payload)
                case Kind.HEADER:
                    value = _mapping(payload)
                    self.manifest = RunManifest(dict(value["decisive"]), dict(value["context"]))
                case Kind.LAYOUT:
                    self.layouts.append(frames.layout_from(_mapping(payload)))
                case Kind.NOTE:
                    note = dict(_mapping(payload))
                    note["note"]  # a note without its kind is malformed
                    self.notes.append(note)
        except (KeyError, TypeError, ValueError, IndexError, struct.error) as error:
            raise self._corrupt(reference.number, reference.start, f"its payload is malformed ({error!r})") from error

    def _take_step(self, reference: FrameRef, payload: memoryview) -> None:
        step, layout_id, with_stats, running = STEP.unpack_from(payload)
        per_leaf = 8 + (frames.STATS.size if with_stats else 0)
        if len(payload) != STEP.size + per_leaf * len(self.layouts[layout_id].leaves):
            raise ValueError(f"{len(payload)} bytes do not fit layout {layout_id}")
        if self.steps and step <= self.steps[-1]:
            raise ValueError(f"step {step} follows step {self.steps[-1]}")
        self._first_uses.setdefault(layout_id, len(self.steps))
        self.steps.append(step)
        self.chains.append(running)
        self.has_stats = self.has_stats or bool(with_stats)
        self._layout_ids.append(layout_id)
        self._frames.append(reference)

    def verify_chain(self) -> None:
        """Recompute the running hash over all steps. Raises TrailCorruptError at the first that does not follow."""
        hashes = [frames.layout_digest(layout) for layout in self.layouts]
        running = 0
        for position, step in enumerate(self.steps):
            running = frames.chain(running, step, hashes[self._layout_ids[position]], self.raw_digests(position))
            if running != self.chains[position]:
                raise self._corrupt(self._frames[position].number, self._frames[position].start, "its chain is broken")

    def _corrupt(self, number: int, offset: int, what: str) -> TrailCorruptError:
        done = f"{len(self.steps)} steps before it are whole" if self.steps else "no step before it"
        return TrailCorruptError(f"{self.path}: frame {number} at byte {offset} is damaged: {what}; {done}")


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise NotATrailError(f"{path} is empty, not a detaudit trail") from None
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error


def _check_preamble(path: Path, view: memoryview) -> None:
    found = bytes(view[: len(frames.MAGIC)])
    if found != frames.MAGIC[: len(found)] or not found:
        raise NotATrailError(f"{path} is not a detaudit trail: it begins with {found!r}, not {frames.MAGIC!r}")
    if len(view) < PREAMBLE.size:
        raise UnreadableError(f"{path}: an empty trail, cut within its first {PREAMBLE.size} bytes")
    _, version, zero = PREAMBLE.unpack_from(view)
    if version != frames.VERSION:
        raise TrailVersionError(f"{path} has trail format {version}; this release of detaudit reads {frames.VERSION}")
    if zero:
        raise TrailCorruptError(f"{path}: the first {PREAMBLE.size} bytes are damaged: bytes 12 to 15 are not zero")


def _mapping(payload: memoryview) -> Mapping[str, Any]:
    import zlib

    try:
        value = frames.unpack_json(payload)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value
