"""The arms of a diagnosis: replays from checkpoint c to the horizon B with batches exchanged, judged at B.

In every arm the steps from the interval's end to B are the same benign filling; with the recorded data there, a poison
that returns in the next epoch would make every arm collapse. `Arms` counts and keeps each replay for the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from detaudit.core.errors import InconclusiveError
from detaudit.trainsect.filling import Filling, Position, batches_of, candidates, shard_ids, substitute
from detaudit.trainsect.judge import Outcome, Threshold
from detaudit.trainsect.model import MicroBatches, Patch, Replayer, ReplayResult, Run

AGREEING = 2
"""Validated fillings that a verdict needs."""


@dataclass(frozen=True)
class Arm:
    """One judged replay. `purpose` groups it in the report (control, timeline, shard, batch, sample ...)."""

    purpose: str
    what: str
    start: int
    filling: str
    outcome: Outcome
    state: str
    substitutions: Mapping[int, MicroBatches]
    key: str = ""
    seed: int | None = None

    def value(self) -> dict[str, Any]:
        """Plain types, without the substitutions: those of a report's own arms are kept beside it."""
        return {
            "purpose": self.purpose,
            "what": self.what,
            "start": self.start,
            "filling": self.filling,
            "loss": self.outcome.loss,
            "collapsed": self.outcome.collapsed,
            "margin": self.outcome.margin,
            "uncertain": self.outcome.uncertain,
            "state_sha256": self.state,
        }


@dataclass
class Clock:
    """Seconds per executed step, for the estimate before and the time left during a diagnosis."""

    say: Callable[[str], None]
    planned: int = 0
    done: int = 0
    steps: int = 0
    seconds: float = 0.0

    def plan(self, replays: int, steps: int, what: str) -> None:
        self.planned = self.done + replays
        text = f"{what}: at most {replays} replays of up to {steps} steps"
        if self.steps:
            text += f", about {replays * steps * self.seconds / self.steps:.0f} s"
        self.say(text)

    def note(self, result: ReplayResult, seconds: float, what: str) -> None:
        self.done += 1
        self.steps += result.executed
        self.seconds += seconds if result.executed else 0.0
        left = max(0, self.planned - self.done)
        each = self.seconds / self.done
        cached = "" if result.executed else " (known)"
        self.say(f"[{self.done}/{max(self.planned, self.done)}] {what}{cached}; about {left * each:.0f} s left")


@dataclass
class Arms:
    """Replays of one run to one horizon, judged by one threshold."""

    run: Run
    replayer: Replayer
    threshold: Threshold
    clock: Clock
    kept: list[Arm] = field(default_factory=list)
    _recorded: dict[int, MicroBatches] = field(default_factory=dict)

    @property
    def horizon(self) -> int:
        return self.threshold.horizon

    def recorded(self, start: int, stop: int) -> dict[int, MicroBatches]:
        missing = [step for step in range(start, stop) if step not in self._recorded]
        if missing:
            self._recorded |= batches_of(self.run, missing[0], missing[-1] + 1)
        return {step: self._recorded[step] for step in range(start, stop)}

    def play(
        self,
        purpose: str,
        what: str,
        start: int,
        substitutions: Mapping[int, MicroBatches],
        filling: str = "",
        patch: Patch | None = None,
        seed: int | None = None,
    ) -> Arm:
        """One replay from checkpoint `start` to B, judged there."""
        began = monotonic()
        stop = self.horizon
        result = self.replayer.replay(
            start, stop, substitutions=substitutions, evaluate_at=(stop,), patch=patch, seed=seed
        )
        if stop not in result.evaluations:
            raise InconclusiveError(f"the replay from step {start} gave no evaluation at step {stop}")
        outcome = self.threshold.judge(result.evaluations[stop])
        arm = Arm(purpose, what, start, filling, outcome, result.states.get(stop, ""), substitutions, result.key, seed)
        self.kept.append(arm)
        self.clock.note(result, monotonic() - began, f"{purpose}: {what}")
        return arm

    def all_filler(self, start: int, filling: Filling, purpose: str = "control") -> Arm:
        recorded = self.recorded(start, self.horizon)
        subs = substitute(recorded, filling, None, range(start, self.horizon))
        return self.play(purpose, f"nothing real from step {start}", start, subs, filling.name)

    def validate(self, start: int, enough: int = AGREEING) -> list[Filling]:
        """The first fillings whose own all-filler replay from `start` stays healthy, at most `enough`."""
        found: list[Filling] = []
        for filling in candidates(self.run, start, shard_ids(self.run)):
            arm = self.all_filler(start, filling)
            if not arm.outcome.collapsed and not arm.outcome.uncertain:
                found.append(filling)
            if len(found) == enough:
                break
        return found


@dataclass(frozen=True)
class Interval:
    """Steps [start, stop) under suspicion, and everything that is needed to exchange positions in it."""

    arms: Arms
    start: int
    stop: int
    units: Mapping[str, tuple[Position, ...]]
    """What is searched: unit name -> positions."""
    always: frozenset[Position] = frozenset()
    """Positions that are filled in every arm (the rest of the run's data, at batch and sample level)."""
    purpose: str = "shard"

    def arm(self, real: Iterable[str], filling: Filling, purpose: str = "", what: str = "") -> Arm:
        """The replay in which, inside the interval, only the units `real` keep their recorded data."""
        kept = sorted(real)
        arms = self.arms
        recorded = arms.recorded(self.start, arms.horizon)
        positions = set(self.always)
        for name, places in self.units.items():
            if name not in set(kept):
                positions.update(places)
        subs = substitute(recorded, filling, positions, range(self.stop, arms.horizon))
        return arms.play(purpose or self.purpose, what or _real(kept, self.units), self.start, subs, filling.name)

    def collapses(self, real: Iterable[str], filling: Filling, purpose: str = "", what: str = "") -> bool:
        return self.arm(real, filling, purpose, what).outcome.collapsed


def _real(kept: Sequence[str], units: Mapping[str, object]) -> str:
    if len(kept) == len(units):
        return "everything real"
    if not kept:
        return "nothing real"
    if 2 * len(kept) > len(units) and len(units) > 2:
        return "without " + _listed([name for name in units if name not in set(kept)])
    return "only " + _listed(kept)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
