"""Reads a run directory (docs/notes/trainsect-format.md): settings, the chained logs, checkpoints, generator states."""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detaudit.core.errors import InconclusiveError, UnreadableError, UsageError
from detaudit.trainsect.chainlog import ChainLog, read_log, read_loss
from detaudit.trainsect.model import CheckpointEntry, Evaluation, Event, StepEntry
from detaudit.trainsect.pack import PackReader

SCHEMA = "detaudit.trainsect.run/1"
LOG, EVALUATIONS, SETTINGS, FOLDER = "log.jsonl", "evaluations.jsonl", "run.json", "checkpoints"


@dataclass(frozen=True)
class ShardMap:
    """Which shard a sample belongs to: the i-th shard ends before `bounds[i]`; `names` are theirs."""

    bounds: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def parse(cls, value: Mapping[str, Any], pool: int | None) -> ShardMap:
        """From {"blocks": N} (with a pool), or {"bounds": [...], "names": [...]}. Raises UsageError."""
        if "blocks" in value:
            size = int(value["blocks"])
            if pool is None or size < 1:
                raise UsageError(f"shards in blocks of {size} need the size of the pool and a block of at least 1")
            bounds = tuple(min(end, pool) for end in range(size, pool + size, size))
        else:
            bounds = tuple(int(bound) for bound in value.get("bounds", ()))
        names = tuple(map(str, value.get("names") or [f"shard-{i}" for i in range(len(bounds))]))
        if not bounds or list(bounds) != sorted(set(bounds)) or len(names) != len(bounds):
            raise UsageError(f"shards={dict(value)!r:.120}: bounds must rise, with a name each")
        return cls(bounds, names)

    def shard_of(self, sample: int) -> str:
        place = bisect.bisect_right(self.bounds, sample)
        if sample < 0 or place >= len(self.bounds):
            raise UsageError(f"sample {sample} lies in no shard; the last one ends before {self.bounds[-1]}")
        return self.names[place]


@dataclass(frozen=True)
class RecordedRun:
    """A run as it was recorded; implements `model.Run`."""

    directory: Path
    settings: Mapping[str, Any]
    steps: Mapping[int, StepEntry]
    evaluations: tuple[Evaluation, ...]
    checkpoints: Mapping[int, CheckpointEntry]
    warnings: tuple[str, ...]
    instrumented: bool
    events: tuple[Event, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    rng: PackReader | None = None
    tape: PackReader | None = None
    digest: str = ""
    """The last chain of the log: what a cached replay is bound to."""

    @property
    def pool(self) -> range | None:
        count = self.settings.get("pool")
        return range(int(count)) if count is not None else None

    def shard_of(self, sample: int) -> str:
        shards, pool = self.settings.get("shards"), self.settings.get("pool")
        if not shards:
            raise UsageError(
                f"{self.directory} has no shard map; record with shards=, `--shards`, or give the target a shard_of(id)"
            )
        if pool is not None and not 0 <= sample < int(pool):
            raise UsageError(f"sample {sample} is not in the pool of {pool}")
        return ShardMap.parse(shards, pool).shard_of(sample)


def open_run(directory: Path | str) -> RecordedRun:
    """Read a run directory. Raises UnreadableError for what is none or has steps out of order, TrailCorruptError for a
    changed log."""
    path = Path(directory)
    settings = _settings(path)
    warnings: list[str] = []
    if not (path / LOG).exists():
        checkpoints = _from_sidecars(path)
        if not checkpoints:
            raise UnreadableError(f"{path} holds neither recorder data ({LOG}) nor checkpoints")
        return RecordedRun(path, settings, {}, _evaluations(path, warnings), checkpoints, tuple(warnings), False)
    log = read_log(path / LOG)
    _tell(path / LOG, log, warnings)
    steps = _steps(path / LOG, log)
    lost = [entry.step for entry in steps.values() if entry.rng_missing]
    if lost:
        warnings.append(
            f"{len(lost)} steps have no generator states, the first is {lost[0]}: {steps[lost[0]].rng_missing}"
        )
    return RecordedRun(
        directory=path,
        settings=settings,
        steps=steps,
        evaluations=_evaluations(path, warnings),
        checkpoints=_checkpoints(path, log),
        warnings=tuple(warnings),
        instrumented=bool(steps),
        events=tuple(Event(x["step"], x["event"], x["text"]) for x in log.lines if x["kind"] == "event"),
        flags=next((line["flags"] for line in log.lines if line["kind"] == "flags"), {}),
        rng=PackReader(path / "rng.pack", _places(log, "rng")),
        tape=PackReader(path / "tape.pack", _places(log, "tape")),
        digest=log.chain,
    )


def _settings(path: Path) -> dict[str, Any]:
    try:
        value = json.loads((path / SETTINGS).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path} is not a run directory of Trainsect: {SETTINGS}: {error}") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnreadableError(f"{path / SETTINGS} is not of schema {SCHEMA}")
    return value


def _tell(path: Path, log: ChainLog, warnings: list[str]) -> None:
    if log.torn:
        warnings.append(f"{path.name}: {log.torn} bytes of a torn tail were dropped")
    ended = next((line for line in log.lines if line["kind"] == "end"), None)
    if path.name == LOG and ended is None:
        warnings.append(f"{path.name} has no end: the run was killed, or the file was cut off")
    elif ended is not None and ended["outcome"] != "complete":
        warnings.append(f"the run ended by {ended['outcome']}")


def _steps(path: Path, log: ChainLog) -> dict[int, StepEntry]:
    steps: dict[int, StepEntry] = {}
    last: int | None = None
    for line in log.lines:
        if line["kind"] != "step":
            continue
        step = line["step"]
        if last is not None and step != last + 1:
            raise UnreadableError(f"{path}: step {step} follows step {last}; steps are out of order")
        ids = line["ids"]
        steps[step] = StepEntry(
            step=step,
            ids=None if ids is None else tuple(tuple(row) for row in ids),
            batch=line["batch"],
            rng=line["rng"],
            rng_missing=line["rng_missing"],
            loss=read_loss(line["loss"]),
            skipped=line["skipped"],
            tape=line["tape"],
            loader=line["loader"],
        )
        last = step
    return steps


def _places(log: ChainLog, kind: str) -> dict[str, tuple[int, int]]:
    return {line["sha256"]: (line["offset"], line["bytes"]) for line in log.lines if line["kind"] == kind}


def _evaluations(path: Path, warnings: list[str]) -> tuple[Evaluation, ...]:
    if not (path / EVALUATIONS).exists():
        return ()
    log = read_log(path / EVALUATIONS)
    _tell(path / EVALUATIONS, log, warnings)
    found = [Evaluation(line["step"], float(read_loss(line["loss"]) or 0.0), line["data"]) for line in log.lines]
    return tuple(sorted(found, key=lambda evaluation: evaluation.step))


def _checkpoints(path: Path, log: ChainLog) -> dict[int, CheckpointEntry]:
    lines = [line for line in log.lines if line["kind"] == "checkpoint"]
    return {
        x["step"]: CheckpointEntry(x["step"], path / x["file"], x["sha256"], x["state"], x["parameters"]) for x in lines
    }


def _from_sidecars(path: Path) -> dict[int, CheckpointEntry]:
    found = {}
    for file in sorted((path / FOLDER).glob("step-*.json")):
        value = json.loads(file.read_text("utf-8"))
        entry = CheckpointEntry(
            value["step"], file.with_suffix(".pt"), value["sha256"], value["state"], value["parameters"]
        )
        found[entry.step] = entry
    return found


def states_of(run: RecordedRun, step: int) -> dict[str, bytes]:
    """The generator states at the start of a recorded step. Raises InconclusiveError where they were not kept."""
    entry = run.steps.get(step)
    if entry is None or run.rng is None:
        raise InconclusiveError(f"step {step} is not in the recording of {run.directory}")
    if entry.rng_missing:
        raise InconclusiveError(
            f"step {step} cannot be replayed: its generator states are missing: {entry.rng_missing}"
        )
    return {name: run.rng.get(sha) for name, sha in entry.rng.items()}
