"""Where a divergence begins: per direction, from the flags of all anchors and metrics.

Both answers are given: the first flagged layer, and the start of the main segment (the longest run of flagged
layers). The verdict is the first flagged layer that a second metric, a second anchor or a neighbouring layer
confirms; flags before it stay listed as candidates. The search then asks every other metric for an earlier start
until none moves it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from detaudit.spike.contrast import METRICS, AnchorTable
from detaudit.spike.layers import Layer


@dataclass(frozen=True)
class MetricStart:
    """One metric in one direction: all flagged layers, the first one, where the longest run begins, and the flags that
    nothing confirms."""

    metric: str
    flagged: tuple[Layer, ...]
    first: Layer | None
    main_segment: Layer | None
    lone: tuple[Layer, ...]


@dataclass
class DirectionResult:
    """The conclusion of one direction. `moves` is the trail of the search, metric by metric; `compared` counts
    cells."""

    direction: str
    start: Layer | None
    confirmed: bool
    starts: dict[str, MetricStart]
    moves: list[tuple[str, Layer]]
    disagreements: list[tuple[str, Layer]]
    candidates: list[Layer]
    peak: tuple[Layer, float] | None
    compared: int
    flagged: list[Layer] = field(default_factory=list)


def longest_run(order: Sequence[Layer], compared: set[Layer], flagged: set[Layer]) -> list[Layer]:
    """The longest run of flagged layers among the compared ones, the earliest of equally long ones. Layers that were
    not compared neither end a run nor count in it."""
    best: list[Layer] = []
    run: list[Layer] = []
    for layer in order:
        if layer in flagged:
            run.append(layer)
            if len(run) > len(best):
                best = list(run)
        elif layer in compared:
            run = []
    return best


def conclude(tables: Sequence[AnchorTable], order: Sequence[Layer], direction: str) -> DirectionResult:
    """The start of the divergence in one direction. `order` is the order of execution of that direction."""
    flags: dict[Layer, set[tuple[str, str]]] = {}
    seen: dict[str, set[Layer]] = {metric: set() for metric in METRICS}
    by_metric: dict[str, set[Layer]] = {metric: set() for metric in METRICS}
    peak: tuple[Layer, float] | None = None
    compared = 0
    for table in tables:
        for row in table.rows:
            for metric in METRICS:
                cell = row.cells[direction, metric]
                if cell.flag is None:
                    continue
                compared += 1
                seen[metric].add(row.layer)
                if cell.flag:
                    flags.setdefault(row.layer, set()).add((table.anchor, metric))
                    by_metric[metric].add(row.layer)
                    if peak is None or abs(cell.distance) > abs(peak[1]):
                        peak = (row.layer, cell.distance)
    everywhere = set().union(*seen.values())
    confirmed = _confirmed(order, everywhere, flags)
    starts = {
        metric: MetricStart(
            metric,
            flagged := tuple(layer for layer in order if layer in by_metric[metric]),
            flagged[0] if flagged else None,
            next(iter(longest_run(order, seen[metric], by_metric[metric])), None),
            tuple(layer for layer in flagged if layer not in confirmed),
        )
        for metric in METRICS
    }
    start, moves = _search(order, by_metric, confirmed)
    flagged_layers = [layer for layer in order if layer in flags]
    sure = start is not None
    if start is None and flagged_layers:
        start = flagged_layers[0]
    place = {layer: i for i, layer in enumerate(order)}
    disagreements = [
        (metric, own)
        for metric in METRICS
        if (own := next((layer for layer in starts[metric].flagged if layer in confirmed), None)) not in (None, start)
    ]
    return DirectionResult(
        direction,
        start,
        sure,
        starts,
        moves,
        [(metric, layer) for metric, layer in disagreements if layer is not None],
        [layer for layer in flagged_layers if start is not None and place[layer] < place[start]],
        peak,
        compared,
        flagged_layers,
    )


def _confirmed(order: Sequence[Layer], compared: set[Layer], flags: dict[Layer, set[tuple[str, str]]]) -> set[Layer]:
    """Flagged layers with two flags of their own, or with a flagged neighbour among the compared layers."""
    confirmed = {layer for layer, marks in flags.items() if len(marks) >= 2}
    line = [layer for layer in order if layer in compared]
    for one, other in itertools.pairwise(line):
        if one in flags and other in flags:
            confirmed |= {one, other}
    return confirmed


def _search(
    order: Sequence[Layer], by_metric: dict[str, set[Layer]], confirmed: set[Layer]
) -> tuple[Layer | None, list[tuple[str, Layer]]]:
    """Start with the norm, then ask every other metric for an earlier confirmed layer, until none has one. Each round
    moves to an earlier layer, so it ends."""
    place = {layer: i for i, layer in enumerate(order)}
    firsts = {
        metric: min((place[layer] for layer in layers & confirmed), default=None)
        for metric, layers in by_metric.items()
    }
    at: int | None = None
    moves: list[tuple[str, Layer]] = []
    for metric in ("Norm", "Max", "Min", "Mean"):
        first = firsts[metric]
        if first is not None:
            at = first
            moves.append((metric, order[first]))
            break
    while at is not None:
        earlier = [(first, metric) for metric, first in firsts.items() if first is not None and first < at]
        if not earlier:
            break
        at, metric = min(earlier)
        moves.append((metric, order[at]))
    return (None if at is None else order[at]), moves
