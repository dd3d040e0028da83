"""Repeats a pair with one thing changed, in fresh processes, and says how it ended."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from detaudit.compare.evidence import RunEvidence
from detaudit.compare.runs import judge
from detaudit.core import env
from detaudit.core.axes import AXES, PLAIN
from detaudit.core.model import Outcome, Verdict
from detaudit.core.names import Selection
from detaudit.explain.causes import EXPERIMENT
from detaudit.explain.toggles import MOST_SUGGESTED, Pair
from detaudit.launch import child, stress

FOLDER = "explain"
"""Where the runs of the experiments lie, below the directory of the audit."""

SPARE_STEPS = 8
"""How far a pair runs on behind the step that diverged: a race need not show at the same step again."""


@dataclass
class Bench:
    """Where and how the pairs of one audit are repeated. `settings` are those of the audited runs."""

    command: Sequence[str]
    directory: Path
    settings: env.Settings
    progress: Callable[[str], None] = lambda line: None
    _counts: Counter[str] = field(default_factory=Counter)

    def pair(self, axis: str) -> Pair:
        """One pair with the axis changed. Raises UsageError when the command cannot be started."""
        self._counts[axis] += 1
        number = self._counts[axis]
        home = self.directory / axis / str(number)
        shutil.rmtree(home, ignore_errors=True)
        load = stress.busy() if axis == "load" else nullcontext()
        with load:
            runs = [self._run(home / label, label, axis) for label in "AB"]
        pair = _ended(judge(runs[0], runs[1], Selection.parse(self.settings.leaves)), home)
        varies = AXES[axis].varies if axis != PLAIN else "with nothing changed"
        self.progress(f"repeated {varies}, pair {number}: {pair.said}")
        return pair

    def _run(self, home: Path, label: str, axis: str) -> RunEvidence:
        toggle = "" if axis == PLAIN else axis
        settings = replace(self.settings, directory=str(home.resolve()), toggle=toggle, trace=None)
        return child.run(self.command, label, settings, os.environ)


def bench(
    verdict: Verdict, directory: Path, settings: env.Settings, progress: Callable[[str], None] = lambda line: None
) -> Bench:
    """The bench for a diverged verdict of an audit in `directory`."""
    settings = replace(settings, steps=enough_steps(verdict, settings.steps))
    return Bench(verdict.command, directory / FOLDER, settings, progress)


def worth_more(verdict: Verdict) -> bool:
    """Whether trying every toggle may still tell something: the divergence was explained, no toggle has proven its
    cause, and most have not been tried."""
    found = verdict.explanation
    if found is None or (found.cause is not None and found.cause.support == EXPERIMENT):
        return False
    return len(found.toggles) <= MOST_SUGGESTED + 1


def enough_steps(verdict: Verdict, asked: int) -> int:
    """After how many steps a repeated pair may stop; 0 runs it to its end, as a difference behind the last update or in
    the number of steps demands."""
    first = verdict.first_divergence
    last = min((run.last_step for run in verdict.runs if run.last_step is not None), default=None)
    if first is None or last is None or first.step > last or first.leaf == "step":
        return asked
    enough = first.step + 1 + SPARE_STEPS
    return min(asked, enough) if asked else enough


def _ended(verdict: Verdict, home: Path) -> Pair:
    if verdict.outcome is Outcome.DIVERGED:
        return Pair(True, verdict.reason, verdict.first_divergence)
    if verdict.outcome is Outcome.CLEAN:
        return Pair(False, "equal")
    # Under the deterministic flag this line names the operator that has no deterministic kernel.
    failed = [run.label for run in verdict.runs if run.exit_status]
    last = child.tail_of(home / failed[0] / "stderr.txt", 1) if failed else ""
    return Pair(None, verdict.reason + (f" ({last})" if last else ""))
