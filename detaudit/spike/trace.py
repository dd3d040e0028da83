"""Phase 3: where, in the layers of a dumped step, does the abnormal side first leave the benchmark?

Stages, in order: `_structures` (four dumps, aligned by name), `_tables` (anchors x layers x metrics x directions),
`conclude` (first flagged layer, main segment, search over metrics), `judge` (what may be said), `drill` (operators of
the layer where it begins), `first_divergence` (checksums, where the dumps carry them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detaudit.core.errors import EXIT_CLEAN, EXIT_DIVERGED, EXIT_INCONCLUSIVE
from detaudit.spike import phase3_tables as tables
from detaudit.spike.checksums import first_divergence
from detaudit.spike.conclusion import (
    CONSISTENT,
    DIVERGES,
    UNCONFIRMED,
    inside_only,
    judge,
    non_finite,
    priority,
    suspects,
    uncompared,
)
from detaudit.spike.contrast import OUTSIDE, AnchorTable, build_table
from detaudit.spike.drilldown import Drilldown, drill, own_operators
from detaudit.spike.dump_keys import BACKWARD, FORWARD
from detaudit.spike.layers import (
    MIN_ANCHORS,
    Layer,
    Structure,
    anchors_of,
    backward_order,
    calls_of,
    layers_of,
    structure_of,
)
from detaudit.spike.read_dump import Dump
from detaudit.spike.starts import DirectionResult, conclude

FOUND, NONE_SEEN, INSUFFICIENT, QUESTION = "divergence", "consistent", "insufficient", "question"
MAX_CALLS = 64
INSIDE = 2.0
"""Times the threshold that two metrics of an operator must exceed to move the start where no module output differs: the
metrics of one operator share its device bias, and many operators are looked at."""


@dataclass(frozen=True)
class Comparison:
    """Everything that comparing one call (one pass over the model) gave."""

    call: int
    tables: list[AnchorTable]
    results: dict[str, DirectionResult]
    orders: dict[str, list[Layer]]


def trace(dumps: Mapping[str, Dump], micro_step: int | None = None) -> dict[str, Any]:
    """Compare dumps A and B, with C and D where given, as a JSON-ready dict.

    `micro_step` restricts the comparison to one pass; otherwise every pass is compared in order and the first that
    diverges is reported.
    """
    structures = {side: structure_of(dump) for side, dump in dumps.items()}
    controlled = "C" in dumps and "D" in dumps
    result: dict[str, Any] = {
        "phase": 3,
        "mode": "four groups" if controlled else "A/B only",
        "outcome": INSUFFICIENT,
        "exit_code": EXIT_INCONCLUSIVE,
        "dirs": {side: str(dump.place.path.parent) for side, dump in dumps.items()},
        "coordinates": {side: dump.place.label for side, dump in dumps.items()},
        "questions": [],
        "notes": _notes(dumps, controlled),
        "observer_warning": _observer(dumps),
        "data_features": tables.data_features(dumps),
        "anchors": [],
        "anchors_used": [],
        "layer_prefix": [],
        "anchor_warning": "",
        "conclusion": {},
        "drilldown": None,
        "checksum_divergence": first_divergence(dumps["A"], dumps["B"]),
    }
    if not controlled:
        result["control_warning"] = "no control group: A/B ratios may hold the systematic bias of the devices"
    layers = layers_of(structures["A"])
    anchors = anchors_of(list(structures.values()))
    calls = calls_of(list(structures.values()))
    common = _common_share(structures)
    result["common_modules"] = round(common, 4)
    result["layer_prefix"] = list(
        dict.fromkeys(layer.path.rpartition(".")[0] for layer in layers if layer.number is not None)
    )
    result["anchors_used"] = anchors
    if len(anchors) < MIN_ANCHORS:
        result["anchor_warning"] = (
            f"{len(anchors)} anchor(s) align in all dumps, {MIN_ANCHORS} are wanted: the verdict is incomplete"
        )
    if not calls or common == 0:
        return _without_modules(result, structures)
    chosen = _calls(calls, micro_step, result["notes"])
    comparison = _first_divergent(structures, layers, [*anchors, OUTSIDE], chosen)
    result["calls_checked"] = chosen[: chosen.index(comparison.call) + 1] if _diverged(comparison) else chosen
    result["micro_step"] = comparison.call
    result["anchors"] = [tables.anchor_json(table) for table in comparison.tables if table.rows]
    result["alignment_suspect"] = suspects(comparison.tables)
    _conclude(result, comparison, controlled, any(dump.truncated for dump in dumps.values()))
    lead = _drill(result, dumps, comparison)
    result["drilldown"] = tables.drilldown_json(lead, dumps["A"]) if lead else None
    _settle(result)
    return result


def _first_divergent(
    structures: Mapping[str, Structure], layers: Sequence[Layer], anchors: Sequence[str], calls: Sequence[int]
) -> Comparison:
    orders = {FORWARD: list(layers), BACKWARD: backward_order(structures["A"], list(layers))}
    first: Comparison | None = None
    for call in calls:
        compared = [build_table(structures, layers, anchor, call) for anchor in anchors]
        results = {d: conclude(compared, orders[d], d) for d in (FORWARD, BACKWARD)}
        comparison = Comparison(call, compared, results, orders)
        if _diverged(comparison):
            return comparison
        first = first or comparison
    assert first is not None
    return first


def _diverged(comparison: Comparison) -> bool:
    return any(result.start is not None for result in comparison.results.values()) or any(
        non_finite(comparison.tables, comparison.orders[d], d) for d in (FORWARD, BACKWARD)
    )


def _conclude(result: dict[str, Any], comparison: Comparison, controlled: bool, cut: bool) -> None:
    directions: dict[str, Any] = {}
    gaps: dict[str, Any] = {}
    for direction in (FORWARD, BACKWARD):
        gaps[direction] = uncompared(comparison.tables, direction)
        broken = non_finite(comparison.tables, comparison.orders[direction], direction)
        directions[direction] = judge(
            comparison.results[direction], gaps[direction], result["alignment_suspect"], broken, controlled, cut
        )
    result["conclusion"] = {
        **directions,
        "earliest_fwd_divergence": directions[FORWARD]["start"],
        "earliest_bwd_divergence": directions[BACKWARD]["start"],
        "uncompared_layers": gaps,
        "priority": priority(directions[FORWARD], directions[BACKWARD]),
    }


def _drill(result: dict[str, Any], dumps: Mapping[str, Dump], comparison: Comparison) -> Drilldown | None:
    """Operators of the layer where the divergence begins, or of an earlier layer whose operators already differ
    although its modules' outputs do not: equal representatives do not make a layer normal."""
    conclusion = result["conclusion"]
    for direction in (FORWARD, BACKWARD):
        part = conclusion[direction]
        if not part["cells_compared"]:
            continue
        owned = {side: own_operators(dump, direction, comparison.call) for side, dump in dumps.items()}
        order = comparison.orders[direction]
        at = next((i for i, layer in enumerate(order) if layer.label == part["start"]), len(order))
        for layer in order[:at]:
            inner = drill(owned, layer, direction)
            if any(op.confirmed(INSIDE * inner.threshold) for op in inner.operators):
                inside_only(part, layer)
                conclusion["priority"] = priority(conclusion[FORWARD], conclusion[BACKWARD])
                return inner
        if at < len(order):
            return drill(owned, order[at], direction)
    return None


def _settle(result: dict[str, Any]) -> None:
    verdicts = {result["conclusion"][d]["verdict"] for d in (FORWARD, BACKWARD)}
    if verdicts & {DIVERGES, UNCONFIRMED} or result["checksum_divergence"]["verdict"] in ("operator", "gap", "inputs"):
        result["outcome"], result["exit_code"] = FOUND, EXIT_DIVERGED
    elif verdicts == {CONSISTENT} and not result["anchor_warning"]:
        result["outcome"], result["exit_code"] = NONE_SEEN, EXIT_CLEAN


def _without_modules(result: dict[str, Any], structures: Mapping[str, Structure]) -> dict[str, Any]:
    """No module in common: checksums may still speak, layers cannot."""
    counts = ", ".join(f"{side} {len(structure.at)}" for side, structure in structures.items())
    if all(structure.at for structure in structures.values()):
        why = f"no module name is common to all dumps ({counts} modules): they seem to be of different models"
    else:
        why = f"a dump holds no module entries ({counts}): collect at level L0 or mix for layers"
    result["notes"].append(why)
    result["conclusion"] = {"priority": {"direction": None, "start": None, "text": why}}
    if result["checksum_divergence"]["verdict"] in ("operator", "gap", "inputs"):
        result["outcome"], result["exit_code"] = FOUND, EXIT_DIVERGED
    return result


def _calls(calls: list[int], micro_step: int | None, notes: list[str]) -> list[int]:
    if micro_step is not None and micro_step in calls:
        return [micro_step]
    if micro_step is not None:
        notes.append(
            f"micro-step {micro_step} is not in all dumps (they share {calls}): all shared passes are compared"
        )
    if len(calls) > MAX_CALLS:
        notes.append(f"only the first {MAX_CALLS} of {len(calls)} passes are compared")
    return calls[:MAX_CALLS]


def _common_share(structures: Mapping[str, Structure]) -> float:
    """Share of A's module places that every other dump holds."""
    own = set(structures["A"].at)
    common = set(own).intersection(*(structure.at for structure in structures.values()))
    return len(common) / len(own) if own else 0.0


def _notes(dumps: Mapping[str, Dump], controlled: bool) -> list[str]:
    notes = []
    for side, dump in dumps.items():
        if dump.truncated:
            notes.append(f"{side}: {dump.truncated}")
        notes.extend(f"{side}: {note}" for note in dump.notes)
    levels = {dump.level for dump in dumps.values()}
    if len(levels) > 1:
        notes.append(f"the dumps were taken at different levels: {', '.join(sorted(levels))}")
    places = {dump.place.path.resolve(): side for side, dump in dumps.items()}
    if len(places) < len(dumps):
        notes.append("two sides are the same file: their comparison says nothing")
    return notes


def _observer(dumps: Mapping[str, Dump]) -> str:
    hooked = [side for side, dump in dumps.items() if dump.level.lower() in ("l0", "mix")]
    if not hooked:
        return ""
    return (
        f"{', '.join(hooked)} were collected with module hooks (L0 or mix), which can change the order in which "
        "gradients are accumulated: compare the gradient norm of a run without hooks before trusting small backward "
        "differences"
    )
