"""A trail as JSON lines or CSV, one row a leaf and step, for DuckDB, Spark, Polars or a spreadsheet.

Digests are hexadecimal text: as numbers, many readers would round them.
"""

from __future__ import annotations

import csv
import json
import math
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
    """Write JSON lines; returns the number of rows. An overflowed sum of squares is the text "inf": JSON has no
    number for it."""
    count = 0
    for row in rows(trail, rank):
        finite = {key: str(value) if value == math.inf else value for key, value in row.items()}
        out.write(json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n")
        count += 1
    return count


def write_csv(trail: TrailReader, out: TextIO, rank: str = "", head: bool = True) -> int:
    """Write CSV with a head line unless told otherwise; returns the number of rows. Open `out` with newline=""."""
    columns = COLUMNS + (STATS_COLUMNS if trail.has_stats else ())
    # csv quotes a field for a line feed but not for a carriage return, and would read it back as two lines.
    returns = any("\r" in leaf.name + leaf.unsupported for layout in trail.layouts for leaf in layout.leaves)
    table = csv.DictWriter(
        out, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    )
    if head:
        table.writeheader()
    count = 0
    for row in rows(trail, rank):
        table.writerow(row)
        count += 1
    return count
