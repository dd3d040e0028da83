"""One run of the user's command with the recorder injected: fresh process, the user's own environment, output kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from detaudit.compare.evidence import TRAIL_SUFFIX, RunEvidence, keep_report, with_trail_facts
from detaudit.core import env
from detaudit.core.axes import AXES
from detaudit.core.errors import UnreadableError, UsageError
from detaudit.core.model import RunReport
from detaudit.trail.reader import TrailReader

AUTOLOAD = Path(__file__).resolve().parents[1] / "capture" / "autoload" / "injected"
LOADED = "loaded"
"""Marker file that the injected code leaves: without it the recorder never ran in any process of the command."""

NOT_LOADED = (
    "the recorder was not loaded in the command's Python. Its Python must be able to import detaudit "
    "(run `{python} -m pip install detaudit`, or call the command with the Python that has it: {own}), "
    "and it must not be started with -I, -E or -S"
)
NEVER_TRAINED = (
    "the command ran with the recorder loaded, but no optimizer step and no backward call was seen; "
    "if it trains by other means, name its leaves with `detaudit.record` and call `audit.step()`"
)


def child_environment(settings: env.Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, the variables of the toggle, those of the recorder, and its directory at the front of
    PYTHONPATH."""
    toggled = AXES[settings.toggle].variables if settings.toggle else {}
    path = os.pathsep.join([str(AUTOLOAD), *filter(None, [environ.get("PYTHONPATH", "")])])
    return {**environ, **toggled, **env.write(settings), "PYTHONPATH": path}


def run(command: Sequence[str], label: str, settings: env.Settings, environ: Mapping[str, str]) -> RunEvidence:
    """Run the command once and return its evidence. `settings.directory` holds no earlier run; it receives the trails,
    run.json and the command's stdout.txt and stderr.txt. Raises UsageError when the command cannot be started."""
    directory = Path(settings.directory)
    directory.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with (directory / "stdout.txt").open("wb") as out, (directory / "stderr.txt").open("wb") as err:
        try:
            done = subprocess.run(
                list(command),
                env=child_environment(settings, environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be run: {error.strerror}") from error
    wall = time.perf_counter() - started
    report = RunReport(label, done.returncode, wall, recorder_share(directory, wall))
    evidence = collect(directory, report, command)
    keep_report(directory, evidence)
    return evidence


def collect(directory: Path, report: RunReport, command: Sequence[str]) -> RunEvidence:
    """The evidence that a finished run left in its directory."""
    trails: dict[str, TrailReader] = {}
    defects = []
    for file in sorted(directory.glob("*" + TRAIL_SUFFIX)):
        try:
            trails[file.name.removesuffix(TRAIL_SUFFIX)] = TrailReader(file)
        except UnreadableError as error:
            defects.append(str(error))
    # A rank whose recorder gave up before its first step leaves no trail in either run: only this file tells.
    for file in sorted(directory.glob("recorder-error*.txt")):
        defects.append(f"a recorder failed ({tail_of(file, 1)}); see {file}")
    unable = [file.read_text(encoding="utf-8").strip() for file in sorted(directory.glob("autoload-error*.txt"))]
    return RunEvidence(
        report=with_trail_facts(report, trails),
        trails=trails,
        missing_reason="" if trails else "; ".join(unable) or _missing_reason(directory, command),
        stdout_digest=hashlib.sha256((directory / "stdout.txt").read_bytes()).hexdigest(),
        defects=tuple(defects),
        remarks=tuple(unable) if trails else (),
    )


def _missing_reason(directory: Path, command: Sequence[str]) -> str:
    if (directory / LOADED).exists():
        return NEVER_TRAINED
    called = shutil.which(command[0]) or command[0]
    python = called if Path(called).name.startswith("python") else "python"
    return NOT_LOADED.format(python=python, own=sys.executable)


def recorder_share(directory: Path, wall: float) -> float | None:
    """The largest share of a process's wall time that its recorder took, from the sidecars; None without one."""
    shares = []
    for file in directory.glob("*.overhead.json"):
        try:
            shares.append(float(json.loads(file.read_text())["seconds"]) / wall)
        except (ValueError, KeyError, OSError):
            continue
    return max(shares, default=None)


def tail_of(path: Path, lines: int = 12) -> str:
    """The last lines of a child's output, for a message about its failure."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
