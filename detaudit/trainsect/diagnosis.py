"""`diagnose`: from a recorded run to a verdict. The flow reads top to bottom.

1. `detect`         collapse by evaluation losses alone; without one nothing is replayed
2. `identity`       recorded replay to B, equal to the recording at every checkpoint, or the diagnosis halts
3. `conditions`     evaluation data, buffers: causes that are no training data
4. `bracket`        the checkpoint interval, by the rescue predicate (or the seed's)
5. `isolate`        order, shards with controls, then batch and sample, or the dose curve
6. `conclude`       the verdict, conditional on the interval's first checkpoint

A run without recorder data goes to `forensic.diagnose_forensic` after stage 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from detaudit.core.errors import InconclusiveError, UsageError
from detaudit.trainsect import conditions
from detaudit.trainsect.collapse import Collapse, CollapseKind, detect
from detaudit.trainsect.counterfactual import AGREEING, Arms, Clock, Interval
from detaudit.trainsect.counts import Control
from detaudit.trainsect.dose import DoseCurve, dose_curve
from detaudit.trainsect.filling import Filling, shards_in
from detaudit.trainsect.inside import Inside, look_inside, shard_hint
from detaudit.trainsect.judge import Threshold, threshold_of
from detaudit.trainsect.model import Replayer, ReplayResult, Run
from detaudit.trainsect.shards import (
    CONCENTRATION,
    INDEPENDENT,
    ORDER,
    UNPROVEN,
    Isolated,
    isolate,
    order_control,
    real_control,
)
from detaudit.trainsect.timeline import NON_MONOTONE, Bracket, bracket, most_probes

CONFIRMED = "CONFIRMED (causal)"
EVAL_DATA, BUFFER = "EVAL-DATA", "BUFFER"
RESCUE, SEED = "rescue", "seed"
REPORTED = ("dose", "swap", "order", "recurrence")
"""Purposes of replays that are reported and decide no shard."""


@dataclass(frozen=True)
class Options:
    """`predicate` is `rescue` or `seed`; `budget` bounds the replays of each search; `relative` is the smallest rise
    of the evaluation loss that counts as a collapse."""

    predicate: str = RESCUE
    budget: int = 45
    relative: float = 0.15

    def __post_init__(self) -> None:
        if self.predicate not in (RESCUE, SEED):
            raise UsageError(f"predicate {self.predicate!r} is unknown; use {RESCUE} or {SEED}")
        if self.budget < 1 or not 0 < self.relative < 10:
            raise UsageError(f"budget {self.budget} or relative {self.relative} is out of range")


@dataclass
class Diagnosis:
    """All that was found, filled in by the stages. `status` is the verdict's first word, `kind` the row of the decision
    table, `reason` why there is no more."""

    run: Run
    options: Options
    collapse: Collapse
    status: str = UNPROVEN
    kind: str = UNPROVEN
    reason: str = ""
    shards: tuple[str, ...] = ()
    threshold: Threshold | None = None
    arms: Arms | None = None
    identity: ReplayResult | None = None
    bracket: Bracket | None = None
    interval: Interval | None = None
    fillings: list[Filling] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    isolated: Isolated | None = None
    inside: list[Inside] = field(default_factory=list)
    dose: DoseCurve | None = None
    state: str = ""
    forensic: Mapping[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    def end(self, status: str, kind: str = "", reason: str = "") -> Diagnosis:
        self.status, self.kind, self.reason = status, kind or status, reason
        return self


def diagnose(run: Run, replayer: Replayer, options: Options, say: Callable[[str], None]) -> Diagnosis:
    """The diagnosis of a run. Raises InconclusiveError when a replay does not equal the recording; every other want of
    evidence is a verdict (UNPROVEN, INSUFFICIENT, UNCERTAIN)."""
    found = Diagnosis(run, options, detect(run.evaluations, relative=options.relative))
    found.warnings += run.warnings
    if found.collapse.kind is not CollapseKind.COLLAPSE:
        return found.end(str(found.collapse.kind), reason=found.collapse.reason)
    if not run.checkpoints:
        return found.end(UNPROVEN, reason="the run holds no checkpoint to replay from")
    try:
        found.threshold = threshold_of(found.collapse, run.evaluations)
    except InconclusiveError as error:
        return found.end(str(CollapseKind.UNCERTAIN), reason=str(error))
    found.arms = Arms(run, replayer, found.threshold, Clock(say))
    if not run.instrumented:
        from detaudit.trainsect.forensic import diagnose_forensic

        return diagnose_forensic(found)
    _estimate(found)
    _identity(found, min(run.checkpoints))
    healthy = [step for step in sorted(run.checkpoints) if is_healthy(found, step)]
    if not healthy:
        return found.end(UNPROVEN, reason="no checkpoint is healthy: the trigger lies before the first one")
    if _evaluation_data(found, healthy):
        return found
    _buffers(found, healthy[-1])
    return _shards(found) if _timeline(found) else found


def _estimate(found: Diagnosis) -> None:
    run, arms = found.run, found.arms
    assert arms is not None
    before = [step for step in run.checkpoints if step < arms.horizon]
    probes = most_probes(len(before))
    steps = arms.horizon - min(before, default=arms.horizon)
    arms.clock.plan(probes * AGREEING + 60, steps, f"diagnosis over {len(before)} checkpoints")


def is_healthy(found: Diagnosis, step: int) -> bool:
    """Recorded drawdown below the onset threshold; a checkpoint without an evaluation is evaluated by a replay of no
    steps and compared with the best recorded before it."""
    known = found.collapse.healthy_at(step)
    if known is not None or found.arms is None:
        return bool(known)
    result = found.arms.replayer.replay(step, step, substitutions={}, evaluate_at=(step,))
    recorded = [e for e in found.run.evaluations if e.step < step]
    again = detect_excess([e.loss for e in recorded] + [result.evaluations[step]], found.collapse)
    return again < found.collapse.tau / 2


def detect_excess(losses: list[float], collapse: Collapse) -> float:
    from detaudit.trainsect.collapse import excess_of, signal_of

    signal, _ = signal_of(losses)
    return excess_of(signal)[-1]


def _identity(found: Diagnosis, start: int) -> None:
    """The recorded run replayed from `start` to B: every checkpoint's state and every recorded evaluation again."""
    arms, run = found.arms, found.run
    assert arms is not None
    stop = arms.horizon
    steps = tuple(e.step for e in run.evaluations if start <= e.step <= stop)
    result = arms.replayer.replay(start, stop, substitutions={}, evaluate_at=steps)
    compared = 0
    for step, state in sorted(result.states.items()):
        if step not in run.checkpoints or step == start:
            continue
        compared += 1
        if state != run.checkpoints[step].state_sha256:
            raise InconclusiveError(
                f"the replay from step {start} does not reproduce the recording: the state before step {step} has "
                f"SHA-256 {state[:16]}, the checkpoint {run.checkpoints[step].state_sha256[:16]}; "
                "a diagnosis by replay would be a guess"
            )
    if not compared:
        raise InconclusiveError(f"no checkpoint after step {start} to compare the replay with; record more of them")
    for entry in run.evaluations:
        again = result.evaluations.get(entry.step)
        if again is not None and again != entry.loss and not (again != again and entry.loss != entry.loss):
            raise InconclusiveError(
                f"the replay evaluates step {entry.step} to {again!r}, the recording holds {entry.loss!r}; "
                "the target's evaluate() is not that of the run"
            )
    found.identity = result


def _evaluation_data(found: Diagnosis, healthy: list[int]) -> bool:
    assert found.arms is not None
    seen, at = conditions.evaluation_data(found.arms, healthy)
    found.controls.append(seen)
    if not seen.k:
        return False
    found.end(EVAL_DATA, reason=f"the healthy state of checkpoint {at} collapses by evaluation alone; {seen.text}")
    return True


def _buffers(found: Diagnosis, healthy: int) -> None:
    assert found.arms is not None
    found.controls.append(conditions.buffers(found.arms, healthy))


def buffers_recover(found: Diagnosis) -> bool:
    return any(c.name.startswith("healthy buffers") and c.n and not c.k for c in found.controls)


def _timeline(found: Diagnosis) -> bool:
    """Sets the bracket, the interval and the fillings. False when the verdict stands already."""
    arms, run = found.arms, found.run
    assert arms is not None
    valid: dict[int, list[Filling]] = {}

    def rescue(step: int) -> bool:
        if not is_healthy(found, step):
            return False
        valid[step] = arms.validate(step, enough=1)
        return bool(valid[step])

    holds = rescue if found.options.predicate == RESCUE else lambda step: is_healthy(found, step)
    found.bracket = place = bracket(sorted(run.checkpoints), arms.horizon, holds)
    if place.start is None:
        reason = "no checkpoint is rescued by a benign continuation: no shard is benign, or the trigger lies earlier"
        found.end(UNPROVEN, reason=reason)
        return False
    found.fillings = arms.validate(place.start)
    if len(found.fillings) < AGREEING:
        reason = (
            f"{len(found.fillings)} benign fillings stay healthy from checkpoint {place.start}, {AGREEING} must agree"
        )
        found.end(UNPROVEN, reason=f"{reason}: there is no benign shard to substitute, or the damage is done before it")
        return False
    recorded = arms.recorded(place.start, place.stop)
    found.interval = Interval(arms, place.start, place.stop, shards_in(run, recorded))
    return True


def _shards(found: Diagnosis) -> Diagnosis:
    interval, arms = found.interval, found.arms
    assert interval is not None and arms is not None and found.bracket is not None
    real = real_control(interval, found.fillings)
    found.controls.append(real)
    if not real.passed:
        return found.end(UNPROVEN, reason="the interval's own data, with benign data after it, do not collapse")
    order = order_control(interval, found.fillings[0])
    found.controls.append(order)
    if order.k == 0:
        return found.end(ORDER, reason="the same samples in other orders do not collapse; no shard is at fault")
    hint = shard_hint(arms.replayer, interval)
    found.isolated = done = isolate(interval, found.fillings, hint, budget=found.options.budget)
    found.controls += done.controls
    if done.kind == UNPROVEN:
        return found.end(UNPROVEN, reason=done.reason)
    suspects = sorted(set().union(*done.sets))
    healthy = [step for step in sorted(found.run.checkpoints) if step < interval.start and is_healthy(found, step)]
    found.state, swapped = conditions.swap(interval, suspects, found.fillings[0], healthy)
    found.controls += [swapped, conditions.recurrence(interval, suspects, found.fillings[0])]
    if done.kind == CONCENTRATION:
        found.dose = dose_curve(interval, suspects, found.fillings[0])
        return _conclude(found, CONCENTRATION, done.reason)
    causes = done.sets if done.kind == INDEPENDENT else (frozenset(suspects),)
    found.inside = [look_inside(interval, cause, found.fillings, arms.replayer) for cause in causes]
    return _conclude(found, done.kind, done.reason)


def dose_is_certain(found: Diagnosis) -> bool:
    """The smallest dose never collapses, the full one does, and none of those replays is uncertain."""
    assert found.arms is not None and found.dose is not None
    curve = [arm for arm in found.arms.kept if arm.purpose == "dose"]
    ends = [arm for arm in curve if not arm.outcome.uncertain]
    return bool(
        found.dose.largest_none
        and found.dose.smallest_all
        and found.dose.largest_none < found.dose.smallest_all
        and curve[0] in ends
        and curve[-1] in ends
        and curve[-1].outcome.collapsed
    )


def _conclude(found: Diagnosis, kind: str, reason: str) -> Diagnosis:
    """CONFIRMED only without an uncertain replay and with a monotone bracket; BUFFER where the buffers recover B."""
    assert found.arms is not None and found.bracket is not None and found.isolated is not None
    unsure = [
        arm
        for arm in found.arms.kept
        if arm.outcome.uncertain and arm.purpose not in ("dose", "swap", "order", "recurrence")
    ]
    if unsure and kind == CONCENTRATION and dose_is_certain(found):
        # Near the dividing dose replays lie near the threshold by nature; the claim rests on the curve's two ends.
        found.warnings.append(
            f"{len(unsure)} replays lie within 10 % of the threshold, as they do near a dividing dose"
        )
    elif unsure:
        return found.end("UNCERTAIN", kind, f"{len(unsure)} replays lie within 10 % of the threshold: {unsure[0].what}")
    if found.bracket.confidence == NON_MONOTONE:
        return found.end(UNPROVEN, kind, "NON-MONOTONE: a later checkpoint is rescued where an earlier one is not")
    found.shards = found.isolated.named
    if kind == CONCENTRATION:
        return found.end(CONCENTRATION, kind, reason)
    if buffers_recover(found):
        return found.end(BUFFER, kind, "healthy buffers in the weights at B recover the evaluation")
    return found.end(CONFIRMED, kind, reason)
