"""Four dumps side by side: (A/B)/(C/D) per layer, anchor, metric and direction, with thresholds learned from C/D.

All comparisons are of log ratios and two-sided: a drop to one half is as far as a doubling. The threshold of a series
is max(3 * IQR of log(C/D), log 1.03), the floor of 0.03 being the seed's; with fewer than four comparable layers the
floor stands alone and the result says so. What cannot be compared is listed with its reason and is never normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from detaudit.spike.dump_keys import BACKWARD, FORWARD
from detaudit.spike.layers import OUTSIDE, WHOLE_LAYER, Layer, Place, Structure, anchor_of
from detaudit.spike.order_statistics import iqr, median_of
from detaudit.spike.read_dump import METRICS, Entry, TensorStats

FLOOR = math.log(1.03)
MIN_LAYERS = 4
NEAR_ZERO = 1e-3
"""A Max, Min or Mean below this share of the root mean square is rounding noise: its ratio says nothing."""
MEAN_NOISE = 0.2
"""Rounding to bf16 moves a mean by 2**-9 * rms / sqrt(n); below 0.2 * rms / sqrt(n) that is over one per cent."""
SIDES = ("A", "B", "C", "D")
IGNORED = ("rotary", "inv_freq", "position_id")


@dataclass
class Cell:
    """One layer x anchor x direction x metric. `values` by side; `distance` = log((A/B)/(C/D)), NaN when not
    computable; `why` then says why. `flag` is None when not compared."""

    values: dict[str, float] = field(default_factory=dict)
    log_ab: float = math.nan
    log_cd: float = math.nan
    distance: float = math.nan
    sign_flip: bool = False
    flag: bool | None = None
    why: str = ""


@dataclass
class Row:
    """One layer of an anchor's table: cells by (direction, metric), and the entry compared in each direction."""

    layer: Layer
    cells: dict[tuple[str, str], Cell]
    entries: dict[str, str]
    broken: dict[str, list[str]]
    """Sides whose statistics are NaN or infinite, by direction."""


@dataclass
class AnchorTable:
    """All layers of one anchor, with the threshold and C/D median of every (direction, metric)."""

    anchor: str
    rows: list[Row]
    thresholds: dict[tuple[str, str], float] = field(default_factory=dict)
    learned: dict[tuple[str, str], bool] = field(default_factory=dict)
    control_median: dict[tuple[str, str], float] = field(default_factory=dict)


def build_table(structures: Mapping[str, Structure], layers: Sequence[Layer], anchor: str, call: int) -> AnchorTable:
    """Compare one anchor over all layers at one call. `structures` holds A and B, and C and D where given."""
    rows = []
    for layer in layers:
        if (layer.number is None) != (anchor == OUTSIDE):
            continue
        cells: dict[tuple[str, str], Cell] = {}
        entries: dict[str, str] = {}
        broken: dict[str, list[str]] = {}
        for direction in (FORWARD, BACKWARD):
            chosen, why = representative(structures, layer, anchor, direction, call)
            if chosen is None:
                for metric in METRICS:
                    cells[direction, metric] = Cell(why=why)
                continue
            entries[direction] = chosen["A"][0].key.text
            broken[direction] = [side for side, (_, tensor) in chosen.items() if tensor.broken]
            for metric in METRICS:
                cells[direction, metric] = compare({side: tensor for side, (_, tensor) in chosen.items()}, metric)
        if all(cell.why == ABSENT for cell in cells.values()):
            continue
        rows.append(Row(layer, cells, entries, broken))
    table = AnchorTable(anchor, rows)
    apply_thresholds(table, controlled="C" in structures)
    return table


ABSENT = "not in any dump"
NEAR_ZERO_TEXT = "is near zero: its ratio is noise"
Chosen = dict[str, tuple[Entry, TensorStats]]


def representative(
    structures: Mapping[str, Structure], layer: Layer, anchor: str, direction: str, call: int
) -> tuple[Chosen | None, str]:
    """The entry that stands for an anchor: the module's own output, or the shallowest, then largest, module below it
    that all sides hold with numbers and equal element counts. None with the reason when there is no such entry."""
    places = _candidates(structures["A"], layer, anchor, direction, call)
    if not places:
        others = [s for s in structures if s != "A" and _candidates(structures[s], layer, anchor, direction, call)]
        return None, f"missing in A, present in {', '.join(others)}" if others else ABSENT
    reasons = []
    for place in places:
        chosen, why = align(structures, place)
        if chosen is not None:
            return chosen, ""
        reasons.append(why)
    return None, reasons[0]


def _candidates(structure: Structure, layer: Layer, anchor: str, direction: str, call: int) -> list[Place]:
    found = []
    for place in structure.under.get((layer.chunk, layer.path), ()):
        if place[2] != direction or place[3] != call or any(word in place[1] for word in IGNORED):
            continue
        if anchor_of(layer, place[1]) == anchor:
            depth = place[1].count(".")
            entry = structure.at[place]
            norms = [t.Norm for t in entry.outputs if t and math.isfinite(t.Norm)]
            found.append((depth, -max(norms, default=0.0), entry.order, place))
    return [place for *_, place in sorted(found)]


def align(structures: Mapping[str, Structure], place: Place) -> tuple[Chosen | None, str]:
    """The same place on all sides with comparable tensors, or None and the reason."""
    chosen: Chosen = {}
    first: TensorStats | None = None
    for side, structure in structures.items():
        if place in structure.clashes:
            return None, f"two entries of {side} share this name once device naming is removed"
        entry = structure.at.get(place)
        if entry is None:
            return None, f"missing in {side}"
        if first is None:
            # The first module of a backward pass has no gradient of its input: there the one of its output stands in.
            slot = "outputs" if place[2] == FORWARD or main_tensor(entry.outputs)[1] else "inputs"
            position, first = main_tensor(getattr(entry, slot))
            if first is None:
                return None, f"no tensor with numbers in {side}"
            tensor: TensorStats | None = first
        else:
            held = getattr(entry, slot)
            tensor = held[position] if position < len(held) else None
            if tensor is None:
                return None, f"no tensor at {slot} {position} in {side}"
            if tensor.elements != first.elements:
                return None, f"{tensor.elements} elements in {side}, {first.elements} in A"
        assert tensor is not None
        chosen[side] = (entry, tensor)
    return chosen, ""


def main_tensor(tensors: Sequence[TensorStats | None]) -> tuple[int, TensorStats | None]:
    """Position and statistics of the tensor with the most elements among those with numbers."""
    best, position = None, 0
    for i, tensor in enumerate(tensors):
        if tensor is None or (not tensor.broken and all(math.isnan(getattr(tensor, name)) for name in METRICS)):
            continue
        if best is None or tensor.elements > best.elements:
            best, position = tensor, i
    return position, best


def compare(tensors: Mapping[str, TensorStats], metric: str) -> Cell:
    """One metric over the sides. Signs are part of the comparison; values near zero are not compared."""
    cell = Cell({side: float(getattr(tensor, metric)) for side, tensor in tensors.items()})
    for side, tensor in tensors.items():
        value = cell.values[side]
        if not math.isfinite(value):
            cell.why = f"{metric} of {side} is {'not finite' if tensor.broken else 'null'}"
            return cell
    small = [side for side, tensor in tensors.items() if abs(cell.values[side]) <= near_zero(tensor, metric)]
    if small:
        return _near_zero_cell(cell, tensors, metric, small)
    a, b = cell.values["A"], cell.values["B"]
    cell.log_ab = math.log(abs(a / b))
    cell.sign_flip = (a < 0) != (b < 0)
    if "C" in tensors:
        c, d = cell.values["C"], cell.values["D"]
        cell.log_cd = math.log(abs(c / d))
        if (c < 0) != (d < 0):
            cell.why = f"{metric} of C and D differ in sign: the control group itself disagrees"
            return cell
        cell.distance = cell.log_ab - cell.log_cd
    else:
        cell.distance = cell.log_ab
    return cell


def _near_zero_cell(cell: Cell, tensors: Mapping[str, TensorStats], metric: str, small: Sequence[str]) -> Cell:
    """A value near zero has no ratio, unless it is A or B alone and the other is ten times what counts as near zero."""
    cell.why = f"{metric} of {', '.join(small)} {NEAR_ZERO_TEXT}"
    if len(small) > 1 or small[0] not in ("A", "B"):
        return cell
    held = {side: max(abs(cell.values[side]), near_zero(tensor, metric)) for side, tensor in tensors.items()}
    if min(held.values()) <= 0:
        return cell
    log_ab = math.log(held["A"] / held["B"])
    if abs(log_ab) > math.log(10):
        cell.why = ""
        cell.log_ab = log_ab
        cell.log_cd = math.log(held["C"] / held["D"]) if "C" in held else math.nan
        cell.distance = log_ab - cell.log_cd if "C" in held else log_ab
    return cell


def near_zero(tensor: TensorStats, metric: str) -> float:
    """The size below which a statistic of this tensor is noise; 0 for a norm."""
    if metric == "Norm" or not math.isfinite(tensor.Norm) or not tensor.elements:
        return 0.0
    rms = abs(tensor.Norm) / math.sqrt(tensor.elements)
    if metric == "Mean":
        return rms * max(NEAR_ZERO, MEAN_NOISE / math.sqrt(tensor.elements))
    return rms * NEAR_ZERO


def apply_thresholds(table: AnchorTable, controlled: bool) -> None:
    """Learn the threshold of every (direction, metric) from its own C/D values and set the flags."""
    for direction in (FORWARD, BACKWARD):
        for metric in METRICS:
            cells = [row.cells[direction, metric] for row in table.rows]
            control = np.array([cell.log_cd for cell in cells if math.isfinite(cell.log_cd) and not cell.why])
            learned = controlled and len(control) >= MIN_LAYERS
            threshold = max(3 * iqr(control), FLOOR) if learned else FLOOR
            table.thresholds[direction, metric] = threshold
            table.learned[direction, metric] = learned
            table.control_median[direction, metric] = median_of(control) if len(control) else math.nan
            for cell in cells:
                if not cell.why and math.isfinite(cell.distance):
                    cell.flag = abs(cell.distance) > threshold or cell.sign_flip


__all__ = [
    "ABSENT", "FLOOR", "METRICS", "OUTSIDE", "SIDES", "WHOLE_LAYER", "AnchorTable", "Cell", "Row", "align",
    "apply_thresholds", "build_table", "compare", "main_tensor", "near_zero", "representative",
]  # fmt: skip
