"""Reads monitor CSV (v1 and v2) into one cube per metric: many ranks and steps in one call, streaming.

Small files that share a header are parsed together, large ones in blocks, so memory holds the needed columns only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from detaudit.core.errors import UnreadableError
from detaudit.spike.csv_blocks import (
    BLOCK_BYTES,
    Block,
    BrokenLine,
    Progress,
    Schema,
    choose_parser,
    parse,
    read_header,
    text_blocks,
)
from detaudit.spike.cube import CubeBuilder, Floats, MetricCube
from detaudit.spike.monitor_files import V2_GROUPS, MonitorFile, expand, identify, in_start_order, restarts

MAX_NAMED_LINES = 20
"""Broken lines named one by one in the result; all are counted."""


@dataclass
class CsvRun:
    """What a set of monitor CSV files held: a cube per metric, and everything that was left out or merged."""

    source: str
    cubes: dict[str, MetricCube]
    available: tuple[str, ...]
    parser: str
    files: int
    rows: int
    broken: list[BrokenLine] = field(default_factory=list)
    broken_count: int = 0
    ignored: list[str] = field(default_factory=list)
    restarts: dict[int, list[str]] = field(default_factory=dict)
    assumed_rank: list[str] = field(default_factory=list)


def available_metrics(files: Iterable[MonitorFile]) -> tuple[str, ...]:
    """Metrics that the files can hold, by name of file (v1) or of file group (v2)."""
    found: dict[str, None] = {}
    for file in files:
        if file.version == 1:
            found.setdefault(file.metric)
        else:
            for (group, _), metric in V2_GROUPS.items():
                if group == file.group:
                    found.setdefault(metric)
    return tuple(found)


def read_csv(
    source: str | os.PathLike[str],
    metrics: Sequence[str],
    parser: str = "auto",
    progress: Progress | None = None,
) -> CsvRun:
    """Read the named metrics from a directory, a file or a glob.

    Raises UnreadableError when nothing fits, or a file has no usable header. Rows of a later start of the same rank
    win.
    """
    paths = expand(source)
    known = [file for path in paths if (file := identify(path))]
    ignored = [str(path) for path in paths if identify(path) is None]
    if not known:
        raise UnreadableError(
            f"{os.fspath(source)!r} holds {len(paths)} CSV file(s), none named like monitor output "
            "({metric}_{first}-{last}.csv or {group}_step{first}-{last}.csv)"
        )
    arrow, name = choose_parser(parser)
    run = CsvRun(
        source=os.fspath(source),
        cubes={},
        available=available_metrics(known),
        parser=name,
        files=0,
        rows=0,
        ignored=ignored,
        restarts=restarts(known),
        assumed_rank=[str(file.path) for file in known if "rank" not in f"{file.folder}/{file.path.name}"],
    )
    for metric in metrics:
        chosen = in_start_order([file for file in known if _may_hold(file, metric)])
        if not chosen:
            continue
        builder = CubeBuilder(metric)
        for files, schema, pieces in _batches(chosen):
            _add(builder, run, files, schema, parse(schema, pieces, arrow), metric)
            run.files += len(files)
            if progress:
                progress(f"reading {metric}", run.files, len(chosen))
        run.rows += builder.rows
        if builder.rows:
            run.cubes[metric] = without_micro_count(builder.build())
    return run


def _may_hold(file: MonitorFile, metric: str) -> bool:
    if file.version == 1:
        return file.metric == metric
    return any(group == file.group and name == metric for (group, _), name in V2_GROUPS.items())


def schema_of(path: Path, columns: tuple[str, ...], version: int) -> Schema:
    """Which column means what, by header. Raises UnreadableError when a needed column is missing."""
    name = ("name",) if version == 1 else ("module_name", "scope")
    missing = [column for column in (*name, "step") if column not in columns]
    if missing:
        raise UnreadableError(
            f"{path}: the header lacks {', '.join(missing)}; it has {', '.join(columns) or 'nothing'}"
        )
    if "norm" in columns:
        statistics: tuple[str, ...] = ("norm",)
    elif "min" in columns and "max" in columns:
        statistics = ("min", "max")
    else:
        raise UnreadableError(f"{path}: neither a norm column nor both min and max; columns: {', '.join(columns)}")
    return Schema(
        columns=columns,
        name=name,
        step="step",
        statistics=statistics,
        micro="micro_step" if "micro_step" in columns else "",
        vpp="vpp_stage" if "vpp_stage" in columns else "",
    )


_Batch = tuple[list[MonitorFile], Schema, list[tuple[Path, bytes, int]]]


def _batches(files: Sequence[MonitorFile]) -> Iterator[_Batch]:
    """Pieces of files gathered until a block is full; a batch never mixes headers."""
    schema: Schema | None = None
    held: list[MonitorFile] = []
    pieces: list[tuple[Path, bytes, int]] = []
    size = 0
    for file in files:
        columns = read_header(file.path)
        if not columns:
            continue
        if schema is None or schema.columns != columns:
            if schema is not None and pieces:
                yield held, schema, pieces
            held, pieces, size = [], [], 0
            schema = schema_of(file.path, columns, file.version)
        for text, row in text_blocks(file.path):
            held.append(file)
            pieces.append((file.path, text, row))
            size += len(text)
            if size >= BLOCK_BYTES:
                yield held, schema, pieces
                held, pieces, size = [], [], 0
    if schema is not None and pieces:
        yield held, schema, pieces


def _add(
    builder: CubeBuilder, run: CsvRun, files: Sequence[MonitorFile], schema: Schema, block: Block, metric: str
) -> None:
    """Hand the rows of a block to the cube, run of one rank after run of one rank."""
    run.broken_count += len(block.broken)
    run.broken.extend(block.broken[: MAX_NAMED_LINES - len(run.broken)])
    values = block.statistics[0] if len(schema.statistics) == 1 else largest_magnitude(*block.statistics)
    builder.statistic = "norm" if len(schema.statistics) == 1 else "absmax"
    scoped = len(schema.name) == 2
    keep = np.ones(len(values), dtype=bool)
    if scoped:
        group = files[0].group
        fits = np.array([V2_GROUPS.get((file_group, scope)) == metric for file_group, scope in _scopes(group, block)])
        keep = fits[block.name] if len(fits) else keep
    targets = _target_ids(builder, block)
    micro = block.micro
    if micro is not None:
        builder.micro_declared = True
    bounds = np.cumsum([0, *block.file_rows])
    for first, last, rank in _rank_runs(files, bounds):
        part = slice(first, last)
        mask = keep[part]
        if scoped and not mask.all():
            rows = np.flatnonzero(mask) + first
            builder.add(rank, block.step[rows], targets[rows], values[rows], None if micro is None else micro[rows])
        else:
            builder.add(rank, block.step[part], targets[part], values[part], None if micro is None else micro[part])


def without_micro_count(cube: MetricCube) -> MetricCube:
    """v2 writes the *number* of micro-batches into micro_step when they were not monitored one by one; a single value
    above zero throughout is such a count, not a coordinate."""
    used = np.flatnonzero(cube.present.any(axis=(0, 1, 2)))
    if len(used) != 1 or used[0] == 0:
        return cube
    values, present = cube.values[..., used], cube.present[..., used]
    return replace(cube, values=values, present=present, micro_declared=False)


def _scopes(group: str, block: Block) -> list[tuple[str, str]]:
    return [(group, name[1]) for name in block.names]


def _rank_runs(files: Sequence[MonitorFile], bounds: np.ndarray) -> Iterator[tuple[int, int, int]]:
    first = 0
    for i, file in enumerate(files):
        if i + 1 == len(files) or files[i + 1].rank != file.rank:
            yield int(bounds[first]), int(bounds[i + 1]), file.rank
            first = i + 1


def _target_ids(builder: CubeBuilder, block: Block) -> np.ndarray:
    """Numbers of the cube's targets for the rows of a block; names may repeat once per model chunk."""
    vpp = block.vpp
    if len(vpp) == 0 or (vpp == vpp[0]).all():
        stage = int(vpp[0]) if len(vpp) else 0
        table = np.array([builder.target_id(name[0], stage) for name in block.names], dtype=np.int32)
        return table[block.name]
    low = int(vpp.min())
    span = int(vpp.max()) - low + 1
    codes = block.name * span + (vpp - low)
    used, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    ids = np.empty(len(used), dtype=np.int32)
    for i in np.argsort(first):
        ids[i] = builder.target_id(block.names[int(used[i]) // span][0], int(used[i]) % span + low)
    return ids[inverse]


def largest_magnitude(low: Floats, high: Floats) -> Floats:
    """max(|min|, |max|): what stands in for the norm where it was not recorded."""
    return np.maximum(np.abs(low), np.abs(high))
