"""The verdict as JSON, for programs. `schema` changes when a key changes its meaning."""

from __future__ import annotations

import json

from detaudit.core.model import Divergence, Explanation, RunReport, Verdict

SCHEMA = "detaudit.verdict/1"


def verdict_value(verdict: Verdict) -> dict[str, object]:
    """The verdict as plain JSON types; the keys are a contract."""
    first = verdict.first_divergence
    return {
        "schema": SCHEMA,
        "verdict": str(verdict.outcome),
        "reason": verdict.reason,
        "warnings": list(verdict.warnings),
        "steps_compared": verdict.steps_compared,
        "leaves_compared": verdict.leaves_compared,
        "first_divergence": divergence_value(first) if first else None,
        "diverging_leaves": [divergence_value(divergence) for divergence in verdict.diverging_leaves],
        "equal_before": verdict.equal_before,
        "runs": [run_value(run) for run in verdict.runs],
        "pair": list(verdict.pair),
        "created_files": list(verdict.created_files),
        "manifest_differences": list(verdict.manifest_differences),
        "overrides": list(verdict.overrides),
        "leaves": verdict.selection,
        "command": list(verdict.command),
        "directory": verdict.directory,
        "certificate": verdict.certificate,
        "next_command": verdict.next_command,
        "explanation": explanation_value(verdict.explanation) if verdict.explanation else None,
    }


def explanation_value(explanation: Explanation) -> dict[str, object]:
    cause = explanation.cause
    return {
        "kind": str(explanation.kind),
        "step": explanation.step,
        "operator": explanation.operator,
        "module": explanation.module,
        "file": explanation.file,
        "line": explanation.line,
        "code": explanation.code,
        "evidence": list(explanation.evidence),
        "rate": explanation.rate,
        "toggles": [{"name": t.name, "pairs": t.pairs, "diverged": t.diverged} for t in explanation.toggles],
        "cause": {
            "id": cause.id,
            "title": cause.title,
            "fix": cause.fix,
            "against": cause.against,
            "support": cause.support,
        }
        if cause
        else None,
    }


def divergence_value(divergence: Divergence) -> dict[str, object]:
    return {
        "step": divergence.step,
        "leaf": divergence.leaf,
        "kind": str(divergence.kind),
        "rank": divergence.rank,
        "order": divergence.order,
        "optimizer": divergence.optimizer,
        "run_a": divergence.run_a,
        "run_b": divergence.run_b,
        "delta": divergence.delta,
        "note": divergence.note,
    }


def run_value(run: RunReport) -> dict[str, object]:
    return {
        "label": run.label,
        "exit_status": run.exit_status,
        "wall_seconds": run.wall_seconds,
        "overhead": run.overhead,
        "trails": list(run.trails),
        "last_step": run.last_step,
        "outcome": run.outcome,
    }


def verdict_json(verdict: Verdict) -> str:
    """The JSON text, indented, with a final newline."""
    return json.dumps(verdict_value(verdict), indent=2, ensure_ascii=False) + "\n"
