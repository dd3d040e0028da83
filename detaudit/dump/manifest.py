"""The format of a dump: a directory a process, with `manifest.jsonl` and one file of raw bytes a leaf.

The manifest is JSON lines: a header, an entry for each leaf in order of arrival, an end. It names no file: that of an
entry follows from its number, step and leaf (`Entry.file`), so nothing in a manifest can point outside the directory.
The raw files hold bytes in C order and nothing else; no part of a dump is a pickle, and none can hold code.

- header: format, version, process, command, and what was asked for (steps, leaves, max_bytes)
- entry: number, step, leaf, occurrence, dtype, shape, nbytes, digest (of the leaf, as in a trail), sha256 (of the raw
  file), or instead of the last two `skipped`: the reason why there are no bytes
- end: how it ended, entries, bytes, steps and globs that met nothing, names that came from several threads, SHA-256 of
  all lines before it. A process that was killed leaves none.

History. Version 1: first release.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from detaudit.core.names import occurrence

FORMAT = "detaudit.dump"
VERSION = 1
NAME = "manifest.jsonl"
MAX_SLUG = 80
"""Characters of a leaf's name that its file carries: for a person to read, well below the limit of file systems."""

LIMIT = "byte limit reached"
"""How the reason of an entry begins whose bytes did not fit under the limit."""

ITEM_SIZES = {
    **dict.fromkeys(("value", "bool", "uint8", "int8", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes an element, by the names of `digest.spec.DTYPE_CODES`; composite leaves have no raw form."""


@dataclass(frozen=True)
class Header:
    """What the dump is of, and what was asked for. `command` is the program's own `sys.argv`."""

    process: str
    command: tuple[str, ...]
    steps: tuple[int, ...]
    leaves: tuple[str, ...]
    max_bytes: int


@dataclass(frozen=True)
class Entry:
    """One leaf at one step. `digest` is 16 hexadecimal digits; `skipped` says why there are no bytes."""

    number: int
    step: int
    name: str
    occurrence: int
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str = ""
    sha256: str = ""
    skipped: str = ""

    @property
    def leaf(self) -> str:
        return occurrence(self.name, self.occurrence)

    @property
    def file(self) -> str:
        """The name of the raw file: safe whatever the leaf is called."""
        return f"{self.number:06d}-step{self.step}-{re.sub(r'[^A-Za-z0-9._#-]', '_', self.leaf)[:MAX_SLUG]}.raw"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class End:
    """How the dump ended. `limited` counts leaves left out by the byte limit; `unseen_steps` and `unseen_leaves` are
    steps and globs that were asked for and met nothing. `unordered` are names that came from several threads, whose
    occurrences are numbered in an order that is not the program's. `sha256` covers every line before."""

    outcome: str
    entries: int
    bytes: int
    limited: int
    unseen_steps: tuple[int, ...] = ()
    unseen_leaves: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    sha256: str = ""


def header_line(header: Header) -> bytes:
    return _line({"format": FORMAT, "version": VERSION, **asdict(header)})


def entry_line(entry: Entry) -> bytes:
    value = asdict(entry)
    return _line({"entry": value.pop("number"), **value})


def end_line(end: End) -> bytes:
    value = asdict(end)
    return _line({"end": value.pop("outcome"), **value})


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def header_from(value: Mapping[str, Any]) -> Header:
    """The inverse of `header_line`, after its JSON. Raises KeyError, TypeError or ValueError for anything else."""
    return Header(
        process=_text(value["process"]),
        command=tuple(map(_text, value["command"])),
        steps=tuple(map(_count, value["steps"])),
        leaves=tuple(map(_text, value["leaves"])),
        max_bytes=_count(value["max_bytes"]),
    )


def entry_from(value: Mapping[str, Any]) -> Entry:
    """The inverse of `entry_line`. Raises KeyError, TypeError or ValueError, also where bytes, dtype and shape of an
    entry do not fit together."""
    entry = Entry(
        number=_count(value["entry"]),
        step=_count(value["step"]),
        name=_text(value["name"]),
        occurrence=_count(value["occurrence"]),
        dtype=_text(value["dtype"]),
        shape=tuple(map(_count, value["shape"])),
        nbytes=_count(value["nbytes"]),
        digest=_text(value["digest"]),
        sha256=_text(value["sha256"]),
        skipped=_text(value["skipped"]),
    )
    if not entry.skipped and entry.nbytes != entry.elements * ITEM_SIZES[entry.dtype]:
        raise ValueError(f"{entry.nbytes} bytes are not {entry.dtype}{list(entry.shape)}")
    return entry


def end_from(value: Mapping[str, Any]) -> End:
    """The inverse of `end_line`. Raises KeyError, TypeError or ValueError for anything else."""
    return End(
        outcome=_text(value["end"]),
        entries=_count(value["entries"]),
        bytes=_count(value["bytes"]),
        limited=_count(value["limited"]),
        unseen_steps=tuple(map(_count, value["unseen_steps"])),
        unseen_leaves=tuple(map(_text, value["unseen_leaves"])),
        unordered=tuple(map(_text, value["unordered"])),
        sha256=_text(value["sha256"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is not a whole number >= 0")
    return value
