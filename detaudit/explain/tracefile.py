"""The trace of a window of steps: one JSON value a line, in order of execution. Loads no torch.

    {"format": "detaudit.optrace/1", "window": [K0, K1], "reruns": R}
    {"site": id, "file": ..., "line": ..., "in": function}        where user code stood, once for each place
    {"step": k}                                                   what follows belongs to step k
    {"op": name.overload, "site": id, "module": path, "ins": [[storage, digest, unwritten]],
     "outs": [[storage, digest]], "values": [text], "node": backward node, "random": digest of the generator,
     "own": its number, "rerun": [differing, total, distinct], "alloc": 1}       empty fields are left out
    {"leaf": name, "storage": id, "digest": ..., "unwritten": 1}  the recorder took a leaf
    {"seed": function, "value": text, "site": id, "own": number}  a generator was given a seed or a state
    {"old": [storage ...]}                                        storages that were there before the window
    {"note": text}                                                what a reader must know
    {"end": 1}

A line is written whole or not at all; a torn last line is dropped and counted in `dropped_bytes`. Storages are numbered
as they are first seen: equal numbers in two traces mean nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detaudit.core.errors import UnreadableError

FORMAT = "detaudit.optrace/1"
HOST = "host."
"""Begins the name of what is no operator: data that came from Python or went there."""

SUFFIX = ".ops.jsonl"


@dataclass(frozen=True)
class Site:
    """A place in the user's code; `file` is empty where none was on the stack."""

    file: str = ""
    line: int | None = None
    function: str = ""


@dataclass(frozen=True)
class Operand:
    """A tensor of an operator: the storage it lies in and the digest of what it held, None where it has none.
    `unwritten` tells that part of it was allocated in the trace and never written by an operator."""

    storage: int
    digest: str | None
    unwritten: bool = False


@dataclass(frozen=True)
class Op:
    """One operator as it was executed. `values` are its arguments that are no tensors, `node` the backward node it ran
    in, `random` the digest of its generator's state before it, `rerun` (differing, total, distinct) of its repeats,
    `own` the number of a generator of the program's own."""

    index: int
    step: int
    name: str
    site: Site = Site()
    module: str = ""
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    values: tuple[str, ...] = ()
    node: str = ""
    random: str = ""
    rerun: tuple[int, int, int] | None = None
    allocates: bool = False
    own: int = 0


@dataclass(frozen=True)
class LeafSeen:
    """A leaf of the trail, taken when `before` operators had run."""

    before: int
    step: int
    name: str
    storage: int
    digest: str
    unwritten: bool = False


@dataclass(frozen=True)
class Reseed:
    """A generator was given a seed or a state, when `before` operators had run."""

    before: int
    step: int
    function: str
    value: str
    site: Site = Site()
    own: int = 0
    """Which of the program's own generators, in the order in which they were made; 0 for a global one."""


@dataclass
class Trace:
    """Everything one process left. `complete` tells whether it was closed in order."""

    window: tuple[int, int] = (0, 0)
    reruns: int = 0
    ops: list[Op] = field(default_factory=list)
    leaves: list[LeafSeen] = field(default_factory=list)
    reseeds: list[Reseed] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    old: frozenset[int] = frozenset()
    notes: list[str] = field(default_factory=list)
    complete: bool = False
    dropped_bytes: int = 0


def read(path: Path) -> Trace:
    """The trace in a file. Raises UnreadableError for a file that is none, or is damaged before its last line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    whole, _, torn = data.rpartition(b"\n")
    lines = whole.split(b"\n")
    trace = _begin(path, lines[0])
    trace.dropped_bytes = len(torn)
    reader = _Reader(trace)
    for number, line in enumerate(lines[1:], start=2):
        try:
            reader.take(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UnreadableError(f"{path}: line {number} is damaged ({error!r})") from error
    return trace


def _begin(path: Path, line: bytes) -> Trace:
    try:
        head = json.loads(line)
        if head["format"] != FORMAT:
            raise UnreadableError(f"{path} has trace format {head['format']!r}; this release reads {FORMAT}")
        first, last = head["window"]
        return Trace((int(first), int(last)), int(head["reruns"]))
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"{path} is not a trace of operators") from error


class _Reader:
    """Turns lines into records; knows the sites and the step that hold for the next one."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._sites: dict[int, Site] = {-1: Site()}
        self._step = trace.window[0]

    def take(self, value: dict[str, Any]) -> None:
        trace = self._trace
        if "op" in value:
            trace.ops.append(self._op(value))
        elif "leaf" in value:
            seen = (value["leaf"], value["storage"], value["digest"], bool(value.get("unwritten")))
            trace.leaves.append(LeafSeen(len(trace.ops), self._step, *seen))
        elif "in" in value:
            self._sites[value["site"]] = Site(value["file"], value["line"], value["in"])
        elif "step" in value:
            self._step = value["step"]
            trace.steps.append(self._step)
        elif "seed" in value:
            site, own = self._sites[value.get("site", -1)], value.get("own", 0)
            trace.reseeds.append(Reseed(len(trace.ops), self._step, value["seed"], value["value"], site, own))
        elif "old" in value:
            trace.old |= frozenset(value["old"])
        elif "note" in value:
            trace.notes.append(value["note"])
        else:
            trace.complete = bool(value["end"])

    def _op(self, value: dict[str, Any]) -> Op:
        rerun = value.get("rerun")
        return Op(
            index=len(self._trace.ops),
            step=self._step,
            name=value["op"],
            site=self._sites[value.get("site", -1)],
            module=value.get("module", ""),
            inputs=_operands(value.get("ins", ())),
            outputs=_operands(value.get("outs", ())),
            values=tuple(value.get("values", ())),
            node=value.get("node", ""),
            random=value.get("random", ""),
            rerun=(rerun[0], rerun[1], rerun[2]) if rerun else None,
            allocates=bool(value.get("alloc")),
            own=value.get("own", 0),
        )


def _operands(rows: Sequence[Sequence[Any]]) -> tuple[Operand, ...]:
    return tuple(Operand(row[0], row[1], len(row) > 2 and bool(row[2])) for row in rows)


class TraceWriter:
    """Writes a trace. Lines wait in memory until `open` names the file, and between flushes."""

    LIMIT = 400_000
    """Lines that may wait before there is a file: a process that never closes a step must not fill the memory."""

    def __init__(self, window: tuple[int, int], reruns: int) -> None:
        self._lines: list[str] = []
        self._path: Path | None = None
        self.full = False
        self.write({"format": FORMAT, "window": list(window), "reruns": reruns})

    def write(self, value: dict[str, Any]) -> None:
        if len(self._lines) < self.LIMIT:
            self._lines.append(json.dumps(value, separators=(",", ":")))
        else:
            self.full = True

    def open(self, path: Path) -> None:
        self._path = path

    def flush(self) -> None:
        """Append what waits. Raises OSError."""
        if self._path is None or not self._lines:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n".join(self._lines) + "\n")
        self._lines.clear()
