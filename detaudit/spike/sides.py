"""Assembles the four sides of phase 3: which dump of a directory is A, B, C or D.

A is the root coordinate of phase 2, B the same place on the benchmark side, C and D a normal place found beside them or
given. What cannot be decided is a question to the user, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detaudit.core.errors import EXIT_INCONCLUSIVE, UsageError
from detaudit.spike.controls import find_controls
from detaudit.spike.read_dump import Dump, DumpPlace, find_dumps, read_dump
from detaudit.spike.trace import trace

QUESTION = "question"


@dataclass(frozen=True)
class Request:
    """The user's choice of dumps. `coordinate` is (step, rank); C and D may be empty; `no_control` compares A and B
    alone."""

    a: str
    b: str
    c: str = ""
    d: str = ""
    coordinate: tuple[int, int] | None = None
    micro_step: int | None = None
    no_control: bool = False


@dataclass
class Sides:
    """The chosen places by side, and what was noted on the way."""

    places: dict[str, DumpPlace] = field(default_factory=dict)
    micro_step: int | None = None
    notes: list[str] = field(default_factory=list)
    considered: list[dict[str, Any]] = field(default_factory=list)
    question: str = ""


def assemble(
    request: Request, phase1: Mapping[str, Any] | None = None, phase2: Mapping[str, Any] | None = None
) -> Sides:
    """Choose the places. Raises UsageError when only one of C and D is given, or a path holds several dumps and no
    coordinate says which; UnreadableError for paths without dumps."""
    if bool(request.c) != bool(request.d):
        raise UsageError("--dump-c and --dump-d belong together: C is a normal sample, D its benchmark")
    sides = Sides(micro_step=request.micro_step)
    coordinate = request.coordinate
    root = (phase2 or {}).get("root_cause_coordinate")
    if root and sides.micro_step is None:
        sides.micro_step = root["micro_step"]
    if coordinate is None and root and root["optimizer_step"] is not None and root["rank"] is not None:
        coordinate = (root["optimizer_step"], root["rank"])
    sides.places["A"] = _pick(request.a, coordinate, "--dump-a", root)
    a = sides.places["A"]
    sides.places["B"] = _pick(request.b, (a.step, a.rank), "--dump-b", root)
    if coordinate and not a.assumed and (a.step, a.rank) != coordinate:
        sides.notes.append(
            f"dump A is step {a.step} rank {a.rank}, the root coordinate is step {coordinate[0]} rank {coordinate[1]}"
        )
    if request.c:
        sides.places["C"] = _pick(request.c, None, "--dump-c", None)
        c = sides.places["C"]
        sides.places["D"] = _pick(request.d, (c.step, c.rank), "--dump-d", None)
    elif not request.no_control:
        found = find_controls(a, sides.places["B"], phase1)
        sides.considered, sides.question = found.considered, found.question
        if found.c and found.d:
            sides.places["C"], sides.places["D"] = found.c, found.d
            sides.notes.append(f"C and D chosen automatically: {found.c.label}")
        elif not found.question:
            sides.notes.append("no other dump lies beside A: compared without a control group")
    return sides


def _pick(path: str, coordinate: tuple[int, int] | None, option: str, root: Mapping[str, Any] | None) -> DumpPlace:
    places = find_dumps(path)
    if len(places) == 1:
        return places[0]
    if coordinate is not None:
        for place in places:
            if (place.step, place.rank) == coordinate:
                return place
    listed = ", ".join(place.label for place in places[:12]) + (" ..." if len(places) > 12 else "")
    why = "which of them?" if coordinate is None else f"none is step {coordinate[0]} rank {coordinate[1]}"
    if root and root["rank"] is None:
        why = f"phase 2 could not tell the rank apart ({root['rank_scope']}: {root['ranks']})"
    raise UsageError(
        f"{option} {path} holds {len(places)} dumps ({listed}); {why} Give one directory, or --coordinate STEP:RANK"
    )


def trace_sides(sides: Sides) -> dict[str, Any]:
    """Phase 3 of assembled sides; a question ends it without comparing."""
    if sides.question:
        return {
            "phase": 3,
            "mode": "no control group",
            "outcome": QUESTION,
            "exit_code": EXIT_INCONCLUSIVE,
            "dirs": {side: str(place.path.parent) for side, place in sides.places.items()},
            "questions": [sides.question],
            "controls_considered": sides.considered,
            "notes": sides.notes,
            "conclusion": {},
            "anchors": [],
        }
    dumps: dict[str, Dump] = {side: read_dump(place) for side, place in sides.places.items()}
    result = trace(dumps, sides.micro_step)
    result["notes"] = [*sides.notes, *result["notes"]]
    result["controls_considered"] = sides.considered
    return result
