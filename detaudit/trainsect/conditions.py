"""Causes that are no training data, and on what state a cause depends.

`evaluation_data`: one state evaluated at two times gives a healthy and a collapsed loss. `buffers`: healthy buffers put
into the weights at B recover the evaluation. `swap`: the suspects from an earlier healthy checkpoint (arXiv 2204.02311,
section 5.1: the same batches did no harm there, so the cause is state and data together).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from detaudit.core.errors import UsageError
from detaudit.trainsect.counterfactual import Arms, Interval
from detaudit.trainsect.counts import Control, control
from detaudit.trainsect.filling import Filling, substitute
from detaudit.trainsect.model import MicroBatches, Patch

EVERYTHING = ("*.param.*", "*.buffer.*")
BUFFERS = ("model.buffer.*",)
STATE_FREE, STATE_CONDITIONAL, NOT_RUN = "STATE-INDEPENDENT", "STATE-CONDITIONAL", "not run"


def last_checkpoint(arms: Arms) -> int:
    return max(step for step in arms.run.checkpoints if step <= arms.horizon)


def evaluation_data(arms: Arms, healthy: Sequence[int]) -> tuple[Control, int | None]:
    """A healthy checkpoint's weights and buffers, evaluated at B: when that collapses, what was evaluated on changed.

    The checkpoint is the healthy one of least recorded loss, and that loss must itself lie below the threshold: an
    untrained state is bad at any time, and would prove nothing."""
    name = "healthy state evaluated at B"
    recorded = {entry.step: entry.loss for entry in reversed(arms.run.evaluations)}
    usable = [s for s in healthy if s in recorded and not arms.threshold.judge(recorded[s]).collapsed]
    if not usable:
        return control(name, [], "any", "no healthy checkpoint has a recorded loss below the threshold"), None
    best = min(usable, key=lambda step: (recorded[step], step))
    patch = Patch(at=arms.horizon, source=best, leaves=EVERYTHING)
    what = f"the state of checkpoint {best} evaluated at step {arms.horizon}"
    arm = arms.play("evaluation data", what, last_checkpoint(arms), {}, patch=patch)
    return control(name, [arm.outcome.collapsed], "any", digests(arms, best)), best


def digests(arms: Arms, healthy: int) -> str:
    """What the recorded digests of the evaluation data say."""
    recorded = {entry.step: entry.data for entry in arms.run.evaluations if entry.data}
    before, after = recorded.get(healthy), recorded.get(arms.horizon)
    if not before or not after:
        return "no digests of the evaluation data were recorded"
    if before == after:
        return f"the digest of the evaluation data is {before[:12]} at both steps"
    return f"the digest of the evaluation data is {before[:12]} at step {healthy}, {after[:12]} at {arms.horizon}"


def buffers(arms: Arms, healthy: int) -> Control:
    """Healthy buffers in the weights at B: recovery means the buffers are what collapsed."""
    name = "healthy buffers in the weights at B"
    patch = Patch(at=arms.horizon, source=healthy, leaves=BUFFERS)
    try:
        arm = arms.play("buffers", name, last_checkpoint(arms), {}, patch=patch)
    except UsageError as error:
        return control(name, [], "any", f"not run: {error}")
    return control(name, [arm.outcome.collapsed], "any", "no collapse: the buffers are the cause")


def swap(interval: Interval, real: Iterable[str], filling: Filling, earlier: Sequence[int]) -> tuple[str, Control]:
    """The suspects' samples from an earlier healthy checkpoint, at the same distance from it, all else benign."""
    arms = interval.arms
    name = "swap (suspects from an earlier checkpoint)"
    before = [step for step in earlier if step < interval.start]
    if not before:
        return NOT_RUN, control(name, [], "any", "there is no earlier healthy checkpoint")
    start = max(before)
    shift = interval.start - start
    recorded = arms.recorded(start, arms.horizon)
    subs: dict[int, MicroBatches] = {s: filling.step(s, recorded[s]) for s in range(start, arms.horizon)}
    kept = {p for unit in real for p in interval.units[unit]} - interval.always
    for step, micro, place in sorted(kept):
        target = subs[step - shift]
        if micro >= len(target) or place >= len(target[micro]):
            return NOT_RUN, control(name, [], "any", f"step {step - shift} has other batch sizes than step {step}")
        rows = [list(row) for row in target]
        rows[micro][place] = recorded[step][micro][place]
        subs[step - shift] = tuple(tuple(row) for row in rows)
    arm = arms.play("swap", f"suspects from checkpoint {start}", start, subs, filling.name)
    verdict = STATE_FREE if arm.outcome.collapsed else STATE_CONDITIONAL
    return verdict, control(name, [arm.outcome.collapsed], "any", verdict)


def recurrence(interval: Interval, cause: Iterable[str], filling: Filling) -> Control:
    """The cause filled inside the interval, the recorded data after it: a collapse means that it comes again later."""
    arms = interval.arms
    recorded = arms.recorded(interval.start, arms.horizon)
    subs = substitute(recorded, filling, [p for unit in cause for p in interval.units[unit]], ())
    what = f"cause filled before step {interval.stop}, recorded data after it"
    arm = arms.play("recurrence", what, interval.start, subs, filling.name)
    text = "the harm comes again later in the run" if arm.outcome.collapsed else "no second harm later in the run"
    return control("recurrence (recorded data after the interval)", [arm.outcome.collapsed], "any", text)
