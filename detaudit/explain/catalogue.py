"""Reads the catalogue of causes and refuses what it does not understand.

`causes.toml` is data that people edit: every mistake in it is named with its entry, never skipped.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from detaudit.core.axes import AXES
from detaudit.core.errors import UnreadableError
from detaudit.core.model import DivergenceKind, ExplanationKind

TABLE = Path(__file__).with_name("causes.toml")

SCOPES = ("runs", "machines", "resume", "silent")
STEPS = ("", "first", "later")
SIZES = frozenset({"rounding", "large"})
FACTS = frozenset({"created-files", "cuda", "ranks", "loader", "one-thread", "hash-seed-set", "flag-on"})
"""What a signature may demand of the runs; `evidence.gather` finds out which of them hold."""


@dataclass(frozen=True)
class Signature:
    """The signs of a cause. `leaf`, `operator` and `note` are globs, `mentions` regular expressions over the program's
    code, `needs` and `without` facts about the runs, `differs` entries of the manifests, `removed_by` the axes that
    take the divergence away (the most telling first), `kept_by` those that must not."""

    leaf: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    step: str = ""
    drill: tuple[str, ...] = ()
    operator: tuple[str, ...] = ()
    note: tuple[str, ...] = ()
    size: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    removed_by: tuple[str, ...] = ()
    kept_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue. `rows` are those of the survey it covers; `untested` says why no test here can reproduce
    it, and is empty where one does."""

    id: str
    rows: tuple[int, ...]
    title: str
    explains: str
    fix: str
    sources: tuple[str, ...]
    scope: str = "runs"
    untested: str = ""
    when: Signature = Signature()


LEGAL: Mapping[str, frozenset[str]] = {
    "kind": frozenset(map(str, DivergenceKind)),
    "drill": frozenset(map(str, ExplanationKind)),
    "size": SIZES,
    "needs": FACTS,
    "without": FACTS,
    "removed_by": frozenset(AXES),
    "kept_by": frozenset(AXES),
}
_REQUIRED = ("id", "rows", "title", "explains", "fix", "sources")


@lru_cache(maxsize=1)
def catalogue() -> tuple[Entry, ...]:
    """The catalogue that ships with detaudit."""
    return read(TABLE)


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of a table. Raises UnreadableError with the entry and the key that is wrong."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: the catalogue cannot be read: {error}") from error
    rows = table.get("cause")
    if not isinstance(rows, list) or not rows or set(table) != {"cause"}:
        raise UnreadableError(f"{path}: a catalogue is a list of [[cause]] tables and nothing else")
    entries = tuple(_entry(row, f"{path.name}, cause {number}") for number, row in enumerate(rows, start=1))
    ids = [entry.id for entry in entries]
    for name in ids:
        if ids.count(name) > 1:
            raise UnreadableError(f"{path.name}: the id {name!r} stands for {ids.count(name)} causes; ids are unique")
    return entries


def _entry(row: Mapping[str, Any], where: str) -> Entry:
    where = f"{where} ({row.get('id', 'without id')})"
    missing = [key for key in _REQUIRED if key not in row]
    if missing:
        raise UnreadableError(f"{where}: {', '.join(missing)} is missing")
    values = _known(row, Entry, where)
    if "when" in values:
        values["when"] = _signature(row["when"], where)
    entry = Entry(**values)
    if not entry.fix.strip() or not entry.title or not entry.sources:
        raise UnreadableError(f"{where}: title, fix and sources must say something")
    if entry.scope not in SCOPES:
        raise UnreadableError(f"{where}: scope = {entry.scope!r} is not one of {', '.join(SCOPES)}")
    return entry


def _signature(row: Mapping[str, Any], where: str) -> Signature:
    found = Signature(**_known(row, Signature, f"{where}, when"))
    if found.step not in STEPS:
        raise UnreadableError(f"{where}: step = {found.step!r} is not one of first, later")
    for key, legal in LEGAL.items():
        for value in getattr(found, key):
            if value not in legal:
                raise UnreadableError(f"{where}: {key} = {value!r} is not one of {', '.join(sorted(legal))}")
    for pattern in found.mentions:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UnreadableError(f"{where}: mentions = {pattern!r} is no regular expression: {error}") from error
    return found


def _known(row: Mapping[str, Any], kind: type, where: str) -> dict[str, Any]:
    """The values of a table, lists as tuples; every key must be a field of `kind` and hold a value of its type."""
    legal = {field.name: field.type for field in fields(kind)}
    values = {}
    for key, value in row.items():
        if key not in legal:
            raise UnreadableError(f"{where}: unknown key {key!r}; the legal ones are {', '.join(legal)}")
        wanted = str(legal[key])
        if wanted.startswith("tuple"):
            item = int if "int" in wanted else str
            if not isinstance(value, list) or not all(isinstance(element, item) for element in value):
                raise UnreadableError(f"{where}: {key} = {value!r} is not a list of {item.__name__}")
            value = tuple(value)
        elif wanted == "str" and not isinstance(value, str):
            raise UnreadableError(f"{where}: {key} = {value!r} is not a text")
        values[key] = value.strip("\n") if isinstance(value, str) else value
    return values
