"""The double run: is this command bit-exact when it runs again?

`check` reads top to bottom:

1. `_run_all`: spawn A, then B (then C ...), one after the other, in fresh processes with the recorder injected;
2. `_judge_all`: compare each later run with A; the earliest divergence decides;
3. `_dump_divergence`: where it was asked for, the pair again with dumps around the step at which it differed;
4. `_with_files`: for a diverged pair, the files that run A left in the working directory;
5. `_drill`: a diverged pair is run again, its first diverging step operator by operator, and explained;
6. `_explain`: the pair is repeated with one thing changed at a time, which supports a cause or refutes it;
7. `next_command`: what to type next;
8. `write_results`: the reports, and for a clean verdict the certificate.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from detaudit import certificate
from detaudit.compare.evidence import RunEvidence
from detaudit.compare.runs import judge
from detaudit.core import env
from detaudit.core.errors import UsageError
from detaudit.core.model import Outcome, Verdict
from detaudit.core.names import Selection
from detaudit.explain.drill import Plan, drill
from detaudit.explain.toggles import explained
from detaudit.launch import child, dumps, experiment, files, outdir
from detaudit.report.json import verdict_json
from detaudit.report.junit import verdict_junit
from detaudit.report.markdown import verdict_markdown

REPORTS: dict[str, Callable[[Verdict], str]] = {
    "verdict.json": verdict_json,
    "junit.xml": verdict_junit,
    "summary.md": verdict_markdown,
}
"""What an audit leaves in its directory for programs and for continuous integration, by file name."""

DRILL = "drill"
"""Where the runs of the drill-down lie, below the directory of the audit."""

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
    drill: bool = True
    """Whether a diverged pair is run again with its operators traced."""
    pairs: int = 3
    """At most how many traced pairs the drill-down takes, and how often a toggle is tried."""
    toggles: bool = True
    """Whether a diverged pair is also repeated with one thing changed at a time."""
    all_toggles: bool = False
    """Whether every toggle is tried, not only those that the first divergence suggests."""

    def settings(self, label: str) -> env.Settings:
        directory = str((self.directory / label).resolve())
        settings = env.Settings(directory, self.every, self.steps, self.stats, self.leaves)
        return env.with_dump(settings, os.environ, label)

    def first_settings(self, label: str) -> env.Settings:
        """The settings of a run that does not know yet where it will differ."""
        return dumps.first_pair(self.settings(label))


def check(request: Request, progress: Progress = lambda line: None) -> Verdict:
    """Audit a command. Raises DetauditError and its kind for a request that cannot be carried out."""
    if request.runs < 2:
        raise UsageError(f"--runs {request.runs}: an audit takes at least 2 runs")
    env.read({name: value for name, value in os.environ.items() if name.startswith(env.PREFIX)})
    if request.pairs < 1:
        raise UsageError(f"--pairs {request.pairs}: the drill-down takes at least 1 pair")
    if request.all_toggles and not request.drill:
        raise UsageError("--explain repeats a diverged pair, which --no-drill forbids; give one of them")
    outdir.prepare(request.directory)
    runs, created = _run_all(request, progress)
    verdict = _judge_all(runs, Selection.parse(request.leaves))
    _dump_divergence(request, verdict, progress)
    verdict = _with_files(verdict, created)
    verdict = _drill(verdict, request, progress)
    verdict = replace(verdict, command=request.command, directory=str(request.directory))
    verdict = _explain(verdict, runs, request, progress)
    verdict = replace(verdict, next_command=next_command(verdict, request.directory))
    return write_results(verdict, runs, request.directory)


def _run_all(request: Request, progress: Progress) -> tuple[list[RunEvidence], list[str]]:
    """The evidence of each run, and the files that run A created or changed in the working directory."""
    here = Path.cwd()
    runs: list[RunEvidence] = []
    before = files.snapshot(here, request.directory)
    created: list[str] = []
    for index in range(request.runs):
        label = run_label(index)
        progress(f"run {label}: {shlex.join(request.command)}")
        evidence = child.run(request.command, label, request.first_settings(label), os.environ)
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
        reason += f" (run {chosen.pair[1]}; {len(diverged)} of {len(verdicts)} runs differ from run A)"
    reports = tuple(evidence.report for evidence in runs)
    return replace(chosen, reason=reason, runs=reports, warnings=tuple(dict.fromkeys(warnings)))


def _dump_divergence(request: Request, verdict: Verdict, progress: Progress) -> None:
    first = verdict.first_divergence
    if first is not None and dumps.wants_repeat(request.settings("A"), first):
        dumps.repeat(request.command, request.settings, first, progress)


def _place(verdict: Verdict) -> tuple[int, int]:
    first = verdict.first_divergence
    return (first.step, first.order) if first else (0, 0)


def _with_files(verdict: Verdict, created: Sequence[str]) -> Verdict:
    if verdict.outcome is not Outcome.DIVERGED or not created:
        return verdict
    hint = "run A created or changed files in the working directory; run B may have read them"
    return replace(verdict, created_files=tuple(created), warnings=(*verdict.warnings, hint))


def _drill(verdict: Verdict, request: Request, progress: Progress) -> Verdict:
    """The verdict with its explanation, where it diverged and the user did not decline."""
    if verdict.first_divergence is None or not request.drill:
        return verdict

    def spawn(label: str, settings: env.Settings) -> RunEvidence:
        directory = (request.directory / DRILL / label).resolve()
        return child.run(request.command, label, replace(settings, directory=str(directory)), os.environ)

    plan = Plan(
        first=verdict.first_divergence,
        last_step=min((run.last_step for run in verdict.runs if run.last_step is not None), default=None),
        settings=request.settings(DRILL),
        pairs=request.pairs,
    )
    return replace(verdict, explanation=drill(plan, spawn, progress))


def _explain(verdict: Verdict, runs: Sequence[RunEvidence], request: Request, progress: Progress) -> Verdict:
    """The verdict with its toggles and its cause, where it diverged and the user did not decline."""
    if verdict.first_divergence is None or not request.drill or not request.toggles:
        return verdict
    bench = experiment.bench(
        verdict, request.directory, replace(request.settings(experiment.FOLDER), dump=False), progress
    )
    return explained(verdict, runs, bench.pair, request.pairs, request.all_toggles)


def next_command(verdict: Verdict, directory: Path) -> str:
    """What an engineer would type next, ready for a shell; empty when there is nothing better than the reason."""
    if verdict.outcome is Outcome.CLEAN:
        return shlex.join(["detaudit", "verify", str(directory)])
    if verdict.first_divergence and experiment.worth_more(verdict):
        return shlex.join(["detaudit", "explain", str(directory)])
    if verdict.first_divergence:
        return shlex.join(["detaudit", "show", str(directory), "--step", str(verdict.first_divergence.step)])
    failed = [run.label for run in verdict.runs if run.exit_status]
    return shlex.join(["cat", str(directory / failed[0] / "stderr.txt")]) if failed else ""


def write_results(verdict: Verdict, runs: Sequence[RunEvidence], directory: Path) -> Verdict:
    """Write the reports, and certificate.json for a clean verdict; returns the verdict naming the certificate."""
    if verdict.outcome is Outcome.CLEAN:
        path = certificate.write(verdict, runs, directory)
        verdict = replace(verdict, certificate=str(path))
    for name, report in REPORTS.items():
        (directory / name).write_text(report(verdict), encoding="utf-8")
    return verdict
