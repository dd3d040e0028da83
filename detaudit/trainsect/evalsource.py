"""Evaluation losses of a script that records none: from its log file, or from its stdout. Loads no torch.

`FILE:STEPKEY:LOSSKEY` reads JSON lines or CSV; a regular expression with the groups `step` and `loss` reads text. The
step is the number of updates done when the evaluation was taken.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from detaudit.core.errors import UnreadableError, UsageError
from detaudit.trainsect.chainlog import ChainWriter, spell_loss


def from_file(spec: str, base: Path) -> list[tuple[int, float]]:
    """The (step, loss) rows that `FILE:STEPKEY:LOSSKEY` names, in the order of the file."""
    file, step_key, loss_key = parse(spec)
    path = base / file
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UnreadableError(f"--eval {spec}: {path} cannot be read: {error}") from error
    rows = _csv(text) if path.suffix == ".csv" else _json_lines(text, path)
    found = []
    for number, row in enumerate(rows, start=1):
        if loss_key not in row or row[loss_key] in ("", None):
            continue  # a line of another kind: training logs and evaluations often share a file
        try:
            found.append((int(str(row[step_key])), float(str(row[loss_key]))))
        except (KeyError, ValueError) as error:
            raise UnreadableError(
                f"{path}, row {number}: no {step_key!r} and {loss_key!r} as numbers: {error}"
            ) from error
    if not found:
        raise UnreadableError(f"--eval {spec}: no row of {path} has a {loss_key!r}")
    return found


def parse(spec: str) -> tuple[str, str, str]:
    """Part `FILE:STEPKEY:LOSSKEY`. Raises UsageError."""
    parts = spec.rsplit(":", 2)
    if len(parts) != 3 or not all(parts):
        raise UsageError(f"--eval {spec!r}: expected FILE:STEPKEY:LOSSKEY, as in metrics.jsonl:step:eval_loss")
    return parts[0], parts[1], parts[2]


def compile_regex(text: str) -> re.Pattern[str]:
    """A regular expression with the groups step and loss. Raises UsageError."""
    try:
        pattern = re.compile(text, re.MULTILINE)
    except re.error as error:
        raise UsageError(f"--eval-regex {text!r}: {error}") from None
    if not {"step", "loss"} <= set(pattern.groupindex):
        raise UsageError(f"--eval-regex {text!r}: name the groups (?P<step>...) and (?P<loss>...)")
    return pattern


def from_text(pattern: re.Pattern[str], text: str) -> list[tuple[int, float]]:
    """The (step, loss) pairs that a pattern finds. Raises UnreadableError when it finds none."""
    try:
        found = [(int(m["step"]), float(m["loss"])) for m in pattern.finditer(text)]
    except ValueError as error:
        raise UnreadableError(f"--eval-regex found what is no number: {error}") from None
    if not found:
        raise UnreadableError(f"--eval-regex {pattern.pattern!r} matches nothing in the command's stdout")
    return found


def write(run: Path, rows: list[tuple[int, float]]) -> None:
    """Put evaluations found after the run into its directory, in place of an empty log."""
    path = run / "evaluations.jsonl"
    path.unlink(missing_ok=True)
    writer = ChainWriter(path)
    for step, loss in rows:
        writer.append("evaluation", step=step, loss=spell_loss(loss), data="")
    writer.close()


def _csv(text: str) -> list[dict[str, object]]:
    return [dict(row) for row in csv.DictReader(text.splitlines())]


def _json_lines(text: str, path: Path) -> list[dict[str, object]]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UnreadableError(f"{path}, line {number}: {error}") from None
        if isinstance(row, dict):
            rows.append(row)
    return rows
