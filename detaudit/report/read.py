"""Reads a verdict back from the JSON that `json` wrote: what an earlier audit found, to go on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detaudit.core.errors import UnreadableError
from detaudit.core.model import (
    Cause,
    Divergence,
    DivergenceKind,
    Explanation,
    ExplanationKind,
    Outcome,
    RunReport,
    Toggle,
    Verdict,
)
from detaudit.report.json import SCHEMA


def read_verdict(path: Path) -> Verdict:
    """The verdict in a file. Raises UnreadableError for a file that is missing, damaged or of another schema."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}; name the directory of an audit") from error
    except ValueError as error:
        raise UnreadableError(f"{path} is no JSON: {error}") from error
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise UnreadableError(f"{path} has schema {schema!r}; this release reads {SCHEMA}")
    try:
        return _verdict(value)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableError(f"{path} is not whole: {type(error).__name__} {error}") from error


def _verdict(value: Mapping[str, Any]) -> Verdict:
    first = value["first_divergence"]
    found = value.get("explanation")
    return Verdict(
        outcome=Outcome(value["verdict"]),
        reason=value["reason"],
        warnings=tuple(value["warnings"]),
        steps_compared=value["steps_compared"],
        leaves_compared=value["leaves_compared"],
        first_divergence=_divergence(first) if first else None,
        diverging_leaves=tuple(_divergence(leaf) for leaf in value["diverging_leaves"]),
        equal_before=value["equal_before"],
        runs=tuple(RunReport(**{**run, "trails": tuple(run["trails"])}) for run in value["runs"]),
        pair=(value["pair"][0], value["pair"][1]),
        created_files=tuple(value["created_files"]),
        manifest_differences=tuple(value["manifest_differences"]),
        overrides=tuple(value["overrides"]),
        selection=value["leaves"],
        command=tuple(value["command"]),
        directory=value["directory"],
        certificate=value["certificate"],
        next_command=value["next_command"],
        explanation=_explanation(found) if found else None,
    )


def _divergence(value: Mapping[str, Any]) -> Divergence:
    return Divergence(**{**value, "kind": DivergenceKind(value["kind"])})


def _explanation(value: Mapping[str, Any]) -> Explanation:
    return Explanation(
        **{
            **value,
            "kind": ExplanationKind(value["kind"]),
            "evidence": tuple(value["evidence"]),
            "toggles": tuple(Toggle(**toggle) for toggle in value["toggles"]),
            "cause": Cause(**value["cause"]) if value["cause"] else None,
        }
    )
