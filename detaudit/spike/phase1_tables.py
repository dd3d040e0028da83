"""Rows and tables of the phase-1 result, all JSON-ready and all bounded in size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from detaudit.spike.anomalies import Anomalies
from detaudit.spike.cube import Floats, MetricCube
from detaudit.spike.groups import Group
from detaudit.spike.windows import CUMULATIVE

if TYPE_CHECKING:
    from detaudit.spike.detect import Folded

MAX_FOCUS = 8
MAX_HEAT_COLUMNS = 240
MAX_CURVE_RANKS = 64
MAX_FINAL_VALUES = 40_000
CURVE_STEPS = 2
SUSPECTS = 20


def number(value: float) -> float | None:
    """A float for JSON: eight significant digits, None for NaN and infinities (the trigger tells them apart)."""
    return float(f"{value:.8g}") if math.isfinite(value) else None


def ratio(distance: float) -> float | None:
    """The factor of a log distance; None for a NaN or infinite gradient, whose trigger says which."""
    return number(math.exp(min(distance, 700.0))) if math.isfinite(distance) else None


def final_norm(values: Floats, mode: str) -> Floats:
    """The norm of a whole optimizer step: the last micro-step of an accumulated series, the root of the sum of squares
    of an independent one. The last axis is the micro-step; NaN left out, NaN where nothing is left."""
    known = ~np.isnan(values)
    if mode == CUMULATIVE:
        last = values.shape[-1] - 1 - np.argmax(known[..., ::-1], axis=-1)
        return np.where(known.any(axis=-1), np.take_along_axis(values, last[..., None], -1)[..., 0], np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sqrt(np.sum(np.where(known, values, 0.0) ** 2, axis=-1))
    return np.where(known.any(axis=-1), total, np.nan)


def anomaly_row(folded: Folded, found: Anomalies, i: int) -> dict[str, Any]:
    """One abnormal cell with the seed's keys."""
    cube = folded.cube
    rank, target, step, micro = (int(axis[i]) for axis in (found.rank, found.target, found.step, found.micro))
    series = cube.values[rank, target, step]
    before = float(series[micro - 1]) if micro and folded.accumulation.mode == CUMULATIVE else 0.0
    norm = float(series[micro])
    return {
        "rank": cube.ranks[rank],
        "step": folded.recorded_step(step, micro),
        "micro_step": micro if folded.window.size > 1 else None,
        "optimizer_step": cube.steps[step] if folded.window.evidence != "none" else None,
        "target_name": cube.targets[target].name,
        "vpp_stage": cube.targets[target].vpp_stage,
        "norm": number(norm),
        "delta": number(norm - before),
        "contribution": number(float(found.contribution[i])),
        "deviation_ratio": ratio(float(found.distance[i])),
        "reference": number(float(found.reference[i])),
        "threshold_ratio": ratio(float(found.threshold[i])),
        "suspect_final_norm": number(float(final_norm(series, folded.accumulation.mode))),
        "trigger": str(found.trigger[i]),
    }


def anomaly_rows(folded: Folded, found: Anomalies, groups: list[Group], limit: int) -> list[dict[str, Any]]:
    """Per group its lead, then its largest deviations, at most `limit`; in order of time."""
    rows: list[dict[str, Any]] = []
    for group in groups:
        chosen = list(dict.fromkeys([group.lead, *group.cells[:limit].tolist()]))[:limit]
        rows.extend(anomaly_row(folded, found, i) for i in chosen)
    return rows


def group_row(folded: Folded, found: Anomalies, group: Group) -> dict[str, Any]:
    cube = folded.cube
    lead = anomaly_row(folded, found, group.lead)
    return {
        "step": lead["step"],
        "optimizer_step": lead["optimizer_step"],
        "micro_step": lead["micro_step"],
        "position": [group.step, group.micro],
        "cells": len(group.cells),
        "rank": None if group.rank is None else cube.ranks[group.rank],
        "scope": group.scope,
        "whole_window": group.whole_window,
        "ranks": [
            {"rank": cube.ranks[rank], "deviation_ratio": ratio(far), "targets": count}
            for rank, far, count in group.ranks
        ],
        "ranks_seen": group.ranks_seen,
        "targets": group.targets,
        "targets_seen": group.targets_seen,
        "first_target_in_backward_order": cube.targets[group.first_target].name,
        "triggers": sorted({str(name) for name in found.trigger[group.cells]}),
        "lead": lead,
    }


def _focus(found: Anomalies, groups: list[Group], cube: MetricCube) -> list[int]:
    """Targets that phase 2 compares across steps: the leads of the first groups and of the largest ones."""
    first = [int(found.target[group.lead]) for group in groups[:MAX_FOCUS]]
    largest = sorted(groups, key=lambda group: (-abs(float(found.distance[group.lead])), group.step))
    return list(dict.fromkeys([*first, *(int(found.target[g.lead]) for g in largest[:MAX_FOCUS])]))[:MAX_FOCUS]


def target_rank_norms(folded: Folded, found: Anomalies) -> dict[str, Any]:
    """Per optimizer step with anomalies: the target of the largest final norm among them, and its final norm on every
    rank (the seed's input of phase 2)."""
    result: dict[str, Any] = {}
    cube, mode = folded.cube, folded.accumulation.mode
    for step in np.unique(found.step)[:100]:
        targets = np.unique(found.target[found.step == step])
        finals = final_norm(cube.values[:, targets, step, :], mode)
        with np.errstate(invalid="ignore"):
            peaks = np.fmax.reduce(np.where(np.isnan(finals), -1.0, finals), axis=0)
        best = int(targets[int(np.argmax(peaks))])
        norms = final_norm(cube.values[:, best, step, :], mode)
        result[str(cube.steps[step])] = {
            "target_name": cube.targets[best].name,
            "rank_norms": {str(rank): number(float(norm)) for rank, norm in zip(cube.ranks, norms, strict=True)},
        }
    return result


def final_norms(folded: Folded, found: Anomalies, groups: list[Group]) -> dict[str, Any]:
    """Final norms of a few fixed targets over steps and ranks, so that phase 2 compares the same target everywhere.

    Every step while that stays small, otherwise the steps around the first and the largest groups.
    """
    cube = folded.cube
    focus = _focus(found, groups, cube)
    steps = np.arange(len(cube.steps))
    if len(focus) * len(steps) * len(cube.ranks) > MAX_FINAL_VALUES:
        near = {s + d for s in np.unique(found.step)[:20].tolist() for d in (-1, 0, 1, 2)}
        steps = np.array(sorted(s for s in near if 0 <= s < len(cube.steps)), dtype=np.int64)
    norms = final_norm(cube.values[:, focus][:, :, steps], folded.accumulation.mode) if focus else np.zeros((0, 0, 0))
    return {
        "targets": [cube.targets[i].name for i in focus],
        "ranks": list(cube.ranks),
        "steps": [cube.steps[s] for s in steps] if focus else [],
        "positions": [int(s) for s in steps] if focus else [],
        "norms": [
            [[number(float(x)) for x in norms[:, p, s]] for s in range(norms.shape[2])] for p in range(len(focus))
        ],
    }


def curves(folded: Folded, found: Anomalies, groups: list[Group]) -> dict[str, Any]:
    """Norms over micro-steps around the first group, of its lead target, by rank: what the report draws."""
    if not groups:
        return {}
    cube, lead = folded.cube, groups[0].lead
    target, step = int(found.target[lead]), int(found.step[lead])
    first, last = max(0, step - CURVE_STEPS), min(len(cube.steps), step + CURVE_STEPS + 1)
    order = [int(found.rank[lead]), *(r for r in range(len(cube.ranks)) if r != int(found.rank[lead]))]
    kept = sorted(order[:MAX_CURVE_RANKS])
    return {
        "target_name": cube.targets[target].name,
        "optimizer_steps": list(cube.steps[first:last]),
        "micro_steps": cube.micro_steps,
        "root": {"rank": cube.ranks[int(found.rank[lead])], "position": [step - first, int(found.micro[lead])]},
        "ranks": [cube.ranks[r] for r in kept],
        "ranks_left_out": len(cube.ranks) - len(kept),
        "norms": [[[number(float(x)) for x in cube.values[r, target, s]] for s in range(first, last)] for r in kept],
    }


def heat(cube: MetricCube, found: Anomalies) -> dict[str, Any]:
    """Largest deviation ratio of every rank and step; neighbouring steps are merged by maximum beyond 240 columns."""
    if found.heat is None:
        return {}
    table = found.heat
    width = math.ceil(table.shape[1] / MAX_HEAT_COLUMNS)
    columns = [np.fmax.reduce(table[:, at : at + width], axis=1) for at in range(0, table.shape[1], width)]
    return {
        "ranks": list(cube.ranks),
        "steps": [cube.steps[at] for at in range(0, table.shape[1], width)],
        "steps_per_column": width,
        "max_ratio": [[number(round(math.exp(float(c[r])), 4)) for c in columns] for r in range(len(cube.ranks))],
    }


def baseline(cube: MetricCube, found: Anomalies) -> dict[str, Any]:
    """Usual contribution of every target, and the ratio that would be abnormal: lets the other device's phase 2 know
    what this side holds at coordinates it does not list."""
    logs = found.logs.reshape(len(cube.ranks), len(cube.targets), -1)
    sample = np.moveaxis(logs[:, :, :: max(1, logs.shape[2] // 256)], 1, 0).reshape(len(cube.targets), -1)
    with np.errstate(invalid="ignore"):
        usual = [np.exp(np.median(row[~np.isnan(row)])) if (~np.isnan(row)).any() else math.nan for row in sample]
    return {target.name: number(float(value)) for target, value in zip(cube.targets, usual, strict=True)}


def largest_norms(folded: Folded) -> list[dict[str, Any]]:
    """The largest norms of all, for data without a history (one dump): candidates, not anomalies."""
    cube = folded.cube
    flat = np.where(np.isnan(cube.values), -np.inf, cube.values).ravel()
    order = np.argsort(-flat, kind="stable")[:SUSPECTS]
    rows = []
    for place in order[np.isfinite(flat[order]) | (flat[order] == np.inf)]:
        rank, target, step, micro = np.unravel_index(int(place), cube.values.shape)
        rows.append(
            {
                "rank": cube.ranks[rank],
                "step": folded.recorded_step(int(step), int(micro)),
                "micro_step": int(micro) if folded.window.size > 1 else None,
                "target_name": cube.targets[target].name,
                "norm": number(float(flat[place])),
                "position": [int(step), int(micro)],
            }
        )
    return rows
