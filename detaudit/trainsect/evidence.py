"""The evidence of a diagnosis as one JSON value, and its Markdown. Equal diagnoses give equal bytes, `timing` apart.

`integrity` is the SHA-256 of everything else but `timing`; it shows a changed byte and says nothing of who wrote it.
`repro` holds three replays that anyone can run again: identity, necessity, sufficiency.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detaudit.core.errors import UnreadableError
from detaudit.trainsect.counterfactual import Arm
from detaudit.trainsect.diagnosis import Diagnosis
from detaudit.trainsect.inside import isolated_value

SCHEMA = "detaudit.trainsect.report/1"
APART = ("integrity", "timing")


def report_value(found: Diagnosis, timing: Mapping[str, Any], target: str) -> dict[str, Any]:
    """The report in plain types. Non-finite numbers are spelled `nan`, `inf`, `-inf`."""
    value = {
        "schema": SCHEMA,
        "verdict": _verdict(found),
        "collapse": _collapse(found),
        "threshold": vars(found.threshold) if found.threshold else None,
        "timeline": _timeline(found),
        "fillings": [filling.name for filling in found.fillings],
        "controls": [each.value() for each in found.controls],
        "shards": isolated_value(found.isolated) if found.isolated else None,
        "inside": [each.value() for each in found.inside],
        "dose": found.dose.value() if found.dose else None,
        "forensic": found.forensic,
        "replays": [arm.value() for arm in found.arms.kept] if found.arms else [],
        "evaluations": [{"step": e.step, "loss": e.loss, "data": e.data} for e in found.run.evaluations],
        "repro": _repro(found),
        "files": _files(found),
        "target": target,
        "warnings": list(found.warnings),
        "timing": dict(timing),
    }
    plain: dict[str, Any] = _plain(value)
    plain["integrity"] = integrity(plain)
    return plain


def integrity(value: Mapping[str, Any]) -> str:
    kept = {key: each for key, each in value.items() if key not in APART}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, allow_nan=False).encode()).hexdigest()


def dumps(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def read(path: Path) -> dict[str, Any]:
    """A report from its JSON file. Raises UnreadableError for what is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path} cannot be read as a report: {error}") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnreadableError(f"{path} is no report of schema {SCHEMA}; give the report.json of a diagnosis")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def _verdict(found: Diagnosis) -> dict[str, Any]:
    place = found.bracket
    return {
        "status": found.status,
        "kind": found.kind,
        "shards": list(found.shards),
        "bracket": [place.start, place.stop] if place and place.start is not None else None,
        "conditional_on_checkpoint": place.start if place else None,
        "state": found.state,
        "reason": found.reason,
        "sentence": sentence(found),
    }


def sentence(found: Diagnosis) -> str:
    """The verdict in one sentence."""
    where = ""
    if found.bracket is not None and found.bracket.start is not None:
        where = f", bracket [{found.bracket.start}, {found.bracket.stop})"
    names = ", ".join(found.shards) or "no shard named"
    parts = [f"{found.status}: {found.kind}, {names}{where}"]
    for each in found.inside:
        if each.step is not None:
            parts.append(f"batch of step {each.step}")
        if each.sample_id is not None:
            parts.append(f"sample {each.sample_id}")
    if not found.arms:
        parts = [found.status]
    return ", ".join(parts) + (f" ({found.reason})" if found.reason else "")


def _collapse(found: Diagnosis) -> dict[str, Any]:
    seen = found.collapse
    return {
        "kind": str(seen.kind),
        "reason": seen.reason,
        "evaluations": seen.evaluations,
        "scale": seen.scale,
        "noise": seen.noise,
        "tau": seen.tau,
        "final_excess": seen.final_excess,
        "best_step": seen.best_step,
        "best_loss": seen.best_loss,
        "bad_step": seen.bad_step,
        "onset": list(seen.onset) if seen.onset else None,
        "nonfinite": list(seen.nonfinite),
        "cross_check": seen.cross_check,
    }


def _timeline(found: Diagnosis) -> dict[str, Any] | None:
    place = found.bracket
    if place is None:
        return None
    onset = found.collapse.onset
    return {
        "predicate": found.options.predicate if found.run.instrumented else "rebuilt orders collapse",
        "start": place.start,
        "stop": place.stop,
        "confidence": place.confidence,
        "probes": [list(each) for each in place.probes],
        "reversals": [list(each) for each in place.reversals],
        "onset_lag": onset[1] - place.stop if onset and onset[1] > place.stop else 0,
    }


def _repro(found: Diagnosis) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if found.identity is not None:
        states = {str(step): state for step, state in sorted(found.identity.states.items())}
        made["identity"] = {"start": found.identity.start, "stop": found.identity.stop, "states": states}
    if found.arms is None or not found.shards:
        return made
    necessity = [arm for arm in found.arms.kept if arm.purpose == "necessity"]
    if necessity:
        made["necessity"] = arm_value(necessity[0], found.arms.horizon)
    shown = {f"only {', '.join(sorted(each))}" for each in (found.isolated.sets if found.isolated else ())}
    whole = [arm for arm in found.arms.kept if arm.what in shown or arm.purpose == "sufficiency"]
    if whole:
        made["sufficiency"] = arm_value(whole[0], found.arms.horizon)
    return made


def arm_value(arm: Arm, horizon: int) -> dict[str, Any]:
    """An arm with its substitutions, so that a stranger can run it again."""
    subs = {str(step): [list(row) for row in rows] for step, rows in sorted(arm.substitutions.items())}
    return arm.value() | {"stop": horizon, "substitutions": subs, "seed": arm.seed}


def _files(found: Diagnosis) -> dict[str, str]:
    """SHA-256 of what the report rests on, by the name in the run directory."""
    root = found.run.directory
    paths = [root / name for name in ("run.json", "log.jsonl", "evaluations.jsonl", "rng.pack", "tape.pack")]
    paths += [entry.path for entry in found.run.checkpoints.values()]
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
        if path.is_file()
    }
