"""Inside the layer where a divergence begins: every operator in execution order, the largest difference, and the
earliest operator whose output differs while its inputs do not.

Operators are paired across dumps by enclosing module, name without device prefix, and occurrence inside that module;
the enclosing module comes from construct.json, or from the order of the dump where that is missing.
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
    """One operator of the layer. `distance` is the largest |log anomaly| over the metrics of its output, `inputs` the
    same of its inputs; NaN when not comparable, with the reason."""

    key: str
    order: int
    kind: str
    distance: float
    metric: str
    inputs: float
    flagged: bool | None
    why: str
    distances: tuple[float, ...] = ()

    def confirmed(self, threshold: float) -> bool:
        """Whether two metrics of its output differ: one alone may be noise."""
        return sum(distance > threshold for distance in self.distances) >= 2


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


@dataclass
class Owned:
    """The entries of one dump, direction and pass, by the layer that encloses them and then by what they are paired on.
    Built in one pass over the dump, because a large dump has many layers."""

    by_layer: dict[tuple[str, str], dict[OpKey, Entry]]

    def of(self, layer: Layer) -> dict[OpKey, Entry]:
        return self.by_layer.get((layer.chunk, layer.path), {})


def own_operators(dump: Dump, direction: str, call: int) -> Owned:
    """Assign every operator and module of a pass to its layer. Without construct.json an operator belongs to the next
    module that completes after it."""
    placed: list[tuple[Entry, tuple[str, str], str]] = []
    waiting: list[Entry] = []
    for entry in dump.entries.values():
        if entry.key.direction != direction or (entry.recompute and direction == FORWARD):
            continue
        if entry.key.kind == API:
            owner = _enclosing(dump, entry)
            if owner is None:
                waiting.append(entry)
            elif owner and owner[2] == call:
                placed.append((entry, _layer_of(owner[0], owner[1]), owner[1]))
        elif entry.key.kind == MODULE:
            path = normalised(entry.key.path)
            if entry.key.call == call:
                where = _layer_of(entry.key.chunk, path)
                placed.extend((op, where, path) for op in waiting)
                placed.append((entry, where, path))
            waiting = []
    owned = Owned({})
    counts: Counter[tuple[str, str]] = Counter()
    for entry, where, path in sorted(placed, key=lambda item: item[0].order):
        name = ("module", path) if entry.key.kind == MODULE else (path, normalised_api(entry.key.path))
        owned.by_layer.setdefault(where, {})[(*name, counts[name])] = entry
        counts[name] += 1
    return owned


def _layer_of(chunk: str, path: str) -> tuple[str, str]:
    return chunk, layer_path(path) or path


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


def drill(owned: Mapping[str, Owned], layer: Layer, direction: str) -> Drilldown:
    """Compare all operators of a layer over the sides."""
    tables = {side: operators.of(layer) for side, operators in owned.items()}
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
    each = tuple(_size(cell) for cell in outputs if not cell.why and math.isfinite(cell.distance))
    return Operator(entry.key.text, entry.order, entry.key.kind, distance, metric, _largest(inputs)[0], None, why, each)


def _size(cell: Cell) -> float:
    """|log anomaly|; a flipped sign counts as a factor of two at least."""
    return max(abs(cell.distance), math.log(2)) if cell.sign_flip else abs(cell.distance)


def _largest(cells: Sequence[Cell]) -> tuple[float, str]:
    """The largest distance over metrics and which metric."""
    best, name = math.nan, ""
    for i, cell in enumerate(cells):
        if cell.why or math.isnan(cell.distance):
            continue
        if not best >= _size(cell):
            best, name = _size(cell), METRICS[i % len(METRICS)]
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
