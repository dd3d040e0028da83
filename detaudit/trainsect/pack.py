"""Byte strings by content in one append-only file; the log names each by SHA-256, offset and length. Loads no torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from detaudit.core.errors import InconclusiveError, UnreadableError


class PackWriter:
    """Appends strings that are not there yet. A failed write is cut back, so the file holds whole strings only."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = 0
        self.known: dict[str, tuple[int, int]] = {}

    def put(self, sha256: str, data: bytes) -> bool:
        """Store a string under its SHA-256; whether it was new. Raises OSError on a full disk."""
        if sha256 in self.known:
            return False
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(28, f"only {written} of {len(data)} bytes could be written")
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self.known[sha256] = (self._size, len(data))
        self._size += len(data)
        return True

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class PackReader:
    """Reads strings by SHA-256 and checks each against it."""

    def __init__(self, path: Path, places: Mapping[str, tuple[int, int]]) -> None:
        self._path, self._places = path, places
        self._cache: dict[str, bytes] = {}

    def get(self, sha256: str) -> bytes:
        """Raises UnreadableError when the string is not there, InconclusiveError when it has changed."""
        if sha256 in self._cache:
            return self._cache[sha256]
        try:
            offset, length = self._places[sha256]
            with self._path.open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except (KeyError, OSError) as error:
            raise UnreadableError(f"{self._path} does not hold {sha256[:16]}: {error}") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InconclusiveError(f"{self._path}: the bytes of {sha256[:16]} at {offset} have changed or are cut off")
        self._cache[sha256] = data
        return data
