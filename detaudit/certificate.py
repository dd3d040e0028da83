"""A clean verdict in a file, bound to code, configuration, environment, device and steps by the SHA-256 of its trails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detaudit.compare.runs import TRAIL_SUFFIX, RunEvidence
from detaudit.core.errors import InconclusiveError, UnreadableError
from detaudit.core.model import Verdict

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
        "manifest": {"decisive": dict(first.manifest.decisive), "context": dict(first.manifest.context)},
        "trails": {
            f"{run.report.label}/{name}{TRAIL_SUFFIX}": sha256_file(trail.path)
            for run in runs
            for name, trail in run.trails.items()
        },
    }
    path = directory / NAME
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


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
    """Check that every trail of a certificate is there and has the SHA-256 it had. Returns the content.

    Raises UnreadableError for what is no certificate and InconclusiveError when a trail is missing or changed.
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
    return value
