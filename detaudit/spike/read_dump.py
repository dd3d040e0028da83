"""Reads dump directories: `step{N}/rank{R}` or `proc{pid}` with dump.json, construct.json and stack.json.

Statistics are kept as they stand; null statistics stay unknown. Execution order is the order of dump.json, where a
module stands at its completion, after its children.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detaudit.core.errors import UnreadableError
from detaudit.spike.dump_keys import API, BACKWARD, FORWARD, GRADIENT, MODULE, Key, parse_key
from detaudit.spike.json_stream import JsonMembers

METRICS = ("Max", "Min", "Mean", "Norm")
_STEP = re.compile(r"step(\d+)$")
_RANK = re.compile(r"rank(\d+)$")
_PROC = re.compile(r"proc(\d+)$")


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of one tensor; NaN where the writer left null. `checksum` is the md5 field's text; `broken` says that
    a statistic was written as NaN or infinite, which null is not."""

    dtype: str
    shape: tuple[int, ...]
    Max: float
    Min: float
    Mean: float
    Norm: float
    checksum: str = ""
    broken: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(slots=True)
class Entry:
    """One entry of dump.json. `inputs` and `outputs` are flat lists of tensors, None where a slot holds none.

    `parent` is the enclosing node of construct.json. `gradients` holds parameter gradients by name.
    """

    key: Key
    order: int
    inputs: list[TensorStats | None]
    outputs: list[TensorStats | None]
    gradients: dict[str, TensorStats] = field(default_factory=dict)
    parent: str = ""
    recompute: bool = False
    micro_step: int | None = None


@dataclass(frozen=True, order=True)
class DumpPlace:
    """One rank's dump of one step on disk. `assumed` says that step or rank could not be read from the path."""

    step: int
    rank: int
    path: Path
    proc: int | None = None
    assumed: bool = False

    @property
    def label(self) -> str:
        return f"step{self.step}/" + (f"proc{self.proc}" if self.proc is not None else f"rank{self.rank}")


@dataclass
class Dump:
    """Everything a dump holds that the analysis uses, and what was wrong with it."""

    place: DumpPlace
    task: str
    level: str
    framework: str
    entries: dict[str, Entry]
    truncated: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def has_checksums(self) -> bool:
        return any(t and t.checksum for entry in self.entries.values() for t in (*entry.outputs, *entry.inputs))


def find_dumps(root: str | os.PathLike[str]) -> list[DumpPlace]:
    """Every dump.json at or below a directory (or the file itself), sorted by step and rank.

    `proc*` folders are numbered after the last rank, in order of process id. Raises UnreadableError when there is none.
    """
    path = Path(root)
    if path.is_file():
        return [_place(path.parent, path)]
    if not path.is_dir():
        raise UnreadableError(f"{os.fspath(root)!r} does not exist")
    found = [
        _place(Path(folder), Path(folder) / "dump.json") for folder, _, names in os.walk(path) if "dump.json" in names
    ]
    if not found:
        raise UnreadableError(f"{os.fspath(root)!r} holds no dump.json; give a dump directory (step*/rank*/dump.json)")
    ranks = [place.rank for place in found if place.proc is None and not place.assumed]
    processes = sorted({place.proc for place in found if place.proc is not None})
    first = max(ranks, default=-1) + 1
    numbered = {proc: first + i for i, proc in enumerate(processes)}
    return sorted(
        DumpPlace(p.step, numbered[p.proc], p.path, p.proc, p.assumed) if p.proc is not None else p for p in found
    )


def _place(folder: Path, file: Path) -> DumpPlace:
    step = rank = proc = None
    for part in (folder, *folder.parents):
        if rank is None and proc is None:
            match, process = _RANK.fullmatch(part.name), _PROC.fullmatch(part.name)
            rank = int(match[1]) if match else None
            proc = int(process[1]) if process else None
        if step is None and (match := _STEP.fullmatch(part.name)):
            step = int(match[1])
            break
    assumed = step is None or (rank is None and proc is None)
    return DumpPlace(step or 0, rank or 0, file, proc, assumed)


def read_dump(place: DumpPlace, structure: bool = True) -> Dump:
    """Read one dump; with `structure` also its construct.json. Raises UnreadableError for what is no dump."""
    members = JsonMembers(place.path, nested=("data",))
    header: dict[str, Any] = {}
    entries: dict[str, Entry] = {}
    has_data = False
    for path, key, value in members:
        if path == "data":
            has_data = True
            entries[key] = _entry(key, value, len(entries))
        else:
            header[key] = value
            has_data |= key == "data"
    if not has_data and not members.truncated:
        raise UnreadableError(f"{place.path} is JSON but no dump: it has no member 'data'")
    dump = Dump(
        place=place,
        task=str(header.get("task", "")),
        level=str(header.get("level", "")),
        framework=str(header.get("framework", "")),
        entries=entries,
        truncated=members.truncated,
    )
    if structure:
        _attach_structure(dump)
    return dump


def _entry(key: str, value: Any, order: int) -> Entry:
    parsed = parse_key(key)
    fields = value if isinstance(value, dict) else {}
    entry = Entry(parsed, order, [], [], recompute=bool(fields.get("is_recompute")))
    if parsed.kind == GRADIENT:
        for name, held in fields.items():
            tensors = [tensor for tensor in _tensors(held) if tensor]
            if tensors:
                entry.gradients[name] = tensors[0]
        return entry
    for name in ("input_args", "input_kwargs", "input"):
        entry.inputs.extend(_tensors(fields.get(name, ())))
    entry.outputs.extend(_tensors(fields.get("output", ())))
    return entry


def _tensors(value: Any) -> Iterator[TensorStats | None]:
    """The tensors of a slot in order, None for every other leaf, so that positions stay comparable."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        if "shape" in value and ("Max" in value or "md5" in value or "Norm" in value):
            yield TensorStats(
                str(value.get("dtype", "")),
                tuple(n for n in value["shape"] if isinstance(n, int)) if isinstance(value["shape"], list) else (),
                Max=_statistic(value.get("Max")),
                Min=_statistic(value.get("Min")),
                Mean=_statistic(value.get("Mean")),
                Norm=_statistic(value.get("Norm")),
                checksum=str(value.get("md5") or ""),
                broken=any(_is_broken(value.get(name)) for name in METRICS),
            )
        elif "type" not in value:
            for item in value.values():
                yield from _tensors(item)
        elif "tensor" in value:
            yield from _tensors(value["tensor"])
        else:
            yield None
    elif value is None:
        yield None


def _is_broken(value: Any) -> bool:
    return value is not None and not isinstance(value, bool) and not math.isfinite(_statistic(value))


def _statistic(value: Any) -> float:
    if isinstance(value, bool) or value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _attach_structure(dump: Dump) -> None:
    """Parents, micro-steps and recomputation from construct.json, in any of its three shapes."""
    path = dump.place.path.with_name("construct.json")
    if not path.is_file():
        dump.notes.append("no construct.json: parents and recomputation unknown")
        return
    members = JsonMembers(path)
    parents: dict[str, str] = {}
    micro: dict[str, int] = {}
    for _, key, value in members:
        if isinstance(value, list) and len(value) == 2:
            parents[key] = str(value[0] or "")
            if isinstance(value[1], int):
                micro[key] = value[1]
        elif value is None or isinstance(value, str):
            parents[key] = value or ""
    if members.truncated:
        dump.notes.append(members.truncated)
    known = sum(key in parents for key in dump.entries)
    structural = sum(e.key.kind in (MODULE, API) for e in dump.entries.values())
    if structural and known < structural / 2:
        dump.notes.append(
            f"construct.json names {known} of {structural} entries of dump.json: it seems to be of another run"
        )
    for key, entry in dump.entries.items():
        entry.parent = parents.get(key, "")
        entry.micro_step = micro.get(key)
        if entry.key.direction == FORWARD and parse_key(entry.parent).direction == BACKWARD:
            entry.recompute = True


def read_stack(path: Path) -> dict[str, list[str]]:
    """stack.json of either layout as {key: frames}. Frames hold paths and source text: they are never printed whole."""
    stacks: dict[str, list[str]] = {}
    for _, key, value in JsonMembers(path):
        if key.isdigit() and isinstance(value, list) and len(value) == 2 and isinstance(value[0], list):
            frames = [str(frame) for frame in value[1]]
            stacks.update((str(name), frames) for name in value[0])
        elif isinstance(value, list):
            stacks[key] = [str(frame) for frame in value]
    return stacks


def user_line(frames: list[str]) -> str:
    """`file, line N, in function` of the innermost frame outside framework code, the file by its last two names."""
    for frame in frames:
        match = re.match(r"File (?P<file>.+?), line (?P<line>\d+), in (?P<name>[^,]+),", frame)
        if match and not any(
            part in match["file"] for part in ("/torch/", "/site-packages/", "/msprobe/", "wrap_tensor")
        ):
            short = "/".join(Path(match["file"]).parts[-2:])
            return f"{short}, line {match['line']}, in {match['name'].strip()}"
    return ""
