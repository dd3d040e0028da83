"""Finds C and D, the normal coordinate and its benchmark, among the dumps beside A and B.

The seed's conditions: C is not among phase 1's anomalies, the norm of its gradients is within the lower three quarters
of its directory, and its micro-batches have A's shape; D must exist on the benchmark side at the same step and rank. If
candidates exist but none can be called normal, the user is asked; C is never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from detaudit.spike.dump_keys import FORWARD, GRADIENT, parse_key
from detaudit.spike.json_stream import JsonMembers
from detaudit.spike.read_dump import DumpPlace, _entry, find_dumps

PERCENTILE = 75.0


@dataclass
class Controls:
    """The outcome of the search. `question` is set when there are candidates but none is known to be normal."""

    c: DumpPlace | None = None
    d: DumpPlace | None = None
    considered: list[dict[str, Any]] = field(default_factory=list)
    question: str = ""


@dataclass(frozen=True)
class _Profile:
    norm: float
    shape: tuple[tuple[int, ...], ...]


def dump_root(place: DumpPlace) -> Path:
    """The directory that holds the step folders of a dump."""
    folder = place.path.parent
    return folder.parent.parent if folder.parent.name.startswith("step") else folder.parent


def find_controls(a: DumpPlace, b: DumpPlace, phase1: Mapping[str, Any] | None) -> Controls:
    """Look for C beside A and for D beside B."""
    root = dump_root(a)
    others = [place for place in find_dumps(root) if place.path != a.path and place.path != b.path]
    found = Controls()
    if not others or any(place.assumed for place in (a, b)):
        return found
    counterpart = {(place.step, place.rank): place for place in find_dumps(dump_root(b)) if place.path != a.path}
    own = profile(a)
    profiles = {place: profile(place) for place in others}
    norms = np.array([p.norm for p in (own, *profiles.values()) if math.isfinite(p.norm)])
    bound = float(np.percentile(norms, PERCENTILE)) if len(norms) > 1 else math.nan
    usable: list[DumpPlace] = []
    for place, held in profiles.items():
        why = _objection(place, held, own, bound, phase1, counterpart)
        found.considered.append({"place": place.label, "gradient_norm": _number(held.norm), "objection": why})
        if not why:
            usable.append(place)
    if usable:
        found.c = min(
            usable, key=lambda p: (p.step != a.step, abs(p.rank - a.rank) + abs(p.step - a.step), p.step, p.rank)
        )
        found.d = counterpart[found.c.step, found.c.rank]
    else:
        found.question = (
            "No normal sample could be chosen for C: "
            + "; ".join(f"{row['place']}: {row['objection']}" for row in found.considered[:8])
            + ". Give --dump-c and --dump-d, or --no-control to compare A and B alone."
        )
    return found


def _objection(
    place: DumpPlace,
    held: _Profile,
    own: _Profile,
    bound: float,
    phase1: Mapping[str, Any] | None,
    counterpart: Mapping[tuple[int, int], DumpPlace],
) -> str:
    """Why a place cannot be C; empty when nothing speaks against it."""
    if phase1 is None:
        return "no phase-1 result given, so it is unknown whether it is abnormal (--phase1)"
    if not covers(phase1, place):
        return "phase 1 did not see it"
    if is_abnormal(phase1, place):
        return "abnormal in phase 1"
    if not math.isfinite(held.norm):
        return "holds no gradient norms"
    if math.isnan(bound) or held.norm > bound:
        return f"gradient norm {held.norm:.4g} above the 75th percentile {bound:.4g} of its directory"
    if held.shape != own.shape:
        return "its micro-batch has another shape"
    if (place.step, place.rank) not in counterpart:
        return "the benchmark side holds no dump of this step and rank"
    return ""


def covers(phase1: Mapping[str, Any], place: DumpPlace) -> bool:
    """Whether phase 1 judged this step and rank."""
    summary = phase1.get("summary") or {}
    if not summary or phase1["outcome"] == "question" or not summary.get("cells_judged"):
        return False
    first, last, _ = summary["steps"]
    return place.rank in summary["rank_ids"] and first <= place.step <= last


def is_abnormal(phase1: Mapping[str, Any], place: DumpPlace) -> bool:
    """Whether any abnormal group of phase 1 names this step and rank."""
    return any(
        group["optimizer_step"] == place.step and any(entry["rank"] == place.rank for entry in group["ranks"])
        for group in phase1["groups"]
    )


def profile(place: DumpPlace) -> _Profile:
    """Norm over all parameter gradients of a dump, and the shapes of the first operator's inputs (the micro-batch)."""
    total, seen = 0.0, False
    shape: tuple[tuple[int, ...], ...] | None = None
    for path, text, value in JsonMembers(place.path, nested=("data",)):
        if path != "data":
            continue
        key = parse_key(text)
        if key.kind == GRADIENT:
            for tensor in _entry(text, value, 0).gradients.values():
                seen = True
                total += tensor.Norm**2 if not tensor.broken else math.inf
        elif shape is None and key.direction == FORWARD:
            shape = tuple(tensor.shape for tensor in _entry(text, value, 0).inputs if tensor is not None)
    return _Profile(math.sqrt(total) if seen and not math.isnan(total) else math.nan, shape or ())


def _number(value: float) -> float | None:
    return float(f"{value:.8g}") if math.isfinite(value) else None
