"""The double run: is this command bit-exact when it runs again?

`check` reads top to bottom:

1. `_run_all`: spawn A, then B (then C ...), one after the other, in fresh processes with the recorder injected;
2. `_judge_all`: compare each later run with A; the earliest divergence decides;
3. `_with_files`: for a diverged pair, the files that run A left in the working directory;
4. `write_results`: verdict.json, and for a clean verdict the certificate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from detaudit import certificate
from detaudit.compare.runs import RunEvidence, judge
from detaudit.core import env
from detaudit.core.errors import UsageError
from detaudit.core.model import Outcome, Verdict
from detaudit.core.names import Selection
from detaudit.launch import child, files, outdir
from detaudit.report.json import verdict_json

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to audit. `steps` ends each run after that many steps (0: to its end); `leaves` are globs."""

    command: tuple[str, ...]
    directory: Path
    runs: int = 2
    steps: int = 0
    every: int = 1
    stats: bool = False
    leaves: tuple[str, ...] = ()

    def settings(self, label: str) -> env.Settings:
        return env.Settings(str((self.directory / label).resolve()), self.every, self.steps, self.stats, self.leaves)


def check(request: Request, progress: Progress = lambda line: None) -> Verdict:
    """Audit a command. Raises DetauditError and its kind for a request that cannot be carried out."""
    if request.runs < 2:
        raise UsageError(f"--runs {request.runs}: an audit takes at least 2 runs")
    env.read({name: value for name, value in os.environ.items() if name.startswith(env.PREFIX)})
    outdir.prepare(request.directory)
    runs, created = _run_all(request, progress)
    verdict = _judge_all(runs, Selection.parse(request.leaves))
    verdict = _with_files(verdict, created)
    verdict = replace(verdict, command=request.command, directory=str(request.directory))
    return write_results(verdict, runs, request.directory)


def _run_all(request: Request, progress: Progress) -> tuple[list[RunEvidence], list[str]]:
    """The evidence of each run, and the files that run A created or changed in the working directory."""
    here = Path.cwd()
    runs: list[RunEvidence] = []
    before = files.snapshot(here, request.directory)
    created: list[str] = []
    for index in range(request.runs):
        label = run_label(index)
        progress(f"run {label}: {' '.join(request.command)}")
        evidence = child.run(request.command, label, request.settings(label), os.environ)
        progress(_progress_line(evidence))
        runs.append(evidence)
        if index == 0:
            created = files.changed(before, files.snapshot(here, request.directory))
    return runs, created


def run_label(index: int) -> str:
    """A, B, C ... Z, then R26, R27 ..."""
    return chr(ord("A") + index) if index < 26 else f"R{index}"


def _progress_line(evidence: RunEvidence) -> str:
    report = evidence.report
    last = "no step" if report.last_step is None else f"last step {report.last_step}"
    return f"run {report.label}: exit status {report.exit_status}, {report.wall_seconds or 0:.1f} s, {last}"


def _judge_all(runs: Sequence[RunEvidence], selection: Selection) -> Verdict:
    """Every later run against the first: a divergence wins over inconclusive, the earliest step among divergences."""
    verdicts = [judge(runs[0], other, selection) for other in runs[1:]]
    diverged = [verdict for verdict in verdicts if verdict.first_divergence]
    worst = [verdict for verdict in verdicts if verdict.outcome is Outcome.INCONCLUSIVE]
    chosen = min(diverged, key=_place) if diverged else (worst or verdicts)[0]
    warnings = [line for verdict in verdicts for line in verdict.warnings]
    reason = chosen.reason
    if diverged and len(verdicts) > 1:
        reason += f" ({len(diverged)} of {len(verdicts)} runs differ from run A)"
    reports = tuple(evidence.report for evidence in runs)
    return replace(chosen, reason=reason, runs=reports, warnings=tuple(dict.fromkeys(warnings)))


def _place(verdict: Verdict) -> tuple[int, int]:
    first = verdict.first_divergence
    return (first.step, first.order) if first else (0, 0)


def _with_files(verdict: Verdict, created: Sequence[str]) -> Verdict:
    if verdict.outcome is not Outcome.DIVERGED or not created:
        return verdict
    hint = "run A created or changed files in the working directory; run B may have read them"
    return replace(verdict, created_files=tuple(created), warnings=(*verdict.warnings, hint))


def write_results(verdict: Verdict, runs: Sequence[RunEvidence], directory: Path) -> Verdict:
    """Write verdict.json, and certificate.json for a clean verdict; returns the verdict naming the certificate."""
    if verdict.outcome is Outcome.CLEAN:
        path = certificate.write(verdict, runs, directory)
        verdict = replace(verdict, certificate=str(path))
    (directory / "verdict.json").write_text(verdict_json(verdict), encoding="utf-8")
    return verdict
