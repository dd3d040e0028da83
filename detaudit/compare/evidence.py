"""What one run left behind: its trails, and how it ended. Read from disk by `open_run`, written by the launcher."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detaudit.core.errors import UnreadableError
from detaudit.core.model import RunReport, StepKind
from detaudit.trail.reader import TrailReader

TRAIL_SUFFIX = ".trail"
REPORT_NAME = "run.json"
"""How the run ended, beside its trails: a failed run stays a failed run for a later `detaudit diff`."""

ONLY_TRAIL = "trail"
"""The name of a trail that was given as a file: its rank is unknown, so it fits any single trail."""


@dataclass(frozen=True)
class RunEvidence:
    """What one run left: how it ended and a trail for each rank that trained, keyed by the trail's name."""

    report: RunReport
    trails: Mapping[str, TrailReader]
    missing_reason: str = ""
    """Why there is no trail, where the launcher knows it."""
    stdout_digest: str = ""
    defects: tuple[str, ...] = ()
    """What was not recorded as it should: trails that cannot be read, recorders that gave up. Never clean with one."""
    remarks: tuple[str, ...] = ()
    """What a reader of the verdict should know of how it was recorded."""


def open_run(path: Path | str, label: str) -> RunEvidence:
    """The evidence in a run directory (or a single trail file). Raises UnreadableError and its kind."""
    path = Path(path)
    if not path.exists():
        raise UnreadableError(f"{path} does not exist; name a trail or a directory of trails")
    directory = path if path.is_dir() else path.parent
    kept = _read_report(directory / REPORT_NAME)
    files = sorted(path.glob("*" + TRAIL_SUFFIX)) if path.is_dir() else [path]
    if not files and not kept:
        raise UnreadableError(f"{path} holds no trail (*{TRAIL_SUFFIX}); name what `detaudit record --out` wrote")
    names = [file.name.removesuffix(TRAIL_SUFFIX) for file in files] if path.is_dir() else [ONLY_TRAIL]
    trails = {name: TrailReader(file) for name, file in zip(names, files, strict=True)}
    report = RunReport(label, kept.get("exit_status"), kept.get("wall_seconds"), kept.get("overhead"))
    return RunEvidence(
        report=with_trail_facts(report, trails),
        trails=trails,
        missing_reason=kept.get("missing_reason", ""),
        stdout_digest=kept.get("stdout_sha256", ""),
        defects=tuple(kept.get("defects", ())),
        remarks=tuple(kept.get("remarks", ())),
    )


def keep_report(directory: Path, evidence: RunEvidence) -> None:
    """Write REPORT_NAME beside the trails of a run."""
    value = {
        "exit_status": evidence.report.exit_status,
        "wall_seconds": evidence.report.wall_seconds,
        "overhead": evidence.report.overhead,
        "missing_reason": evidence.missing_reason,
        "stdout_sha256": evidence.stdout_digest,
        "defects": list(evidence.defects),
        "remarks": list(evidence.remarks),
    }
    (directory / REPORT_NAME).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _read_report(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path} cannot be read, so how the run ended is unknown: {error}") from error
    if not isinstance(value, dict) or "exit_status" not in value:
        raise UnreadableError(f"{path} does not say how the run ended: it has no exit_status")
    return value


def with_trail_facts(report: RunReport, trails: Mapping[str, TrailReader]) -> RunReport:
    """The report with what trails tell: names, last step, outcome."""
    last = [step for trail in trails.values() if (step := last_step(trail)) is not None]
    outcomes = sorted({trail.outcome or "did not end by itself" for trail in trails.values()})
    return replace(report, trails=tuple(trails), last_step=max(last, default=None), outcome="; ".join(outcomes))


def last_step(trail: TrailReader) -> int | None:
    """The last step that was closed; the tail behind it is none."""
    whole = [position for position in (-1, -2) if len(trail) >= -position]
    closed = (position for position in whole if trail.layout(position).kind is not StepKind.TAIL)
    return next((trail.steps[position] for position in closed), None)


def aligned(a: RunEvidence, b: RunEvidence) -> tuple[RunEvidence, RunEvidence]:
    """The pair under common trail names, where one side is a single trail given as a file."""
    if len(a.trails) == len(b.trails) == 1:
        if ONLY_TRAIL in b.trails:
            return a, replace(b, trails=dict(zip(a.trails, b.trails.values(), strict=True)))
        if ONLY_TRAIL in a.trails:
            return replace(a, trails=dict(zip(b.trails, a.trails.values(), strict=True))), b
    return a, b
