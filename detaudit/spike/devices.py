"""Phase 2 across devices: is an abnormal coordinate of this side abnormal on the benchmark side too?

The same coordinate is looked up: optimizer step, micro-step, rank and target. What the benchmark does not list is
normal there only if the benchmark recorded it at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPECIFIC, SHARED, UNSEEN = "device-specific", "shared by both sides", "not seen on the benchmark"
RATIO = 2.0


def compare_with(benchmark: Mapping[str, Any], group: Mapping[str, Any], ratio: float = RATIO) -> dict[str, Any]:
    """One candidate group against the benchmark's phase 1: verdict, both contributions and their ratio."""
    lead = group["lead"]
    row: dict[str, Any] = {
        "optimizer_step": group["optimizer_step"],
        "micro_step": group["micro_step"],
        "rank": group["rank"],
        "target_name": lead["target_name"],
        "contribution": lead["contribution"],
        "benchmark_contribution": None,
        "ratio": None,
        "verdict": UNSEEN,
        "basis": "",
    }
    if benchmark["outcome"] == "question":
        row["basis"] = "the benchmark's phase 1 has an open question"
        return row
    same = [b for b in benchmark["anomalies"] if _same_place(b, lead)]
    if same:
        other = same[0]
        row["benchmark_contribution"] = other["contribution"]
        row["ratio"] = _ratio(lead["contribution"], other["contribution"])
        close = row["ratio"] is None or row["ratio"] < ratio
        row["verdict"], row["basis"] = (SHARED if close else SPECIFIC), "the same coordinate on the benchmark"
        return row
    theirs = _group_at(benchmark, group, lead["rank"])
    if theirs is not None:
        row["ratio"] = _ratio(lead["deviation_ratio"], theirs)
        close = row["ratio"] is None or row["ratio"] < ratio
        row["verdict"] = SHARED if close else SPECIFIC
        row["basis"] = "deviations of the same rank and micro-step (the benchmark lists another target)"
        return row
    summary = benchmark["summary"]
    first, last, _ = summary["steps"]
    usual = benchmark.get("baseline", {}).get(lead["target_name"])
    if lead["rank"] not in summary["rank_ids"] or usual is None or not _covers(group, first, last):
        row["basis"] = "the benchmark did not record this rank, step or target"
        return row
    row["benchmark_contribution"] = usual
    row["ratio"] = _ratio(lead["contribution"], usual)
    row["verdict"], row["basis"] = SPECIFIC, "not abnormal on the benchmark; compared with its usual value"
    return row


def _covers(group: Mapping[str, Any], first: int, last: int) -> bool:
    step = group["optimizer_step"] if group["optimizer_step"] is not None else group["step"]
    return bool(first <= step <= last)


def _same_place(row: Mapping[str, Any], lead: Mapping[str, Any]) -> bool:
    return all(row[key] == lead[key] for key in ("optimizer_step", "step", "micro_step", "rank", "target_name"))


def _group_at(benchmark: Mapping[str, Any], group: Mapping[str, Any], rank: int) -> float | None:
    for other in benchmark["groups"]:
        if other["position"] == group["position"] and other["optimizer_step"] == group["optimizer_step"]:
            for entry in other["ranks"]:
                if entry["rank"] == rank:
                    return entry["deviation_ratio"]  # type: ignore[no-any-return]
    return None


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    """None when either side is not finite: two broken numbers are no difference between devices."""
    if ours is None or theirs is None or theirs == 0:
        return None
    return float(f"{abs(ours / theirs):.6g}")
