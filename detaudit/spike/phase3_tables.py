"""Rows of the phase-3 result, JSON-ready."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from detaudit.spike.contrast import METRICS, SIDES, AnchorTable, Cell
from detaudit.spike.drilldown import Drilldown, Operator
from detaudit.spike.dump_keys import BACKWARD, FORWARD
from detaudit.spike.read_dump import Dump, read_stack, user_line

MAX_OPERATORS = 400
MAX_UNMATCHED = 40


def number(value: float) -> float | None:
    """Eight significant digits; None for what is not finite."""
    return float(f"{value:.8g}") if math.isfinite(value) else None


def ratio(log: float, negative: bool = False) -> float | None:
    """The ratio of a log distance, negative where the signs differ."""
    if not math.isfinite(log):
        return None
    value = math.exp(min(log, 700.0))
    return number(-value if negative else value)


def anchor_json(table: AnchorTable) -> dict[str, Any]:
    """One anchor's table with the seed's keys (fwd, bwd, f_ab, f_cd, f_anomaly and the like)."""
    return {
        "name": table.anchor,
        "thresholds": {
            f"{direction}.{metric}": {
                "ratio": number(math.exp(table.thresholds[direction, metric])),
                "learned_from_control": table.learned[direction, metric],
                "median_c_d": ratio(table.control_median[direction, metric]),
            }
            for direction, metric in table.thresholds
        },
        "layers": [
            {
                "layer": row.layer.number if row.layer.number is not None else row.layer.label,
                "path": row.layer.label,
                "metrics": {
                    metric: _metric(row.cells[FORWARD, metric], row.cells[BACKWARD, metric]) for metric in METRICS
                },
                "alignment": row.entries,
                "not_finite": {direction: sides for direction, sides in row.broken.items() if sides},
            }
            for row in table.rows
        ],
    }


def _metric(forward: Cell, backward: Cell) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for prefix, name, cell in (("f", "fwd", forward), ("b", "bwd", backward)):
        result[name] = [number(cell.values[side]) if side in cell.values else None for side in SIDES]
        flipped_cd = "C" in cell.values and "D" in cell.values and (cell.values["C"] < 0) != (cell.values["D"] < 0)
        result[f"{prefix}_ab"] = ratio(cell.log_ab, cell.sign_flip)
        result[f"{prefix}_cd"] = ratio(cell.log_cd, flipped_cd)
        result[f"{prefix}_anomaly"] = ratio(cell.distance, cell.sign_flip)
        result[f"{prefix}_flag"] = cell.flag
        if cell.why:
            result[f"{prefix}_why"] = cell.why
    return result


def data_features(dumps: Mapping[str, Dump]) -> dict[str, Any]:
    """Shapes (and, where recorded, checksums) of the first operator's inputs on every side: batches that differ in
    shape make norms differ without any fault."""
    first: dict[str, list[list[int]]] = {}
    sums: dict[str, list[str]] = {}
    for side, dump in dumps.items():
        entry = next((e for e in dump.entries.values() if e.key.direction == FORWARD), None)
        tensors = [tensor for tensor in entry.inputs if tensor is not None] if entry else []
        first[side] = [list(tensor.shape) for tensor in tensors]
        sums[side] = [tensor.checksum for tensor in tensors]
    differ = [side for side in first if first[side] != first["A"]]
    if not all(first.values()):
        verdict = "to be verified: a side records no inputs"
    elif not differ:
        verdict = "same shapes on all sides"
    elif "B" not in differ:
        others = ", ".join(differ)
        verdict = f"A and B have the same shapes, {others} other ones: a difference of data is not the cause of A/B"
    else:
        verdict = "A and B have different shapes: their data differ, which may be the cause"
    same = None
    if any(sums["A"]) and any(sums["B"]):
        same = sums["A"] == sums["B"]
    return {"input_shapes": first, "verdict": verdict, "a_and_b_inputs_equal": same}


def drilldown_json(found: Drilldown, a: Dump) -> dict[str, Any]:
    """The operators of the first layer in execution order, with the user's source line of the earliest one."""
    path = a.place.path.with_name("stack.json")
    source = ""
    if found.earliest and path.is_file():
        key = found.earliest.key
        forward = key.removesuffix("backward") + "forward" if key.endswith(".backward") else key
        stacks = read_stack(path)
        source = user_line(stacks.get(key) or stacks.get(forward) or [])
    return {
        "layer": found.layer.label,
        "direction": found.direction,
        "threshold_ratio": number(math.exp(found.threshold)),
        "earliest": _operator(found.earliest) if found.earliest else None,
        "largest": _operator(found.largest) if found.largest else None,
        "source_line": source,
        "input_differs_already": found.upstream,
        "operators": [_operator(op) for op in found.operators[:MAX_OPERATORS]],
        "operators_left_out": max(0, len(found.operators) - MAX_OPERATORS),
        "unmatched": list(found.unmatched[:MAX_UNMATCHED]),
        "unmatched_count": len(found.unmatched),
    }


def _operator(op: Operator) -> dict[str, Any]:
    return {
        "key": op.key,
        "order": op.order,
        "kind": op.kind,
        "largest_ratio": ratio(op.distance),
        "metric": op.metric,
        "input_ratio": ratio(op.inputs),
        "flagged": op.flagged,
        "why": op.why,
    }
