"""A clean verdict in a file, bound to code, configuration, environment, device and steps.

The SHA-256 of its trails binds it to them; `verify` also judges them anew, so that an edited certificate is refuted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detaudit.compare.evidence import TRAIL_SUFFIX, RunEvidence, open_run
from detaudit.compare.runs import judge
from detaudit.core.env import parse_globs
from detaudit.core.errors import InconclusiveError, UnreadableError
from detaudit.core.model import Outcome, RunManifest, Verdict
from detaudit.core.names import Selection

NAME = "certificate.json"
SCHEMA = "detaudit.certificate/1"


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(verdict: Verdict, runs: Sequence[RunEvidence], directory: Path) -> Path:
    """Write the certificate of a clean verdict beside its trails and return its path."""
    first = next(iter(runs[0].trails.values()))
    value = {
        "schema": SCHEMA,
        "command": list(verdict.command),
        "steps_compared": verdict.steps_compared,
        "leaves_compared": verdict.leaves_compared,
        "selection": verdict.selection,
        "overrides": list(verdict.overrides),
        "warnings": list(verdict.warnings),
        "manifest": manifest_value(first.manifest),
        "trails": {
            f"{run.report.label}/{name}{TRAIL_SUFFIX}": sha256_file(trail.path)
            for run in runs
            for name, trail in run.trails.items()
        },
    }
    path = directory / NAME
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


def manifest_value(manifest: RunManifest) -> dict[str, Any]:
    return {"decisive": dict(manifest.decisive), "context": dict(manifest.context)}


def read(path: Path) -> dict[str, Any]:
    """The content of a certificate. Raises UnreadableError when it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path} is not a certificate: {error}") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnreadableError(f"{path} is not a certificate of schema {SCHEMA}")
    return value


def verify(path: Path) -> dict[str, Any]:
    """Check that every trail of a certificate is there, has the SHA-256 it had, and that judging the trails anew gives
    the verdict that the certificate states. Returns the content.

    Raises UnreadableError for what is no certificate and InconclusiveError when it does not hold.
    """
    value = read(path)
    trails = value.get("trails")
    if not isinstance(trails, dict) or not trails:
        raise UnreadableError(f"{path} names no trail, so it certifies nothing")
    for name, expected in trails.items():
        file = path.parent / name
        if not file.is_file():
            raise InconclusiveError(f"{path}: the trail {name} is missing")
        found = sha256_file(file)
        if found != expected:
            raise InconclusiveError(f"{path}: the trail {name} has changed: expected sha256 {expected}, found {found}")
    _judge_anew(path, value)
    return value


def _judge_anew(path: Path, value: Mapping[str, Any]) -> None:
    labels = sorted({name.rpartition("/")[0] for name in value["trails"]})
    runs = [open_run(path.parent / label, label) for label in labels]
    present = {f"{run.report.label}/{name}{TRAIL_SUFFIX}" for run in runs for name in run.trails}
    if present != set(value["trails"]):
        raise InconclusiveError(f"{path}: the runs hold trails it does not name: {', '.join(sorted(present))}")
    if len(runs) < 2:
        raise InconclusiveError(f"{path} names the trails of one run; a certificate rests on two at least")
    chosen = Selection.parse(parse_globs(value.get("selection", "")))
    for other in runs[1:]:
        verdict = judge(runs[0], other, chosen, allow_differences=bool(value.get("overrides")))
        if verdict.outcome is not Outcome.CLEAN:
            raise InconclusiveError(f"{path} is refuted by its own trails: {verdict.reason}")
        for key in ("steps_compared", "leaves_compared"):
            stated, found = value.get(key), getattr(verdict, key)
            if stated != found:
                raise InconclusiveError(f"{path} states {key} {stated}, its trails hold {found}")
    first = next(iter(runs[0].trails.values())).manifest
    if value.get("manifest") != manifest_value(first):
        raise InconclusiveError(f"{path} states another manifest than its trails")
