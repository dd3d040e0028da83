"""Benign substitutes: sample ids to put in the place of suspects, the same ones in every arm of a diagnosis.

A filling draws ids from a source (what was trained on before a healthy checkpoint, or one shard), by (seed, step), so
the substitute of a position never depends on what else is substituted. It counts only after its own all-filler replay
stayed healthy (`counterfactual.Arms.validate`); a source is a proposal, never a proof of cleanliness.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from detaudit.core.errors import InconclusiveError
from detaudit.trainsect.model import MicroBatches, Run

FEWEST_IDS = 2
MOST_SHARDS = 8
Position = tuple[int, int, int]
"""(step, micro-batch, place in it) of one sample."""


@dataclass(frozen=True)
class Filling:
    """Substitutes drawn from `ids` under `seed`. `name` says where from; it stands in the report."""

    name: str
    ids: tuple[int, ...]
    seed: int

    def step(self, step: int, like: MicroBatches) -> MicroBatches:
        """Substitutes of all positions of one step, in its micro-batch sizes; no id twice in a micro-batch while the
        source has enough."""
        rng = random.Random(f"{self.seed}:{step}")
        return tuple(self._draw(rng, len(micro)) for micro in like)

    def _draw(self, rng: random.Random, size: int) -> tuple[int, ...]:
        if size <= len(self.ids):
            return tuple(rng.sample(self.ids, size))
        return tuple(rng.choice(self.ids) for _ in range(size))


def batches_of(run: Run, start: int, stop: int) -> dict[int, MicroBatches]:
    """The recorded ids of [start, stop). Raises InconclusiveError for a step without ids: its batches are on tape
    only, or were not recorded, so nothing can be put in their place."""
    found: dict[int, MicroBatches] = {}
    for step in range(start, stop):
        entry = run.steps.get(step)
        if entry is None or entry.ids is None:
            why = "is not in the recording" if entry is None else "was recorded without sample ids"
            raise InconclusiveError(f"step {step} {why}; batches can only be substituted where their ids are known")
        found[step] = entry.ids
    return found


def substitute(
    recorded: Mapping[int, MicroBatches], filling: Filling, positions: Iterable[Position] | None, rest: Iterable[int]
) -> dict[int, MicroBatches]:
    """Substitutions for a replay: the given positions, and the whole of the steps in `rest`, take the filling."""
    by_step: dict[int, set[tuple[int, int]]] = {}
    for step, micro, place in positions or ():
        by_step.setdefault(step, set()).add((micro, place))
    changed: dict[int, MicroBatches] = {}
    for step, places in by_step.items():
        filler = filling.step(step, recorded[step])
        changed[step] = tuple(
            tuple(filler[m][p] if (m, p) in places else sample for p, sample in enumerate(micro))
            for m, micro in enumerate(recorded[step])
        )
    for step in rest:
        changed[step] = filling.step(step, recorded[step])
    return {step: changed[step] for step in sorted(changed)}


def shards_in(run: Run, recorded: Mapping[int, MicroBatches]) -> dict[str, tuple[Position, ...]]:
    """Shard name -> its positions in the recorded steps, both in order."""
    found: dict[str, list[Position]] = {}
    for step in sorted(recorded):
        for m, micro in enumerate(recorded[step]):
            for p, sample in enumerate(micro):
                found.setdefault(run.shard_of(sample), []).append((step, m, p))
    return {name: tuple(found[name]) for name in sorted(found)}


def candidates(run: Run, checkpoint: int, shards: Mapping[str, Sequence[int]]) -> list[Filling]:
    """Fillings to try, best first: what was trained on before `checkpoint`, some shards alone, the whole pool mixed.

    A shard alone can do harm by its very uniformity (a collapse by order), the pool by what is bad in it."""
    history = sorted({i for s, e in run.steps.items() if s < checkpoint and e.ids for micro in e.ids for i in micro})
    pool = tuple(sorted({i for ids in shards.values() for i in ids}))
    found = []
    if len(history) >= FEWEST_IDS:
        found += [Filling(f"trained on before step {checkpoint}, draw {k}", tuple(history), k) for k in (1, 2, 3)]
    alone = [Filling(f"{name} alone", tuple(ids), 1) for name, ids in shards.items() if len(ids) >= FEWEST_IDS]
    found += alone[:MOST_SHARDS]
    return found + [Filling(f"the whole pool, draw {k}", pool, k) for k in (1, 2) if len(pool) >= FEWEST_IDS]


def shard_ids(run: Run) -> dict[str, list[int]]:
    """Shard name -> ids: of the pool where it is known, of the recorded steps otherwise."""
    pool: Iterable[int] = run.pool if run.pool is not None else ()
    if run.pool is None:
        pool = sorted({i for e in run.steps.values() if e.ids for micro in e.ids for i in micro})
    found: dict[str, list[int]] = {}
    for sample in pool:
        found.setdefault(run.shard_of(sample), []).append(sample)
    return {name: found[name] for name in sorted(found)}
