"""Runs the user's own script under the recorder of Trainsect. Loads no torch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detaudit.compare.evidence import RunEvidence
from detaudit.core import env
from detaudit.core.errors import InconclusiveError
from detaudit.launch import child
from detaudit.trainsect import evalsource

ERROR = "trainsect-error.txt"
PROCESS = "process"
"""Output and exit status of the command, below the run directory."""


def run_script(command: Sequence[str], out: Path, config: dict[str, Any], trails: bool = False) -> RunEvidence:
    """Run a command that writes the run directory `out`. Raises InconclusiveError when it failed or left nothing."""
    process = out / PROCESS
    asked = json.dumps({**config, "out": str(out.resolve()), "trails": trails, "command": list(command)})
    settings = env.Settings(str(process.resolve()), trainsect=asked)
    evidence = child.run(command, "run", settings, os.environ)
    error = process / ERROR
    if error.exists():
        raise InconclusiveError(f"the recording stopped: {error.read_text('utf-8').strip()}")
    if evidence.report.exit_status:
        tail = child.tail_of(process / "stderr.txt")
        raise InconclusiveError(f"the command failed with exit status {evidence.report.exit_status}:\n{tail}")
    if not (out / "log.jsonl").exists():
        raise InconclusiveError(
            "the command ran and nothing was recorded: no training forward of a module with gradients was seen "
            f"({evidence.missing_reason or 'its output is in ' + str(process)})"
        )
    return evidence


def add_evaluations(out: Path, eval_spec: str, eval_regex: str) -> int:
    """Read the evaluations that a script left and write them into the run; returns how many."""
    rows: list[tuple[int, float]] = []
    if eval_spec:
        rows = evalsource.from_file(eval_spec, Path.cwd())
    elif eval_regex:
        text = (out / PROCESS / "stdout.txt").read_text("utf-8", errors="replace")
        rows = evalsource.from_text(evalsource.compile_regex(eval_regex), text)
    if rows:
        evalsource.write(out, rows)
    return len(rows)


def forget(directory: Path) -> None:
    """Remove the run directory of a re-execution."""
    shutil.rmtree(directory, ignore_errors=True)
