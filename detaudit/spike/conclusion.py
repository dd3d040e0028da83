"""What phase 3 may say of a direction, and what it may not.

"Consistent" is the only clean word, and it is refused while any layer was not compared, without a control group, with a
control group that is itself off, or with a dump cut short.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from detaudit.spike.contrast import ABSENT, FLOOR, METRICS, NEAR_ZERO_TEXT, AnchorTable, Cell, Row
from detaudit.spike.dump_keys import BACKWARD, FORWARD
from detaudit.spike.layers import Layer
from detaudit.spike.starts import DirectionResult

DIVERGES, UNCONFIRMED, CONSISTENT = "diverges", "diverges (unconfirmed)", "consistent"
UNDECIDED, NOT_COMPARED = "undecided", "not compared"


def uncompared(tables: Sequence[AnchorTable], direction: str) -> list[dict[str, Any]]:
    """Cells that had to be compared and could not be, with their reasons. Values near zero, and a metric other than the
    norm that no side recorded, are no gaps; a layer without this direction is one if other layers have it."""
    gaps: list[dict[str, Any]] = []
    for table in tables:
        recorded = any(cell.flag is not None for row in table.rows for cell in _cells(row, direction))
        for row in table.rows:
            reasons: dict[str, list[str]] = {}
            for metric in METRICS:
                cell = row.cells[direction, metric]
                if cell.flag is None and not _harmless(cell, metric, recorded):
                    reasons.setdefault(cell.why, []).append(metric)
            for why, metrics in reasons.items():
                gaps.append({"layer": row.layer.label, "anchor": table.anchor, "metrics": metrics, "why": why})
    return gaps


def _cells(row: Row, direction: str) -> list[Cell]:
    return [row.cells[direction, metric] for metric in METRICS]


def _harmless(cell: Cell, metric: str, recorded: bool) -> bool:
    if cell.why.endswith(NEAR_ZERO_TEXT):
        return True
    if cell.why == ABSENT:
        return not recorded
    return metric != "Norm" and bool(cell.values) and all(math.isnan(value) for value in cell.values.values())


def suspects(tables: Sequence[AnchorTable]) -> list[dict[str, Any]]:
    """Series whose control ratio C/D is off 1 by more than the floor: alignment of the data is in doubt there."""
    rows = []
    for table in tables:
        for (direction, metric), middle in table.control_median.items():
            if math.isfinite(middle) and abs(middle) > FLOOR and metric != "Mean":
                ratio = round(math.exp(middle), 6)
                rows.append({"anchor": table.anchor, "direction": direction, "metric": metric, "median_c_d": ratio})
    return rows


def non_finite(tables: Sequence[AnchorTable], order: Sequence[Layer], direction: str) -> list[str]:
    """Layers whose statistics are NaN or infinite in A and not in B, in order of execution."""
    hit = {
        row.layer
        for table in tables
        for row in table.rows
        if "A" in row.broken.get(direction, ()) and "B" not in row.broken.get(direction, ())
    }
    return [layer.label for layer in order if layer in hit]


def judge(
    result: DirectionResult,
    gaps: Sequence[Mapping[str, Any]],
    suspect: Sequence[Mapping[str, Any]],
    broken: Sequence[str],
    controlled: bool,
    cut: bool,
) -> dict[str, Any]:
    """The verdict on one direction with its evidence, JSON-ready."""
    doubtful = [row for row in suspect if row["direction"] == result.direction]
    if result.start is not None or broken:
        verdict = DIVERGES if result.confirmed or broken else UNCONFIRMED
        why = "flagged layers" if result.start is not None else "not finite in A, finite in B"
    elif not result.compared:
        verdict, why = NOT_COMPARED, "no layer could be compared"
    elif gaps:
        verdict, why = UNDECIDED, f"{len(gaps)} layer(s) not compared: an empty list of flags does not mean normal"
    elif cut:
        verdict, why = UNDECIDED, "a dump is cut short: what is missing was not compared"
    elif not controlled:
        verdict, why = UNDECIDED, "no control group: A/B agree within 3 %, but C/D noise is unknown"
    elif doubtful:
        verdict, why = UNDECIDED, "C/D is off 1: the control group is not aligned"
    else:
        verdict, why = CONSISTENT, "every layer was compared and none is flagged"
    start = result.start.label if result.start is not None else (broken[0] if broken else None)
    return {
        "verdict": verdict,
        "why": why,
        "start": start,
        "confirmed": result.confirmed,
        "earlier_candidates": [layer.label for layer in result.candidates],
        "flagged_layers": [layer.label for layer in result.flagged],
        "non_finite_layers": list(broken),
        "peak_layer": result.peak[0].label if result.peak else None,
        "peak_ratio": float(f"{math.exp(min(result.peak[1], 700)):.6g}") if result.peak else None,
        "metric_starts": {
            metric: {
                "first_flagged": start.first.label if start.first else None,
                "main_segment_start": start.main_segment.label if start.main_segment else None,
                "lone_flags": [layer.label for layer in start.lone],
            }
            for metric, start in result.starts.items()
        },
        "search": [{"metric": metric, "start": layer.label} for metric, layer in result.moves],
        "disagreements": [f"{metric}→{layer.label}" for metric, layer in result.disagreements],
        "cells_compared": result.compared,
    }


def inside_only(part: dict[str, Any], layer: Layer) -> None:
    """Move the start of a direction to an earlier layer whose operators differ while its modules' outputs do not."""
    part["start_by_outputs"] = part["start"]
    part["start"] = layer.label
    part["verdict"] = DIVERGES
    part["why"] = f"operators inside {layer.label} differ, the outputs of its modules do not"


def priority(forward: Mapping[str, Any], backward: Mapping[str, Any]) -> dict[str, Any]:
    """Which direction to follow first: a forward divergence always, being computed first."""
    ahead = forward["verdict"] in (DIVERGES, UNCONFIRMED)
    behind = backward["verdict"] in (DIVERGES, UNCONFIRMED)
    if ahead:
        text = f"[P0] follow the forward pass from {forward['start']}: the backward pass consumes what it produced"
        if behind and (backward["peak_ratio"] or 0) > 2 * (forward["peak_ratio"] or 0):
            text += "; the backward pass amplifies it"
        return {"direction": FORWARD, "start": forward["start"], "text": text}
    if behind:
        if forward["verdict"] == CONSISTENT:
            text = f"[P0] the backward pass diverges by itself from {backward['start']}"
        else:
            text = (
                f"the backward pass diverges from {backward['start']}; the forward pass is {forward['verdict']} "
                f"({forward['why']}), so it may still be the source"
            )
        return {"direction": BACKWARD, "start": backward["start"], "text": text}
    text = f"forward {forward['verdict']} ({forward['why']}); backward {backward['verdict']} ({backward['why']})"
    return {"direction": None, "start": None, "text": text}
