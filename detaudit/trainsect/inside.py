"""From shard to batch to sample, by the same search; the highest loss is only the order in which suspects are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detaudit.trainsect.counterfactual import Interval
from detaudit.trainsect.dose import by_step
from detaudit.trainsect.filling import Filling, Position
from detaudit.trainsect.model import Replayer
from detaudit.trainsect.search import Units
from detaudit.trainsect.shards import SINGLE, Isolated, isolate


@dataclass(frozen=True)
class Inside:
    """Batches (`step 57`) and samples (`sample 311 at step 57`) that suffice for the shards' part of the collapse."""

    shards: tuple[str, ...]
    batch: Isolated
    sample: Isolated | None
    step: int | None
    sample_id: int | None
    fingerprint: str = ""

    def value(self) -> dict[str, Any]:
        return {
            "shards": list(self.shards),
            "step": self.step,
            "sample": self.sample_id,
            "batch_digest": self.fingerprint,
            "batches": isolated_value(self.batch),
            "samples": isolated_value(self.sample) if self.sample else None,
        }


def isolated_value(found: Isolated) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "sets": [sorted(each) for each in found.sets],
        "complete": found.complete,
        "replays": found.asked,
        "reason": found.reason,
        "controls": [each.value() for each in found.controls],
    }


def look_inside(interval: Interval, cause: Units, fillings: Sequence[Filling], replayer: Replayer) -> Inside:
    """The batches among the cause's, then the samples in a sole batch. All else of the interval stays benign."""
    run = interval.arms.run
    everything = frozenset(p for places in interval.units.values() for p in places)
    mine = [p for unit in sorted(cause) for p in interval.units[unit]]
    batches = narrowed(interval, by_step(mine), everything, "batch")
    losses = {f"step {s}": e.loss for s, e in run.steps.items() if e.loss is not None}
    shards = tuple(sorted(cause))
    batch = isolate(batches, fillings, losses)
    if batch.kind != SINGLE:
        return Inside(shards, batch, None, None, None)
    (name,) = batch.sets[0]
    step = batches.units[name][0][0]
    recorded = interval.arms.recorded(interval.start, interval.stop)
    places = {f"sample {recorded[s][m][p]} at {s}.{m}.{p}": ((s, m, p),) for s, m, p in batches.units[name]}
    samples = narrowed(interval, places, everything, "sample")
    hint = sample_hint(replayer, interval.start, {n: recorded[s][m][p] for n, ((s, m, p),) in places.items()})
    sample = isolate(samples, fillings, hint)
    found = None
    if sample.kind == SINGLE:
        ((s, m, p),) = samples.units[next(iter(sample.sets[0]))]
        found = recorded[s][m][p]
    return Inside(shards, batch, sample, step, found, run.steps[step].batch)


def narrowed(
    interval: Interval, units: Mapping[str, tuple[Position, ...]], everything: frozenset[Position], purpose: str
) -> Interval:
    mine = frozenset(p for places in units.values() for p in places)
    rest = interval.always | (everything - mine)
    return Interval(interval.arms, interval.start, interval.stop, units, rest, purpose)


def sample_hint(replayer: Replayer, checkpoint: int, samples: Mapping[str, int]) -> dict[str, float]:
    losses = replayer.sample_losses(checkpoint, sorted(set(samples.values()))) or {}
    return {name: losses[sample] for name, sample in samples.items() if sample in losses}


def shard_hint(replayer: Replayer, interval: Interval) -> dict[str, float]:
    """The largest loss of a shard's samples under the weights of the interval's first checkpoint."""
    recorded = interval.arms.recorded(interval.start, interval.stop)
    ids = {name: {recorded[s][m][p] for s, m, p in places} for name, places in interval.units.items()}
    losses = replayer.sample_losses(interval.start, sorted(set().union(*ids.values()))) or {}
    return {name: max(losses[i] for i in mine) for name, mine in ids.items() if all(i in losses for i in mine)}
