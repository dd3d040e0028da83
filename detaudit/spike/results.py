"""Phase results as files: strict JSON, the same bytes for the same input."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detaudit.core.errors import UnreadableError, UsageError


def dumps(result: Mapping[str, Any]) -> str:
    """Strict JSON (no NaN), readable, one trailing newline."""
    return json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write a result whole or not at all. Raises UsageError when the place cannot be written."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"cannot write {target}: {error.strerror or error}; give another path with -o") from error


def load(path: str | os.PathLike[str], phase: int) -> dict[str, Any]:
    """Read a phase result. Raises UnreadableError when it is missing, no JSON, or of another phase."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"cannot read {path}: {error}") from error
    try:
        result = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableError(f"{path} is not JSON ({error}); it may be cut short") from error
    found = result.get("phase") if isinstance(result, dict) else None
    if found != phase or "outcome" not in result:
        verb = {1: "detect", 2: "select", 3: "trace"}[phase]
        raise UnreadableError(
            f"{path} is no phase-{phase} result (phase {found}); make one with: detaudit spike {verb} ... -o"
        )
    return dict(result)
