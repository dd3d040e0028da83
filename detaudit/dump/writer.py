"""Writes a dump: the raw bytes first, then the line that vouches for them, so that a line never speaks of bytes that
are not there. The format stands in `dump/manifest.py`.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from detaudit.core.errors import UnsupportedLeafError, UsageError
from detaudit.digest.host import SPARSE_PARTS, dtype_name, unsupported_reason
from detaudit.digest.spec import digest_bytes
from detaudit.digest.stats import raw_bytes
from detaudit.digest.values import encode_value
from detaudit.dump import manifest
from detaudit.dump.manifest import End, Entry, Header

READ_ONLY = 0o444


class DumpWriter:
    """Writes the dump of one process into a new directory. Not thread-safe; the recorder's lock is held around it.

    Raises UsageError when the directory holds a dump already (a dump is one run) and OSError when the disk is full.
    """

    def __init__(self, directory: Path, header: Header) -> None:
        self.directory = directory
        self._max_bytes = header.max_bytes
        self._occurrences: dict[tuple[int, str], int] = {}
        self._threads: dict[tuple[int, str], set[int]] = {}
        self._entries = self._bytes = self._limited = 0
        self._hash = hashlib.sha256()
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / manifest.NAME
        try:
            self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise UsageError(f"{path} exists already; a dump is never overwritten: choose another directory") from None
        self._append(manifest.header_line(header))

    @property
    def closed(self) -> bool:
        return self._file < 0

    def next_occurrence(self, step: int, name: str) -> int:
        """The number that the next `add` of this name at this step will carry."""
        return self._occurrences.get((step, name), 0)

    def pass_by(self, step: int, name: str) -> None:
        """Count an occurrence that is not to be dumped, and the thread that it came from."""
        self._threads.setdefault((step, name), set()).add(threading.get_ident())
        self._occurrences[step, name] = self.next_occurrence(step, name) + 1

    def add(self, step: int, name: str, value: object) -> None:
        """Dump a tensor, array or plain value as it is now. What has no exact bytes, or none left under the limit, gets
        an entry that says so."""
        skipped, dtype, nbytes = "", type(value).__name__, 0
        shape: tuple[int, ...] = ()
        source: object = None
        try:
            dtype, shape, nbytes, source = _described(value)
            if self._bytes + nbytes > self._max_bytes:
                skipped = f"{manifest.LIMIT}: {nbytes} bytes more than the {self._max_bytes - self._bytes} left"
                self._limited += 1
        except UnsupportedLeafError as error:
            skipped = error.reason
        except Exception as error:  # a user's own container may raise anything while it is read
            skipped = f"reading it raised {type(error).__name__}: {error}"
        entry = Entry(
            self._entries, step, name, self.next_occurrence(step, name), dtype, shape, nbytes, skipped=skipped
        )
        if not skipped:
            entry = self._write(entry, _raw(source))
        self._append(manifest.entry_line(entry))
        self._entries += 1
        self.pass_by(step, name)

    def close(self, outcome: str, unseen_steps: Sequence[int] = (), unseen_leaves: Sequence[str] = ()) -> None:
        """Write the end and close. Raises OSError; the writer is closed all the same."""
        unordered = sorted({name for (_, name), threads in self._threads.items() if len(threads) > 1})
        asked = tuple(unseen_steps), tuple(unseen_leaves)
        end = End(outcome, self._entries, self._bytes, self._limited, *asked, tuple(unordered))
        try:
            self._append(manifest.end_line(replace(end, sha256=self._hash.hexdigest())))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without an end: the file belongs to another process, or cannot be written."""
        if not self.closed:
            os.close(self._file)
            self._file = -1

    def _write(self, entry: Entry, data: bytes) -> Entry:
        path = self.directory / entry.file
        try:
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, READ_ONLY), "wb") as file:
                file.write(data)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        self._bytes += entry.nbytes
        digest = digest_bytes(entry.dtype, entry.shape, data)
        return replace(entry, digest=f"{digest:016x}", sha256=hashlib.sha256(data).hexdigest())

    def _append(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(f"only {written} of {len(line)} bytes of a line could be written")
        self._hash.update(line)


def _described(value: object) -> tuple[str, tuple[int, ...], int, object]:
    """dtype, shape, byte count, and what `_raw` takes. Nothing is copied yet. Raises UnsupportedLeafError."""
    if isinstance(value, torch.Tensor):
        name = dtype_name(value.dtype)
        if value.layout in SPARSE_PARTS:
            raise UnsupportedLeafError(f"layout {value.layout} has no raw form; dump its parts by name")
        reason = unsupported_reason(value)
        if reason:
            raise UnsupportedLeafError(reason)
        return name, tuple(value.shape), value.numel() * value.element_size(), value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.name not in manifest.ITEM_SIZES or not value.dtype.isnative:
            raise UnsupportedLeafError(f"dtype {value.dtype.str}")
        return value.dtype.name, tuple(value.shape), value.nbytes, value
    data = encode_value(value)
    return "value", (len(data),), len(data), data


def _raw(source: object) -> bytes:
    """The logical bytes in C order. A device tensor is copied once all work queued on its stream is done."""
    if isinstance(source, torch.Tensor):
        if source.is_cuda:
            torch.cuda.current_stream(source.device).synchronize()
        return raw_bytes(source)
    if isinstance(source, bytes):
        return source
    assert isinstance(source, np.ndarray | np.generic)
    return source.tobytes()
