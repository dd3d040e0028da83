"""Phase 2: the root coordinate, the earliest abnormal gradient that explains the rest.

Stages, in order: `turning_points` (the seed's rule across steps), `_root_step` (the step they point at, moved to an
earlier neighbour while that is abnormal), `_choose` (the micro-step, against the benchmark side where there is one),
`origin_of` (data, weights, hardware). Works from phase-1 files alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detaudit.core.errors import EXIT_CLEAN, EXIT_DIVERGED, EXIT_INCONCLUSIVE, UnreadableError
from detaudit.spike.devices import SHARED, compare_with
from detaudit.spike.growth import GROWTH, MAJORITY, TurningPoint, turning_points
from detaudit.spike.origin import Replay, from_changed_weights, may_be_from_weights, origin_of

ROOT, NONE_SEEN, INSUFFICIENT, QUESTION = "root", "none seen", "insufficient", "question"
MAX_ROWS = 50
WEAK = 0.15
"""Log distance above its threshold below which a lone abnormal cell is a candidate only."""


@dataclass(frozen=True)
class Rules:
    """Thresholds of phase 2; defaults are the seed's."""

    growth: float = GROWTH
    majority: float = MAJORITY


Group = Mapping[str, Any]


def select(
    phase1: Mapping[str, Any],
    benchmark: Mapping[str, Any] | None = None,
    rules: Rules | None = None,
    replay: Replay | None = None,
) -> dict[str, Any]:
    """Phase 2 as a JSON-ready dict. Raises UnreadableError when a file is no phase-1 result."""
    rules = rules or Rules()
    for side in (phase1, benchmark):
        if side is not None and (side.get("phase") != 1 or "groups" not in side):
            raise UnreadableError(
                "not a phase-1 result of detaudit; make one with: detaudit spike detect DATA -o p1.json"
            )
    groups = sorted(phase1["groups"], key=lambda g: tuple(g["position"]))
    points = turning_points(phase1.get("final_norms", {}), rules.growth, rules.majority)
    result: dict[str, Any] = {
        "phase": 2,
        "mode": "single-device" if benchmark is None else "cross-device",
        "outcome": INSUFFICIENT,
        "exit_code": EXIT_INCONCLUSIVE,
        "root_opt_step": None,
        "reasoning": [],
        "root_cause_coordinate": None,
        "cross_device_verification": [],
        "turning_points": _point_rows(points, benchmark, rules),
        "candidates": [],
        "earlier_anomalies": [],
        "earlier_in_other_metrics": [],
        "origin": None,
        "top_targets_per_step": phase1["target_rank_norms"],
        "growth_threshold": rules.growth,
        "majority": rules.majority,
        "questions": list(phase1["questions"]),
        "not_seen": list(phase1["not_seen"]),
        "phase1": {key: phase1[key] for key in ("db_path", "format", "outcome")},
    }
    if phase1["outcome"] == "question":
        return _ended(result, QUESTION, EXIT_INCONCLUSIVE, "phase 1 has an open question; answer it first")
    result["earlier_in_other_metrics"] = _other_metrics(phase1, groups)
    if not groups:
        return _without_gradient(result, phase1)
    firm = [g for g in groups if not _weak(g)]
    step, reasons = _root_step(firm or groups, points)
    result["reasoning"].extend(reasons)
    unseen = _cause_unseen(firm or groups, points, phase1)
    if unseen:
        result["first_seen_coordinate"] = _coordinate(groups[0])
        result["root_opt_step"] = unseen[0]
        return _ended(result, INSUFFICIENT, EXIT_INCONCLUSIVE, unseen[1])
    chosen, verification = _choose([g for g in firm or groups if g["position"][0] == step], benchmark)
    result["cross_device_verification"] = verification
    if not firm and not any(point.qualifies for point in points):
        result["first_seen_coordinate"] = _coordinate(chosen)
        why = f"{_sentence(chosen)}: one cell just above its threshold and no growth after it, a candidate and no root"
        return _ended(result, INSUFFICIENT, EXIT_INCONCLUSIVE, why)
    result["root_cause_coordinate"] = _coordinate(chosen)
    result["root_opt_step"] = chosen["optimizer_step"]
    result["candidates"] = [_candidate(g, verification) for g in groups[:MAX_ROWS]]
    result["earlier_anomalies"] = [_coordinate(g) for g in groups if g["position"] < chosen["position"]][:MAX_ROWS]
    if result["earlier_anomalies"]:
        result["reasoning"].append(
            f"{len(result['earlier_anomalies'])} earlier micro-step(s) are abnormal too, with normal steps in between "
            "or shared with the benchmark; they stand under earlier_anomalies"
        )
    result["origin"] = origin_of(chosen, groups, replay)
    result["reasoning"].append(_sentence(chosen))
    return _ended(result, ROOT, EXIT_DIVERGED, "")


def _root_step(groups: Sequence[Group], points: Sequence[TurningPoint]) -> tuple[int, list[str]]:
    """Position of the root step: the seed's turning point where the step before it is abnormal itself, otherwise the
    earliest abnormal step; then back over neighbouring abnormal steps."""
    abnormal = {g["position"][0] for g in groups}
    reasons: list[str] = []
    root = min(abnormal)
    point = next((p for p in points if p.qualifies), None)
    if point is None:
        reasons.append("no turning point between optimizer steps: the earliest abnormal step is the root")
    elif point.from_position in abnormal:
        root = point.from_position
        reasons.append(
            f"between steps {point.from_step} and {point.to_step} the norm of {point.target_name} grew on "
            f"{point.growing} of {point.compared} ranks ({point.share:.0%}): the root lies in step {point.from_step}"
        )
    else:
        reasons.append(
            f"the norms grew on {point.share:.0%} of the ranks from step {point.from_step} to {point.to_step}, but "
            f"nothing abnormal was seen in step {point.from_step}: the growth is itself the first abnormal gradient"
        )
        root = min(abnormal)
    while root - 1 in abnormal:
        root -= 1
        reasons.append("the step before is abnormal too: moved one step earlier")
    return root, reasons


def _cause_unseen(
    groups: Sequence[Group], points: Sequence[TurningPoint], phase1: Mapping[str, Any]
) -> tuple[int | None, str] | None:
    """The step and the reason when the first abnormal gradients look like contaminated weights, or reduced gradients
    were abnormal before, while part of the ranks was never recorded."""
    first = groups[0]
    missing = phase1["missing_ranks"]
    reduced = (phase1.get("other_metrics") or {}).get("grad_reduced") or {}
    earlier = reduced.get("optimizer_step")
    if reduced.get("count") and earlier is not None and first["optimizer_step"] is not None:
        if earlier < first["optimizer_step"]:
            return earlier, (
                f"grad_reduced is abnormal in step {earlier} already, no recorded grad_unreduced is: the cause lies "
                "on a rank or micro-step that was not recorded"
            )
    before = next((p.from_step for p in points if p.to_position == first["position"][0]), None)
    if missing and may_be_from_weights(first):
        return before, (
            f"all recorded ranks are abnormal throughout step {first['optimizer_step']}, which is what an earlier "
            f"abnormal gradient leaves behind; rank(s) {missing} were not recorded"
        )
    grown = any(p.qualifies and p.to_position == first["position"][0] for p in points)
    partly = grown and first["scope"] == "some ranks" and first["whole_window"]
    if (partly or from_changed_weights(first)) and first["position"][0] > 0:
        return before, (
            f"{first['scope']} are abnormal throughout step {first['optimizer_step']}: the weights "
            "had changed before it, and no abnormal gradient was seen in the step before (optimizer, learning "
            "rate, or a gradient within the noise)"
        )
    return None


def _weak(group: Group) -> bool:
    """Whether a group is one cell within WEAK of its threshold: such a one never moves a root that others support."""
    lead = group["lead"]
    if group["cells"] > 1 or lead["deviation_ratio"] is None:
        return False
    return abs(math.log(lead["deviation_ratio"])) < math.log(lead["threshold_ratio"]) + WEAK


def _choose(candidates: Sequence[Group], benchmark: Mapping[str, Any] | None) -> tuple[Group, list[dict[str, Any]]]:
    """The earliest micro-step of the root step; with a benchmark the earliest that is not shared with it."""
    if benchmark is None:
        return candidates[0], []
    verification = []
    for group in candidates:
        row = compare_with(benchmark, group)
        verification.append(row)
        if row["verdict"] != SHARED:
            return group, verification
    return candidates[0], verification


def _without_gradient(result: dict[str, Any], phase1: Mapping[str, Any]) -> dict[str, Any]:
    others = result["earlier_in_other_metrics"]
    if others:
        first = others[0]
        why = f"no abnormal gradient was seen; {first['metric']} is abnormal first, in step {first['optimizer_step']}"
        result["root_opt_step"] = first["optimizer_step"]
        return _ended(result, INSUFFICIENT, EXIT_INCONCLUSIVE, why)
    if phase1["outcome"] == "none seen":
        return _ended(
            result, NONE_SEEN, EXIT_CLEAN, "phase 1 saw no abnormal gradient and recorded everything it could"
        )
    result["candidates"] = phase1.get("absolute_candidates", [])
    return _ended(
        result, INSUFFICIENT, EXIT_INCONCLUSIVE, "nothing abnormal in what was recorded; not all was recorded"
    )


def _other_metrics(phase1: Mapping[str, Any], groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Optimizer state, drift and reduced gradients that were abnormal before the first abnormal gradient."""
    first = groups[0]["optimizer_step"] if groups else None
    rows = []
    for metric, row in (phase1.get("other_metrics") or {}).items():
        if row and row["count"] and row["optimizer_step"] is not None:
            if first is None or row["optimizer_step"] < first:
                rows.append({"metric": metric, **row})
    return sorted(rows, key=lambda row: (row["optimizer_step"], row["metric"]))


def _point_rows(
    points: Sequence[TurningPoint], benchmark: Mapping[str, Any] | None, rules: Rules
) -> list[dict[str, Any]]:
    theirs: set[tuple[int, int]] = set()
    if benchmark is not None:
        found = turning_points(benchmark.get("final_norms", {}), rules.growth, rules.majority)
        theirs = {(p.from_step, p.to_step) for p in found if p.qualifies}
    rows = []
    kept = [p for p in points if p.qualifies][:MAX_ROWS]
    kept += [p for p in points if not p.qualifies][: max(0, MAX_ROWS - len(kept))]
    for point in sorted(kept, key=lambda p: p.from_position):
        row = point.row()
        if benchmark is not None:
            row["shared_with_benchmark"] = (point.from_step, point.to_step) in theirs
        rows.append(row)
    return rows


def _coordinate(group: Group) -> dict[str, Any]:
    lead = group["lead"]
    return {
        "optimizer_step": group["optimizer_step"],
        "opt_step": group["optimizer_step"],
        "step": group["step"],
        "rank": group["rank"],
        "rank_scope": group["scope"],
        "ranks": [entry["rank"] for entry in group["ranks"]][:MAX_ROWS],
        "micro_step": group["micro_step"],
        "target_name": lead["target_name"],
        "first_target_in_backward_order": group["first_target_in_backward_order"],
        "delta": lead["delta"],
        "norm": lead["norm"],
        "contribution": lead["contribution"],
        "deviation_ratio": lead["deviation_ratio"],
        "trigger": lead["trigger"],
    }


def _candidate(group: Group, verification: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row = _coordinate(group)
    for checked in verification:
        if (checked["optimizer_step"], checked["micro_step"]) == (group["optimizer_step"], group["micro_step"]):
            row.update({key: checked[key] for key in ("benchmark_contribution", "ratio", "verdict")})
    return row


def _sentence(group: Group) -> str:
    lead = group["lead"]
    who = f"rank {group['rank']}" if group["rank"] is not None else f"{group['scope']} ({len(group['ranks'])} abnormal)"
    micro = "" if group["micro_step"] is None else f", micro-step {group['micro_step']}"
    step = group["optimizer_step"] if group["optimizer_step"] is not None else f"{group['step']} (as recorded)"
    size = f"{lead['deviation_ratio']:.4g} times its usual size" if lead["deviation_ratio"] else lead["trigger"]
    return f"root: step {step}{micro}, {who}, {lead['target_name']}, {size}"


def _ended(result: dict[str, Any], outcome: str, code: int, why: str) -> dict[str, Any]:
    result["outcome"], result["exit_code"] = outcome, code
    if why:
        result["reasoning"].append(why)
    return result
