"""`verify`: a report's own hash, the files it rests on, and its minimal replays run again."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detaudit.core.errors import UsageError
from detaudit.trainsect.evidence import integrity
from detaudit.trainsect.model import Replayer

REPROS = ("identity", "necessity", "sufficiency")


@dataclass(frozen=True)
class Finding:
    """One check: what, and why it failed (empty when it passed)."""

    what: str
    problem: str = ""


def check_files(value: Mapping[str, Any], directory: Path) -> list[Finding]:
    """The report against itself and against the run directory."""
    same = hmac.compare_digest(str(value.get("integrity")), integrity(value))
    found = [Finding("report", "" if same else "its content does not match its hash: it was changed")]
    if not value["files"]:
        found.append(Finding("files", "the report names no file that it rests on"))
    for name, sha in sorted(value["files"].items()):
        path = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            found.append(Finding(name, "lies outside of the run directory"))
        elif not path.is_file():
            found.append(Finding(name, "is missing"))
        else:
            here = hashlib.sha256(path.read_bytes()).hexdigest()
            found.append(Finding(name, "" if here == sha else f"SHA-256 is {here[:16]}, reported {sha[:16]}"))
    return found


def check_replays(value: Mapping[str, Any], replayer: Replayer, only: Sequence[str] = ()) -> list[Finding]:
    """The minimal replays, with nothing cached: end state, loss and answer have to be the same again."""
    unknown = [name for name in only if name not in REPROS]
    if unknown:
        raise UsageError(f"--only {unknown[0]}: a report holds {', '.join(REPROS)}")
    missing = [name for name in only if name not in value["repro"]]
    found = [Finding(name, "the report holds no such replay") for name in missing]
    for name, repro in value["repro"].items():
        if not only or name in only:
            check = _identity if name == "identity" else _arm
            found.append(Finding(name, check(repro, replayer)))
    return found


def _identity(repro: Mapping[str, Any], replayer: Replayer) -> str:
    result = replayer.replay(repro["start"], repro["stop"], substitutions={}, evaluate_at=())
    here = {str(step): state for step, state in result.states.items()}
    for step, state in repro["states"].items():
        if here.get(step) != state:
            return f"the state before step {step} is {here.get(step, 'missing')[:16]}, reported {state[:16]}"
    return "" if repro["states"] else "the report holds no state to compare"


def _arm(repro: Mapping[str, Any], replayer: Replayer) -> str:
    subs = {int(step): tuple(map(tuple, rows)) for step, rows in repro["substitutions"].items()}
    stop = repro["stop"]
    result = replayer.replay(repro["start"], stop, substitutions=subs, evaluate_at=(stop,), seed=repro["seed"])
    loss: Any = result.evaluations[stop]
    spelled = loss if loss == loss and abs(loss) != float("inf") else repr(loss)
    if spelled != repro["loss"]:
        return f"the evaluation at step {stop} is {loss!r}, reported {repro['loss']!r}"
    if result.states.get(stop, "") != repro["state_sha256"]:
        return f"the state at step {stop} is {result.states.get(stop, '')[:16]}, reported {repro['state_sha256'][:16]}"
    return ""
