"""Runs a generated case through phases 1 and 2 and scores the answer against the label given beforehand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import spike_runs
from spike_runs import CLEAN, DETERMINED, INSUFFICIENT, Spec, Truth

from detaudit.spike.detect import Options, detect
from detaudit.spike.select import select
from detaudit.spike.sources import load

EXACT, WITHHELD, WRONG, FALSE_ALARM, QUIET = "exact", "insufficient", "wrong", "false alarm", "quiet"


@dataclass(frozen=True)
class Score:
    """How one case ended. `fields` names what was wrong."""

    outcome: str
    fields: tuple[str, ...] = ()
    detail: str = ""


def answer(spec: Spec, folder: Path) -> dict[str, Any]:
    """Phase 2 of a generated run, through files and JSON as a user would."""
    written = spike_runs.write(spec, folder)
    options = Options(**written.options)  # type: ignore[arg-type]
    phase1 = json.loads(json.dumps(detect(load(written.path, written.kind), options), allow_nan=False))
    phase2 = select(phase1)
    phase2["window"] = phase1["sharding_analysis"]["accumulation_window"]
    return phase2


def score(spec: Spec, truth: Truth, phase2: dict[str, Any]) -> Score:
    root = phase2["root_cause_coordinate"]
    detail = "; ".join(phase2["reasoning"][-2:] + phase2["questions"])
    if truth.label == CLEAN:
        return Score(FALSE_ALARM if root else QUIET, detail=detail)
    if root is None:
        return Score(WITHHELD, detail=detail)
    wrong = []
    if root["optimizer_step"] is None and truth.step is not None and truth.micro is not None:
        # Without window evidence only the recorded (flat) step is an answer, and it must be the right one.
        if root["step"] != truth.step * spec.window + truth.micro:
            wrong.append("recorded step")
    elif root["optimizer_step"] != truth.step:
        wrong.append("step")
    if root["optimizer_step"] is not None and spec.window > 1 and root["micro_step"] != truth.micro:
        wrong.append("micro_step")
    if root["rank"] != truth.rank:
        wrong.append("rank")
    if root["target_name"] != truth.target:
        wrong.append("target")
    return Score(WRONG, tuple(wrong), detail) if wrong else Score(EXACT)


def failed(label: str, outcome: str) -> bool:
    """Whether an outcome breaks the promise made for a label."""
    allowed = {DETERMINED: {EXACT}, INSUFFICIENT: {WITHHELD}, CLEAN: {QUIET, FALSE_ALARM}}
    return outcome not in allowed.get(label, {EXACT, WITHHELD})


def tabulate(scores: list[tuple[str, str]]) -> dict[str, Counter[str]]:
    table: dict[str, Counter[str]] = {}
    for label, outcome in scores:
        table.setdefault(label, Counter())[outcome] += 1
    return table
