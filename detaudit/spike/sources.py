"""What an input of phase 1 is, and the cubes it holds: trend.db, monitor CSV, dump directories, or trails."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from detaudit.core.errors import UnreadableError, UsageError
from detaudit.core.model import StepRecord
from detaudit.spike.csv_blocks import Progress
from detaudit.spike.cube import MetricCube
from detaudit.spike.monitor_files import expand, identify
from detaudit.spike.read_csv import read_csv
from detaudit.spike.read_dump import find_dumps
from detaudit.spike.read_gradients import PARAMETERS_GRAD, gradient_cube, trail_cubes
from detaudit.spike.read_trend import is_sqlite, read_trend

CSV, TREND, DUMP, TRAIL = "csv", "trend.db", "dump", "trail"
GRADIENT_METRICS = ("grad_unreduced", PARAMETERS_GRAD, "grad", "grad_reduced")
"""In this order one of them is analysed: rank-local gradients first, reduced ones last."""
OPTIMIZER_METRICS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
DRIFT = "parameter_drift"
_DRIFT_FLOOR = 4e-6


@dataclass
class Loaded:
    """One input, read. `main` is the analysed metric; `others` are analysed beside it (optimizer state, drift, and
    grad_reduced next to grad_unreduced), never mixed into it."""

    source: str
    kind: str
    main: MetricCube
    others: dict[str, MetricCube]
    available: tuple[str, ...]
    flat: bool = False
    rows: int = 0
    notes: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """What was not seen and so cannot be called normal."""


def recognise(source: str | os.PathLike[str]) -> str:
    """The kind of an input, from what lies there. Raises UnreadableError for an empty or a mixed directory."""
    path = Path(source)
    if path.is_file():
        if is_sqlite(path):
            return TREND
        if path.suffix == ".csv":
            return CSV
        if path.suffix == ".json":
            return DUMP
        raise UnreadableError(f"{path} is neither a trend.db, a monitor CSV nor a dump.json")
    if not path.is_dir():
        expand(source)  # a glob, or its error
        return CSV
    found = {CSV: False, DUMP: False, TREND: False}
    databases: list[Path] = []
    for folder, _, names in os.walk(path):
        found[CSV] |= any(name.endswith(".csv") and identify(Path(folder) / name) for name in names)
        found[DUMP] |= "dump.json" in names
        databases.extend(Path(folder) / name for name in names if name.endswith(".db"))
    found[TREND] = bool(databases)
    kinds = [kind for kind, here in found.items() if here]
    if not kinds:
        raise UnreadableError(f"{path} holds no monitor CSV, no dump.json and no .db file")
    if len(kinds) > 1:
        raise UnreadableError(
            f"{path} holds {' and '.join(kinds)}; name one with --csv, --dump or the path of the .db file"
        )
    if kinds == [TREND]:
        raise UnreadableError(f"{path} holds {len(databases)} .db file(s); give the path of one")
    return kinds[0]


def load(
    source: str | os.PathLike[str],
    kind: str = "",
    metric: str = "",
    parser: str = "auto",
    progress: Progress | None = None,
) -> Loaded:
    """Read an input of any kind but trails. Raises UnreadableError, or UsageError when `metric` is not in it."""
    kind = kind or recognise(source)
    if kind == DUMP:
        places = find_dumps(source)
        cube, notes = gradient_cube(places, progress)
        if any(place.assumed for place in places):
            notes.append("step or rank missing in the path of a dump: taken as 0")
        return _loaded(os.fspath(source), DUMP, {PARAMETERS_GRAD: cube}, (PARAMETERS_GRAD,), metric, notes=notes)
    wanted = (*GRADIENT_METRICS, *OPTIMIZER_METRICS, "param_origin", "param_updated", *([metric] if metric else []))
    wanted = tuple(dict.fromkeys(wanted))
    if kind == TREND:
        trend = read_trend(source, wanted, progress)
        loaded = _loaded(trend.source, TREND, trend.cubes, trend.available, metric, flat=trend.flat)
        loaded.rows = trend.rows
        if trend.clipped:
            loaded.notes.append(f"{trend.clipped} value(s) were clipped infinities")
        return loaded
    run = read_csv(source, wanted, parser, progress)
    loaded = _loaded(run.source, CSV, run.cubes, run.available, metric)
    loaded.rows = run.rows
    loaded.notes.append(f"parsed with {run.parser}")
    if run.ignored:
        loaded.notes.append(f"{len(run.ignored)} CSV file(s) of other names left out, first {run.ignored[0]}")
    for rank, folders in run.restarts.items():
        loaded.notes.append(f"rank {rank} was started {len(folders)} times; where starts overlap the later one holds")
    if run.assumed_rank:
        loaded.gaps.append(f"{len(run.assumed_rank)} file(s) carry no rank in their folder name: taken as rank 0")
    if run.broken_count:
        named = "; ".join(f"{line.file} row {line.row}: {line.reason}" for line in run.broken)
        loaded.gaps.append(f"{run.broken_count} broken line(s) left out: {named}")
    return loaded


def load_trails(trails: Mapping[int, Iterable[StepRecord]], source: str, progress: Progress | None = None) -> Loaded:
    """Cubes of our own trails, one a rank."""
    cubes = trail_cubes(trails, progress)
    return _loaded(source, TRAIL, cubes, tuple(cubes), "")


def _loaded(
    source: str,
    kind: str,
    cubes: dict[str, MetricCube],
    available: tuple[str, ...],
    metric: str,
    flat: bool = False,
    notes: list[str] | None = None,
) -> Loaded:
    if metric and metric not in cubes:
        raise UsageError(f"metric {metric!r} is not in {source}; it has {', '.join(available) or 'none'}")
    name = metric or next((name for name in GRADIENT_METRICS if name in cubes), "")
    if not name:
        raise UnreadableError(f"{source} holds no gradients; it has {', '.join(available) or 'nothing'}; try --metric")
    notes = list(notes or ())
    others = {key: cubes[key] for key in (*OPTIMIZER_METRICS, "grad_reduced") if key in cubes and key != name}
    drift = parameter_drift(cubes.get("param_origin"), cubes.get("param_updated"), notes)
    if drift is not None:
        others[DRIFT] = drift
    return Loaded(source, kind, cubes[name], others, available, flat, int(cubes[name].present.sum()), notes)


def parameter_drift(origin: MetricCube | None, updated: MetricCube | None, notes: list[str]) -> MetricCube | None:
    """| ||updated|| - ||origin|| | per parameter and step: a lower bound of the norm of the update, the most that two
    norms can tell. None unless both were recorded alike."""
    if origin is None or updated is None:
        return None
    if (origin.ranks, origin.targets, origin.steps) != (updated.ranks, updated.targets, updated.steps):
        notes.append("param_origin and param_updated were not recorded alike: no parameter drift")
        return None
    with np.errstate(invalid="ignore"):
        moved = np.abs(updated.values - origin.values)
    moved = np.where(np.isfinite(moved), np.maximum(moved, _DRIFT_FLOOR), moved)  # six decimals hold no more
    return replace(origin, metric=DRIFT, values=moved, present=origin.present & updated.present)
