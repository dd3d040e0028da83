"""Phase 1: abnormal gradients as coordinates (optimizer step, micro-step, rank, target).

Stages, in order: `fold` (what a recorded step is), `find` (abnormal cells), `groups_of` (micro-steps that hold them),
then the result as the seed's JSON (`Phase1`), with what phase 2 needs so that it can work from the file alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detaudit.core.errors import EXIT_CLEAN, EXIT_DIVERGED, EXIT_INCONCLUSIVE
from detaudit.spike import phase1_tables as tables
from detaudit.spike.anomalies import Anomalies, find
from detaudit.spike.coverage import below_resolution, gaps_of, missing_ranks, same_on_all_ranks
from detaudit.spike.cube import MetricCube
from detaudit.spike.groups import Group, groups_of
from detaudit.spike.sources import DUMP, Loaded
from detaudit.spike.windows import (
    UNDECIDED,
    Accumulation,
    Window,
    declared_window,
    find_accumulation,
    find_window,
)

FOUND, NONE_SEEN, INSUFFICIENT, QUESTION = "anomalies", "none seen", "insufficient", "question"
MAX_GROUPS = 200


@dataclass(frozen=True)
class Options:
    """Choices of the user. `rate` is the accepted number of false alarms per run under log-normal noise; `ratio` the
    smallest factor that counts as abnormal; 0 or "" leaves a choice to the data."""

    window: int = 0
    accumulation: str = ""
    rate: float = 0.01
    ratio: float = 2.0
    limit: int = 10
    world_size: int = 0


@dataclass(frozen=True)
class Folded:
    """A cube on optimizer steps. `flat_starts` maps optimizer steps back to recorded steps where micro-steps were
    flattened; empty otherwise."""

    cube: MetricCube
    window: Window
    accumulation: Accumulation
    flat_starts: tuple[int, ...] = ()

    def recorded_step(self, step: int, micro: int) -> int:
        return self.flat_starts[step] + micro if self.flat_starts else self.cube.steps[step]


def fold(loaded: Loaded, options: Options) -> Folded:
    """Find the window of the analysed metric, fold it, and decide whether its norms accumulate."""
    cube = loaded.main
    if options.window and not cube.micro_declared:
        window = declared_window(cube, options.window)
    else:
        reduced = loaded.others["grad_reduced"].steps if "grad_reduced" in loaded.others else ()
        window = find_window(cube, reduced, loaded.flat)
    if window.starts:
        cube = cube.refold(window.starts)
    if options.accumulation:
        return Folded(cube, window, Accumulation(options.accumulation, "given by the user"), window.starts)
    return Folded(cube, window, find_accumulation(cube, window), window.starts)


def detect(loaded: Loaded, options: Options | None = None) -> dict[str, Any]:
    """Phase 1 of one input as a JSON-ready dict; `outcome` and `exit_code` say how it ended."""
    options = options or Options()
    folded = fold(loaded, options)
    cube = folded.cube
    reduced = loaded.main.metric == "grad_reduced" or same_on_all_ranks(cube)
    questions = [q for q in (folded.window.question, folded.accumulation.question) if q]
    gaps = [*loaded.gaps, *gaps_of(cube, options.world_size)]
    if reduced:
        gaps.append("the ranks hold one reduced gradient: it shows that and when, never which rank")
    result: dict[str, Any] = {
        "phase": 1,
        "db_path": loaded.source,
        "format": loaded.kind,
        "outcome": QUESTION,
        "exit_code": EXIT_INCONCLUSIVE,
        "sharding_analysis": _sharding(loaded, folded),
        "questions": questions,
        "not_seen": gaps,
        "missing_ranks": missing_ranks(cube, options.world_size),
        "notes": list(loaded.notes),
        "method": {
            "false_alarms_per_run": options.rate,
            "min_ratio": options.ratio,
            "noise_model": "log-normal step-to-step differences",
        },
        "summary": {},
        "anomalies": [],
        "groups": [],
        "target_rank_norms": {},
    }
    if folded.accumulation.mode == UNDECIDED:
        return result
    known_window = folded.window.evidence != "none"
    found = find(cube, folded.accumulation.mode, options.rate, options.ratio, known_window)
    groups = groups_of(cube, found, not reduced, MAX_GROUPS, folded.accumulation.mode)
    result["other_metrics"] = {name: _earliest(other, folded, options) for name, other in sorted(loaded.others.items())}
    _fill(result, folded, found, groups, options, below_resolution(cube))
    result["outcome"], result["exit_code"] = _outcome(result, found, loaded.kind)
    return result


def _outcome(result: Mapping[str, Any], found: Anomalies, kind: str) -> tuple[str, int]:
    elsewhere = any(other and other["count"] for other in result["other_metrics"].values())
    if len(found) or (elsewhere and found.judged):
        return FOUND, EXIT_DIVERGED
    unknown = result["sharding_analysis"]["window_evidence"] == "none"
    if unknown:
        result["not_seen"].append("the window is unknown: sums of several micro-steps may hide what one of them held")
    if unknown or not found.judged or result["not_seen"] or found.unjudged:
        if not found.judged:
            why = "no cell has a history to be judged against"
            result["not_seen"].append(why + ("; candidates by absolute norm only" if kind == DUMP else ""))
        return INSUFFICIENT, EXIT_INCONCLUSIVE
    return NONE_SEEN, EXIT_CLEAN


def _fill(
    result: dict[str, Any],
    folded: Folded,
    found: Anomalies,
    groups: list[Group],
    options: Options,
    censored: float,
) -> None:
    cube = folded.cube
    result["anomalies"] = tables.anomaly_rows(folded, found, groups, options.limit)
    result["groups"] = [tables.group_row(folded, found, group) for group in groups]
    result["target_rank_norms"] = tables.target_rank_norms(folded, found)
    result["final_norms"] = tables.final_norms(folded, found, groups)
    result["curves"] = tables.curves(folded, found, groups)
    result["heat"] = tables.heat(cube, found)
    result["baseline"] = tables.baseline(cube, found)
    if not found.judged:
        result["absolute_candidates"] = tables.largest_norms(folded)
    result["summary"] = {
        "metric": cube.metric,
        "statistic": cube.statistic,
        "ranks": len(cube.ranks),
        "rank_ids": list(cube.ranks),
        "steps": [cube.steps[0], cube.steps[-1], len(cube.steps)],
        "targets": len(cube.targets),
        "cells": int(cube.present.sum()),
        "cells_judged": found.judged,
        "cells_unjudged": found.unjudged,
        "anomalies_total": len(found),
        "anomalies_listed": len(result["anomalies"]),
        "groups_listed": len(groups),
        "start_transient_cells": found.start_transient,
        "below_resolution_share": round(censored, 6),
        "overwritten_rows": cube.duplicates,
    }
    if found.start_transient:
        result["notes"].append(
            f"{found.start_transient} cell(s) of the first step are high on every rank: a cold start looks the same"
        )


def _sharding(loaded: Loaded, folded: Folded) -> dict[str, Any]:
    window, accumulation, cube = folded.window, folded.accumulation, folded.cube
    stages = sorted({target.vpp_stage for target in cube.targets})
    unit = "step" if window.size == 1 else f"micro_step ({accumulation.mode})"
    if window.evidence == "none":
        unit = "step as recorded (window unknown)"
    return {
        "pp_detected": len(stages) > 1,
        "vpp_stages": stages,
        "accumulation_window": 0 if window.size == 1 else window.size,
        "pass_unit": unit,
        "reset_boundary": list(folded.flat_starts[:64]),
        "window_evidence": window.evidence,
        "window_confidence": window.confidence,
        "window_note": window.note,
        "accumulation": accumulation.mode,
        "accumulation_evidence": accumulation.evidence,
        "available_metrics": list(loaded.available),
        "metric": cube.metric,
    }


def _earliest(cube: MetricCube, folded: Folded, options: Options) -> dict[str, Any] | None:
    """The earliest abnormal coordinate of a metric that is recorded once per optimizer step."""
    if folded.flat_starts:
        cube = cube.refold(folded.flat_starts)
    found = find(cube, "independent", options.rate, options.ratio)
    blame = cube.metric not in ("grad_reduced",) and not same_on_all_ranks(cube)
    groups = groups_of(cube, found, blame, 1)
    if not groups:
        return {"count": 0, "judged": found.judged}
    row = tables.anomaly_row(Folded(cube, folded.window, folded.accumulation), found, groups[0].lead)
    row.pop("micro_step")
    return {
        "count": len(found),
        "judged": found.judged,
        "rank": None if groups[0].rank is None else cube.ranks[groups[0].rank],
        "scope": groups[0].scope,
        "optimizer_step": row["optimizer_step"],
        "target_name": row["target_name"],
        "deviation_ratio": row["deviation_ratio"],
        "trigger": row["trigger"],
    }
