"""Inside the layer where a divergence begins: every operator in execution order, the largest difference, and the earliest
operator whose output differs while its inputs do not.

Operators are paired across dumps by enclosing module, name without device prefix, and occurrence inside that module; the
enclosing module comes from construct.json, or from the order of the dump where that is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detaudit.spike.contrast import FLOOR, METRICS, MIN_LAYERS, Cell, compare, main_tensor
from detaudit.spike.dump_keys import API, FORWARD, MODULE, normalised, normalised_api, parse_key
from detaudit.spike.layers import Layer, layer_path
from detaudit.spike.order_statistics import iqr
from detaudit.spike.read_dump import Dump, Entry, TensorStats

OpKey = tuple[str, str, int]


@dataclass
class Operator:
    """One operator of the layer. `distance` is the largest |log anomaly| over the metrics of its output, `inputs` the same
    of its inputs; NaN when not comparable, with the reason."""

    key: str
    order: int
    kind: str
    distance: float
    metric: str
    inputs: float
    flagged: bool | None
    why: str


@dataclass(frozen=True)
class Drilldown:
    """Operators of the layer in execution order; `earliest` differs while nothing that feeds it was seen to differ.
    `upstream` says that the layer's own input differs already."""

    layer: Layer
    direction: str
    operators: tuple[Operator, ...]
    earliest: Operator | None
    largest: Operator | None
    upstream: bool
    unmatched: tuple[str, ...]
    threshold: float


def operators_of(dump: Dump, layer: Layer, direction: str, call: int) -> dict[OpKey, Entry]:
    """Modules and operators of one layer and pass, by what they are paired on."""
    found: dict[OpKey, Entry] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for entry, owner in _owned(dump, layer, direction, call):
        if entry.key.kind == MODULE:
            name = ("module", normalised(entry.key.path))
        else:
            name = (owner, normalised_api(entry.key.path))
        found[(*name, counts[name])] = entry
        counts[name] += 1
    return found


def _owned(dump: Dump, layer: Layer, direction: str, call: int) -> list[tuple[Entry, str]]:
    """Entries inside the layer with the module that encloses each. Without construct.json an operator belongs to the next
    module that completes after it."""
    result: list[tuple[Entry, str]] = []
    waiting: list[Entry] = []
    for entry in dump.entries.values():
        if entry.key.direction != direction or (entry.recompute and direction == FORWARD):
            continue
        if entry.key.kind == API:
            owner = _enclosing(dump, entry)
            if owner is None:
                waiting.append(entry)
            elif owner and _inside(layer, *owner, call):
                result.append((entry, owner[1]))
        elif entry.key.kind == MODULE:
            path = normalised(entry.key.path)
            inside = _inside(layer, entry.key.chunk, path, entry.key.call, call)
            if inside:
                result.extend((op, path) for op in waiting)
                result.append((entry, path))
            waiting = []
    return sorted(result, key=lambda pair: pair[0].order)


def _enclosing(dump: Dump, entry: Entry) -> tuple[str, str, int] | tuple[()] | None:
    """(chunk, path, call) of the nearest module around an operator, () when construct.json puts it outside all modules,
    None when nothing is known."""
    seen = 0
    parent = entry.parent
    if not parent:
        return None
    while parent and seen < 64:
        key = parse_key(parent)
        if key.kind == MODULE:
            return key.chunk, normalised(key.path), key.call
        above = dump.entries.get(parent)
        parent = above.parent if above else ""
        seen += 1
    return ()


def _inside(layer: Layer, chunk: str, path: str, call: int, wanted: int) -> bool:
    return chunk == layer.chunk and call == wanted and (layer_path(path) or path) == layer.path


def drill(dumps: Mapping[str, Dump], layer: Layer, direction: str, call: int) -> Drilldown:
    """Compare all operators of a layer over the sides."""
    tables = {side: operators_of(dump, layer, direction, call) for side, dump in dumps.items()}
    operators: list[Operator] = []
    controls: list[float] = []
    unmatched: list[str] = []
    for key, entry in tables["A"].items():
        sides = {side: table.get(key) for side, table in tables.items()}
        missing = [side for side, other in sides.items() if other is None]
        if missing:
            unmatched.append(f"{entry.key.text}: missing in {', '.join(missing)}")
            operators.append(_operator(entry, [], [], f"missing in {', '.join(missing)}"))
            continue
        present = {side: other for side, other in sides.items() if other is not None}
        outputs, why = _cells(present, "outputs")
        inputs, _ = _cells(present, "inputs")
        controls.extend(cell.log_cd for cell in outputs if math.isfinite(cell.log_cd))
        operators.append(_operator(entry, outputs, inputs, why))
    for side, table in tables.items():
        unmatched.extend(f"{e.key.text}: only in {side}" for key, e in table.items() if key not in tables["A"])
    threshold = FLOOR
    if len(controls) >= MIN_LAYERS * len(METRICS):
        threshold = max(3 * iqr(np.array(controls)), FLOOR)
    for op in operators:
        op.flagged = None if math.isnan(op.distance) else op.distance > threshold
    flagged = [op for op in operators if op.flagged]
    clean = [op for op in flagged if not op.inputs > threshold]
    first = operators[0] if operators else None
    return Drilldown(
        layer,
        direction,
        tuple(operators),
        clean[0] if clean else (flagged[0] if flagged else None),
        max(flagged, key=lambda op: op.distance, default=None),
        bool(first is not None and first.inputs > threshold),
        tuple(unmatched),
        threshold,
    )


def _operator(entry: Entry, outputs: Sequence[Cell], inputs: Sequence[Cell], why: str) -> Operator:
    distance, metric = _largest(outputs)
    return Operator(entry.key.text, entry.order, entry.key.kind, distance, metric, _largest(inputs)[0], None, why)


def _largest(cells: Sequence[Cell]) -> tuple[float, str]:
    """The largest distance over metrics and which metric; a flipped sign counts as a distance of log 2 at least."""
    best, name = math.nan, ""
    for i, cell in enumerate(cells):
        if cell.why or math.isnan(cell.distance):
            continue
        size = max(abs(cell.distance), math.log(2)) if cell.sign_flip else abs(cell.distance)
        if not best >= size:
            best, name = size, METRICS[i % len(METRICS)]
    return best, name


def _cells(sides: Mapping[str, Entry], slot: str) -> tuple[list[Cell], str]:
    """Cells of a slot's comparable tensors: the main output, or every input tensor, metric by metric."""
    lists: dict[str, list[TensorStats | None]] = {side: getattr(entry, slot) for side, entry in sides.items()}
    positions = range(min(len(tensors) for tensors in lists.values()))
    if slot == "outputs":
        main, tensor = main_tensor(sides["A"].outputs)
        if tensor is None:
            return [], "no output with numbers in A"
        positions = range(main, min(main + 1, len(positions)))
    cells: list[Cell] = []
    why = "no comparable tensor"
    for i in positions:
        tensors = {side: tensors[i] for side, tensors in lists.items()}
        usable = {side: tensor for side, tensor in tensors.items() if tensor is not None}
        if len(usable) < len(tensors) or len({tensor.elements for tensor in usable.values()}) > 1:
            why = "element counts differ"
            continue
        own = [compare(usable, metric) for metric in METRICS]
        cells.extend(own)
        why = next((cell.why for cell in own if cell.why), "")
    return cells, "" if any(not cell.why for cell in cells) else why
