"""Writes a trail: one `write` a frame, so that a killed run loses at most the step it had not finished."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from detaudit.core.errors import UsageError
from detaudit.core.model import Layout, RunManifest, Stats
from detaudit.trail import frames
from detaudit.trail.frames import Kind

MAX_PAYLOAD = 2**32 - 1


class _State(NamedTuple):
    """What is surely in the file: bytes, frames, layouts, and the chain. Replaced in one store, so that an interrupt
    (Ctrl-C in a training loop) finds it before or after a frame, never between."""

    size: int = 0
    frames: int = 0
    layouts: int = 0
    chain: int = 0


class TrailWriter:
    """Appends frames to a new file. Not thread-safe; the recorder's lock is held around it.

    Raises UsageError when the file exists (a trail is one run) and OSError, with the path, when the disk is full; after
    an OSError the file is cut back to its last whole frame, `failed` is set and the writer is closed.
    """

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        self.path = path
        self.failed = False
        try:
            self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise UsageError(f"{path} exists already; a trail is never overwritten: choose another directory") from None
        self._state = _State()
        self._writing = False
        self._layouts: dict[Layout, tuple[int, int]] = {}
        # Hashing a layout of a thousand leaves costs more than writing its step; callers hand in the same object.
        self._last: tuple[Layout, tuple[int, int]] | None = None
        self._write(frames.preamble(), self._state)
        header = {"decisive": dict(manifest.decisive), "context": dict(manifest.context)}
        self._append(Kind.HEADER, frames.pack_json(header))

    @property
    def closed(self) -> bool:
        return self._file < 0

    def step(self, step: int, layout: Layout, digests: Sequence[int], stats: Sequence[Stats] = ()) -> None:
        """Append one step: a digest, and with stats one Stats, for each leaf of the layout. Step numbers must rise."""
        if len(digests) != len(layout.leaves) or (stats and len(stats) != len(digests)):
            raise AssertionError(
                f"step {step}: {len(layout.leaves)} leaves, {len(digests)} digests, {len(stats)} stats"
            )
        layout_id, layout_hash = self._layout(layout)
        packed = struct.pack(f"<{len(digests)}Q", *digests)
        running = frames.chain(self._state.chain, step, layout_hash, packed)
        self._append(Kind.STEP, frames.pack_step(step, layout_id, running, packed, stats), running)

    def note(self, kind: str, **fields: object) -> None:
        """Append a note: anything that is not a digest (`end` with its outcome, `nonfinite`, `rank`)."""
        self._append(Kind.NOTE, frames.pack_json({**fields, "note": kind}))

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
            self._file = -1

    def _layout(self, layout: Layout) -> tuple[int, int]:
        if self._last is not None and self._last[0] is layout:
            return self._last[1]
        known = self._layouts.get(layout)
        if known is None:
            value: Mapping[str, object] = frames.layout_value(layout)
            known = (self._state.layouts, frames.layout_digest(layout))
            self._append(Kind.LAYOUT, frames.pack_json(value))
            self._layouts[layout] = known
        self._last = (layout, known)
        return known

    def _append(self, kind: Kind, payload: bytes, running: int | None = None) -> None:
        """Append one frame. `running` is the chain of a step; other frames leave the chain as it is."""
        if len(payload) > MAX_PAYLOAD:
            raise UsageError(f"a {kind.name.lower()} frame of {len(payload)} bytes is over {MAX_PAYLOAD}")
        size, number, layouts, chain = self._state
        chain = chain if running is None else running
        data = frames.frame(kind, payload, number)
        self._write(data, _State(size, number + 1, layouts + (kind is Kind.LAYOUT), chain))

    def _write(self, data: bytes, after: _State) -> None:
        """Write `data` whole and make `after`, with the new size, the state of the file."""
        if self.closed:
            raise OSError(errno.EBADF, "the trail is closed", str(self.path))
        size = self._state.size
        try:
            if self._writing:  # an interrupt struck inside the last write: cut what it left
                os.ftruncate(self._file, size)
            self._writing = True
            done = 0
            while done < len(data):
                done += os.write(self._file, data[done:] if done else data)
        except OSError as error:
            self.failed = True
            self._cut()
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._state = after._replace(size=size + len(data))
        self._writing = False

    def _cut(self) -> None:
        try:
            os.ftruncate(self._file, self._state.size)
        finally:
            self.close()
