"""A trail as JSON lines or CSV, one row a leaf and step, for DuckDB, Spark, Polars or a spreadsheet.

Digests are hexadecimal text: as numbers, many readers would round them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import TextIO

from detaudit.core.model import Leaf, Stats
from detaudit.trail.reader import TrailReader

COLUMNS = ("rank", "step", "kind", "optimizer", "order", "leaf", "dtype", "shape", "digest", "unsupported")
STATS_COLUMNS = ("bag", "sumsq", "low", "high", "nans", "infs")


def rows(trail: TrailReader, rank: str = "") -> Iterator[dict[str, object]]:
    """One dict a leaf and step, in execution order; keys are COLUMNS, and STATS_COLUMNS where there are stats."""
    for record in trail:
        for order, (leaf, digest) in enumerate(zip(record.layout.leaves, record.digests, strict=True)):
            row: dict[str, object] = {
                "rank": rank,
                "step": record.step,
                "kind": str(record.layout.kind),
                "optimizer": record.layout.optimizer,
                "order": order,
                **_leaf_columns(leaf, digest),
            }
            if record.stats:
                row |= _stats_columns(record.stats[order])
            yield row


def _leaf_columns(leaf: Leaf, digest: int) -> dict[str, object]:
    return {
        "leaf": leaf.name,
        "dtype": leaf.dtype,
        "shape": "x".join(map(str, leaf.shape)),
        "digest": "" if leaf.unsupported else f"{digest:016x}",
        "unsupported": leaf.unsupported,
    }


def _stats_columns(stats: Stats) -> dict[str, object]:
    numbers = {name: getattr(stats, name) for name in STATS_COLUMNS}
    return {**numbers, "bag": f"{stats.bag:016x}"}


def write_jsonl(trail: TrailReader, out: TextIO, rank: str = "") -> int:
    """Write JSON lines; returns the number of rows."""
    count = 0
    for count, row in enumerate(rows(trail, rank), start=1):
        out.write(json.dumps(row, ensure_ascii=False) + "\n")
    return count


def write_csv(trail: TrailReader, out: TextIO, rank: str = "", head: bool = True) -> int:
    """Write CSV with a head line unless told otherwise; returns the number of rows."""
    columns = COLUMNS + (STATS_COLUMNS if trail.has_stats else ())
    table = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    if head:
        table.writeheader()
    count = 0
    for count, row in enumerate(rows(trail, rank), start=1):
        table.writerow(row)
    return count
