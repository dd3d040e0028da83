"""Reads trend.db (SQLite, as data2db writes it) into cubes through SQL, never the whole database.

Metric and statistic columns are looked up by name: a database with activations numbers its metrics differently, and a
statistic that never occurred has no column. NULL norms are NaN that SQLite cannot hold; +-(1e9+1) are clipped
infinities.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detaudit.core.errors import UnreadableError
from detaudit.spike.csv_blocks import Progress
from detaudit.spike.cube import CubeBuilder, Floats, MetricCube
from detaudit.spike.read_csv import largest_magnitude

MAGIC = b"SQLite format 3\0"
CLIPPED_INFINITY = 1e9
"""data2db clips finite values to +-1e9 and writes infinities as +-(1e9 + 1)."""
FETCH = 65536
_NULL = -8.5e300  # stands in for NULL on the way through fromiter; no statistic is clipped there


@dataclass
class TrendRun:
    """What a trend.db held. `flat` says that its steps may be flattened micro-steps: no target carries a micro-step."""

    source: str
    cubes: dict[str, MetricCube]
    available: tuple[str, ...]
    variant: str
    flat: bool
    rows: int
    clipped: int = 0


def is_sqlite(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_trend(source: str | os.PathLike[str], metrics: Sequence[str], progress: Progress | None = None) -> TrendRun:
    """Read the named metrics of a trend.db. Raises UnreadableError when it is no trend.db or lacks a usable
    statistic."""
    path = Path(source)
    if not path.is_file():
        raise UnreadableError(f"{path} is not a file")
    if not is_sqlite(path):
        raise UnreadableError(f"{path} is not an SQLite database; give --csv or --dump for other formats")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        return _read(connection, path, metrics, progress)
    except sqlite3.DatabaseError as error:
        raise UnreadableError(f"{path}: {error}") from error
    finally:
        connection.close()


def _read(connection: sqlite3.Connection, path: Path, metrics: Sequence[str], progress: Progress | None) -> TrendRun:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    lacking = {"trend_data", "monitoring_targets", "monitoring_metrics"} - tables
    if lacking:
        raise UnreadableError(f"{path} is SQLite but no trend.db: it lacks {', '.join(sorted(lacking))}")
    numbers: dict[str, int] = dict(connection.execute("SELECT metric_name, metric_id FROM monitoring_metrics"))
    columns = [row[1] for row in connection.execute("PRAGMA table_info(trend_data)")]
    statistics = ["norm"] if "norm" in columns else [c for c in ("min", "max") if c in columns]
    if statistics not in (["norm"], ["min", "max"]):
        raise UnreadableError(
            f"{path}: trend_data has neither norm nor both min and max; columns: {', '.join(columns)}"
        )
    targets = connection.execute(
        "SELECT target_id, target_name, vpp_stage, micro_step FROM monitoring_targets ORDER BY target_id"
    ).fetchall()
    declared = any(micro for *_, micro in targets)
    run = TrendRun(
        source=str(path),
        cubes={},
        available=tuple(sorted(numbers, key=lambda name: numbers[name])),
        variant="dump" if "parameters_grad" in numbers else "monitor",
        flat=not declared,
        rows=0,
    )
    for metric in metrics:
        if metric in numbers:
            cube, clipped = _cube(connection, metric, numbers[metric], statistics, targets, declared, progress)
            if cube is not None:
                run.cubes[metric] = cube
                run.rows += int(cube.present.sum())
                run.clipped += clipped
    return run


def _cube(
    connection: sqlite3.Connection,
    metric: str,
    number: int,
    statistics: list[str],
    targets: list[tuple[int, str, int, int]],
    declared: bool,
    progress: Progress | None,
) -> tuple[MetricCube | None, int]:
    """One metric streamed in primary-key order. A target is (name, chunk); its micro-step is a coordinate."""
    builder = CubeBuilder(metric, "norm" if statistics == ["norm"] else "absmax", declared)
    size = 1 + max((row[0] for row in targets), default=0)
    place = np.zeros(size, dtype=np.int32)
    micro_of = np.zeros(size, dtype=np.int16)
    for target, name, vpp, micro in targets:
        place[target] = builder.target_id(name, vpp)
        micro_of[target] = micro
    clipped = 0
    columns = ", ".join(f"ifnull({statistic}, {_NULL!r})" for statistic in statistics)
    query = f"SELECT step, target_id, {columns} FROM trend_data WHERE rank = ? AND metric_id = ?"
    width = 2 + len(statistics)
    ranks = _ranks(connection)
    for done, rank in enumerate(ranks, 1):
        cursor = connection.execute(query, (rank, number))
        while rows := cursor.fetchmany(FETCH):
            flat = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.float64, count=width * len(rows))
            table = flat.reshape(len(rows), width)
            table[table == _NULL] = np.nan
            values = table[:, 2].copy() if width == 3 else largest_magnitude(table[:, 2], table[:, 3])
            values, infinite = unclip(values)
            clipped += infinite
            ids = table[:, 1].astype(np.int64)
            micro_steps = micro_of[ids] if declared else None
            builder.add(rank, table[:, 0].astype(np.int64), place[ids], values, micro_steps)
        if progress:
            progress(f"reading {metric}", done, len(ranks))
    return (builder.build().without_empty_targets() if builder.rows else None), clipped


def _ranks(connection: sqlite3.Connection) -> list[int]:
    """The ranks, one seek in the primary key each."""
    found: list[int] = []
    last = -1
    while True:
        (rank,) = connection.execute("SELECT min(rank) FROM trend_data WHERE rank > ?", (last,)).fetchone()
        if rank is None:
            return found
        found.append(rank)
        last = rank


def unclip(values: Floats) -> tuple[Floats, int]:
    """Values beyond +-1e9 are infinities that data2db clipped; returned as such, with their count."""
    beyond = np.abs(values) > CLIPPED_INFINITY
    count = int(beyond.sum())
    return (np.where(beyond, np.copysign(np.inf, values), values) if count else values), count
