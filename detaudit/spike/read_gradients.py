"""Cubes from sources that are no monitor output: parameter gradients of dumps, and our own trails with stats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from detaudit.core.errors import UnreadableError
from detaudit.core.model import StepRecord
from detaudit.spike.csv_blocks import Progress
from detaudit.spike.cube import CubeBuilder, MetricCube
from detaudit.spike.dump_keys import GRADIENT, parse_key
from detaudit.spike.json_stream import JsonMembers
from detaudit.spike.read_dump import DumpPlace, _entry

PARAMETERS_GRAD = "parameters_grad"


def gradient_cube(places: Sequence[DumpPlace], progress: Progress | None = None) -> tuple[MetricCube, list[str]]:
    """Norms of parameters_grad entries over all dumps, and what could not be read.

    The index of a key counts hook triggers across steps, so the micro-step is the place among the triggers of one
    parameter in one step. Raises UnreadableError when no dump holds a parameter gradient with a norm.
    """
    builder = CubeBuilder(PARAMETERS_GRAD)
    notes: list[str] = []
    for done, place in enumerate(places, 1):
        members = JsonMembers(place.path, nested=("data",))
        seen: Counter[str] = Counter()
        rows: list[tuple[int, int, float]] = []
        for path, text, value in members:
            key = parse_key(text) if path == "data" else None
            if key is None or key.kind != GRADIENT:
                continue
            for name, tensor in _entry(text, value, 0).gradients.items():
                target = f"{key.path}.{name}"
                rows.append((builder.target_id(target, int(key.chunk or 0)), seen[target], tensor.Norm))
                seen[target] += 1
        if members.truncated:
            notes.append(members.truncated)
        if not rows:
            notes.append(f"{place.label}: no parameter gradients")
        else:
            targets, micro, norms = (np.array(column) for column in zip(*rows, strict=True))
            builder.add(place.rank, np.full(len(rows), place.step), targets, norms.astype(np.float64), micro)
        if progress:
            progress("reading dumps", done, len(places))
    if not builder.rows:
        raise UnreadableError(
            f"none of {len(places)} dump(s) holds parameters_grad entries; collect at level L0 or mix to see gradients"
        )
    cube = builder.build()
    builder.micro_declared = cube.micro_steps > 1
    return cube, notes


OPTIMIZER_SUFFIXES = ("exp_avg", "exp_avg_sq", "momentum_buffer")


def trail_cubes(trails: Mapping[int, Iterable[StepRecord]], progress: Progress | None = None) -> dict[str, MetricCube]:
    """Cubes from trails recorded with stats, one trail a rank: `grad.*` leaves as metric grad, optimizer state by name.

    A further occurrence of a leaf in one step (`name#n`) is its n-th micro-step. A leaf with NaN elements counts as
    NaN, one with infinite elements as infinite. Raises UnreadableError for trails without stats or gradients.
    """
    builders: dict[str, CubeBuilder] = {}
    steps = without_stats = 0
    for done, (rank, records) in enumerate(sorted(trails.items()), 1):
        for record in records:
            steps += 1
            if not record.stats:
                without_stats += 1
                continue
            rows: dict[str, list[tuple[int, int, float]]] = {}
            for leaf, stats in zip(record.layout.leaves, record.stats, strict=True):
                metric = _metric_of(leaf.name)
                if metric:
                    name, _, occurrence = leaf.name.partition("#")
                    builder = builders.setdefault(metric, CubeBuilder(metric))
                    norm = math.nan if stats.nans else math.inf if stats.infs else math.sqrt(stats.sumsq)
                    micro = int(occurrence) if occurrence.isdigit() else 0
                    rows.setdefault(metric, []).append((builder.target_id(name), micro, norm))
            for metric, found in rows.items():
                targets, micros, norms = (np.array(column) for column in zip(*found, strict=True))
                builders[metric].micro_declared |= bool(micros.any())
                builders[metric].add(rank, np.full(len(found), record.step), targets, norms.astype(np.float64), micros)
        if progress:
            progress("reading trails", done, len(trails))
    if "grad" not in builders:
        why = "without stats; record them with DETAUDIT_STATS=1" if without_stats else "without grad.* leaves"
        raise UnreadableError(f"{steps} steps in {len(trails)} trail(s), {why}")
    return {metric: builder.build() for metric, builder in builders.items()}


def _metric_of(leaf: str) -> str:
    name = leaf.partition("#")[0]
    if name.startswith("grad."):
        return "grad"
    if name.startswith("optim."):
        last = name.rsplit(".", 1)[-1]
        return last if last in OPTIMIZER_SUFFIXES else ""
    return ""
