"""A log of JSON lines in a hash chain: an edit anywhere is an error, a torn tail is dropped and told. Loads no torch.

`chain` of a line is SHA-256 over the chain before it and the line without it; see docs/notes/trainsect-format.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detaudit.core.errors import TrailCorruptError, UnreadableError, UsageError

SCHEMA = "detaudit.trainsect.log/1"


def seed() -> bytes:
    return hashlib.sha256(SCHEMA.encode()).digest()


def text_of(value: Mapping[str, Any]) -> str:
    """The one text of a line: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def spell_loss(value: float | None) -> str | None:
    """A loss as text that comes back exactly: `float.hex()`, or nan, inf, -inf."""
    if value is None:
        return None
    return float(value).hex() if math.isfinite(value) else repr(float(value))


def read_loss(text: str | None) -> float | None:
    """The inverse of `spell_loss`. Raises ValueError for any other text."""
    return None if text is None else float.fromhex(text)


class ChainWriter:
    """Appends lines to a new file, one write a line. Raises UsageError when the file exists and OSError on a full disk,
    after which the file is cut back to its last whole line."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise UsageError(
                f"{path} exists already; a recording is never overwritten: choose another directory"
            ) from None
        self._chain, self._size = seed(), 0

    def append(self, kind: str, **fields: Any) -> None:
        text = text_of({"kind": kind, **fields})
        chain = hashlib.sha256(self._chain + text.encode()).digest()
        line = f'{text[:-1]},"chain":"{chain.hex()}"}}\n'.encode()
        try:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(28, f"only {written} of {len(line)} bytes of a line could be written")
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._chain, self._size = chain, self._size + len(line)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@dataclass(frozen=True)
class ChainLog:
    """The lines of a log, checked. `torn` is the number of bytes dropped behind the last whole line."""

    lines: tuple[Mapping[str, Any], ...]
    torn: int
    chain: str


def read_log(path: Path) -> ChainLog:
    """Read and check a log. Raises UnreadableError when it cannot be read, TrailCorruptError with the line's number
    when a whole line was changed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    whole, _, tail = data.rpartition(b"\n")
    chain = seed()
    lines: list[Mapping[str, Any]] = []
    for number, raw in enumerate(whole.split(b"\n") if whole else (), start=1):
        value, chain = _checked(path, number, raw, chain)
        lines.append(value)
    return ChainLog(tuple(lines), len(tail), chain.hex())


def _checked(path: Path, number: int, raw: bytes, before: bytes) -> tuple[Mapping[str, Any], bytes]:
    try:
        value = json.loads(raw)
        stated = value.pop("chain")
        text = text_of(value)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise TrailCorruptError(
            f"{path}, line {number}: not a line of a log ({error}); the file has been changed"
        ) from None
    found = hashlib.sha256(before + text.encode()).digest()
    if found.hex() != stated:
        raise TrailCorruptError(
            f"{path}, line {number}: the hash chain does not continue (expected {found.hex()[:16]}, found "
            f"{str(stated)[:16]}); the line, or one before it, has been changed or is missing"
        )
    return value, found
