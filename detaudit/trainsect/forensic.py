"""Diagnosis from checkpoints alone, when the recorder data are missing: probable at best, never causal.

The order of the batches is unknown, so orders are rebuilt from the pool: 3 for the bracket, 8 for the confirmation, to
the horizon B. A shard is named only if four kinds of evidence agree over the orders: necessity (none collapses without
it), sufficiency (all collapse with only it), specificity (no other shard does either) and the ranking of losses under
frozen weights. Never a batch digest, never a trigger step. What stays open is said, with what would settle it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detaudit.core.errors import InconclusiveError
from detaudit.trainsect.counterfactual import AGREEING, Arm, Arms
from detaudit.trainsect.counts import Control, control, interval
from detaudit.trainsect.diagnosis import Diagnosis, is_healthy
from detaudit.trainsect.filling import Filling, shard_ids
from detaudit.trainsect.model import MicroBatches, Run
from detaudit.trainsect.timeline import bracket

FORENSIC = "FORENSIC (probable)"
UNPROVEN = "UNPROVEN"
BRACKET_ORDERS, CONFIRMING_ORDERS = 3, 8
SETTLES = "a run recorded with start_recording() or `trainsect record` would settle it: it knows each step's batch"


@dataclass
class Rebuilt:
    """Orders drawn from the pool by seed, as epochs without replacement, in the run's batch size."""

    arms: Arms
    shards: Mapping[str, Sequence[int]]
    batch: MicroBatches
    orders: dict[int, dict[int, MicroBatches]] = field(default_factory=dict)

    def order(self, seed: int) -> dict[int, MicroBatches]:
        """Step -> ids for all steps before the horizon. The last, short batch of an epoch is dropped."""
        if seed not in self.orders:
            pool = [i for ids in self.shards.values() for i in ids]
            size = sum(map(len, self.batch))
            rng, left, made = random.Random(f"order:{seed}"), [], {}  # type: ignore[var-annotated]
            for step in range(self.arms.horizon):
                if len(left) < size:
                    left = rng.sample(pool, len(pool))
                ids, left = left[:size], left[size:]
                rest = iter(ids)
                made[step] = tuple(tuple(next(rest) for _ in micro) for micro in self.batch)
            self.orders[seed] = made
        return self.orders[seed]

    def arm(self, purpose: str, start: int, seed: int, filling: Filling | None, filled: Sequence[str]) -> Arm:
        """A replay under order `seed` in which the samples of the shards `filled` are substitutes."""
        out = {i for name in filled for i in self.shards[name]}
        subs: dict[int, MicroBatches] = {}
        for step, recorded in self.order(seed).items():
            if step < start:
                continue
            if filling is None or not out:
                subs[step] = recorded
                continue
            filler = filling.step(step, recorded)
            subs[step] = tuple(
                tuple(filler[m][p] if i in out else i for p, i in enumerate(micro)) for m, micro in enumerate(recorded)
            )
        kept = [name for name in self.shards if name not in filled]
        what = f"order {seed}, " + ("all real" if not filled else f"{len(kept)} of {len(self.shards)} shards real")
        if len(kept) == 1:
            what = f"order {seed}, only {kept[0]}"
        if len(filled) == 1:
            what = f"order {seed}, without {filled[0]}"
        return self.arms.play(purpose, what, start, subs, filling.name if filling else "", seed=seed)

    def collapses(self, purpose: str, start: int, seed: int, filling: Filling | None, filled: Sequence[str]) -> bool:
        return self.arm(purpose, start, seed, filling, filled).outcome.collapsed


def batch_shape(run: Run) -> MicroBatches:
    """Micro-batches of one step, with placeholder ids, from the run's settings. Raises InconclusiveError without."""
    size = run.settings.get("batch_size")
    micro = run.settings.get("micro_batches") or 1
    if not isinstance(size, int) or size < 1:
        raise InconclusiveError(
            "the run holds no recorder data and does not say its batch size: no order can be rebuilt; "
            "give it in run.json (batch_size)"
        )
    return tuple((0,) * size for _ in range(int(micro)))


def diagnose_forensic(found: Diagnosis) -> Diagnosis:
    """The forensic path of `diagnose`: bracket, reproduction, then a shard if all four kinds of evidence agree."""
    run, arms = found.run, found.arms
    assert arms is not None
    if run.pool is None:
        return found.end(UNPROVEN, reason=f"neither recorder data nor the pool of samples are there; {SETTLES}")
    rebuilt = Rebuilt(arms, shard_ids(run), batch_shape(run))
    points = [step for step in sorted(run.checkpoints) if step < arms.horizon]
    arms.clock.plan(60 + 8 * len(rebuilt.shards), arms.horizon, "forensic diagnosis from rebuilt orders")

    def reproduces(step: int) -> bool:
        seeds = range(BRACKET_ORDERS)
        return is_healthy(found, step) and all(rebuilt.collapses("bracket", step, s, None, ()) for s in seeds)

    found.bracket = place = bracket(points, arms.horizon, reproduces)
    healthy = [step for step in points if is_healthy(found, step)]
    start = place.start if place.start is not None else max(healthy, default=None)
    if start is None:
        return found.end(UNPROVEN, reason="no checkpoint is healthy: the trigger lies before the first one")
    seen = [rebuilt.collapses("reproduction", start, seed, None, ()) for seed in range(CONFIRMING_ORDERS)]
    again = control("collapse under rebuilt orders", seen, "all")
    found.controls.append(again)
    found.forensic = {"orders": CONFIRMING_ORDERS, "reproduced": again.k, "interval": list(_rounded(again))}
    if not again.passed:
        found.bracket = None
        return found.end(
            UNPROVEN,
            reason=f"rebuilt orders reproduce the collapse in {again.k} of {again.n}: it depends on the order or the "
            f"concentration of the batches, which the checkpoints do not hold. {SETTLES}",
        )
    return _name(found, rebuilt, start)


def _rounded(seen: Control) -> tuple[float, float]:
    low, high = interval(seen.k, seen.n)
    return round(low, 4), round(high, 4)


def ranking(rebuilt: Rebuilt, checkpoint: int) -> list[str]:
    """Shards by the largest loss of a sample under the checkpoint's frozen weights, the largest first. Empty when the
    target cannot tell the loss of a sample."""
    ids = sorted(i for each in rebuilt.shards.values() for i in each)
    losses = rebuilt.arms.replayer.sample_losses(checkpoint, ids)
    if losses is None:
        return []
    worst = {name: max(_order(losses[i]) for i in mine) for name, mine in rebuilt.shards.items() if mine}
    return sorted(worst, key=lambda name: (-worst[name], name))


def _order(loss: float) -> float:
    return float("inf") if loss != loss else loss


def _fillings(rebuilt: Rebuilt, start: int, ranked: Sequence[str]) -> list[Filling]:
    """Shards of least loss, alone, whose all-filler replay stays healthy under the bracket's orders."""
    found: list[Filling] = []
    names = list(rebuilt.shards)
    for name in reversed(ranked or names):
        filling = Filling(f"{name} alone", tuple(rebuilt.shards[name]), 1)
        arms = [rebuilt.arm("control", start, seed, filling, names) for seed in range(BRACKET_ORDERS)]
        if not any(arm.outcome.collapsed or arm.outcome.uncertain for arm in arms):
            found.append(filling)
        if len(found) == AGREEING:
            break
    return found


def _name(found: Diagnosis, rebuilt: Rebuilt, start: int) -> Diagnosis:
    ranked = ranking(rebuilt, start)
    if not ranked:
        return found.end(UNPROVEN, reason=f"the target tells no losses of single samples to rank shards by; {SETTLES}")
    found.fillings = fillings = _fillings(rebuilt, start, ranked)
    if len(fillings) < AGREEING:
        return found.end(UNPROVEN, reason=f"{len(fillings)} shards are benign on their own, {AGREEING} must agree")
    suspect = ranked[0]
    others = [name for name in rebuilt.shards if name != suspect]
    few = range(BRACKET_ORDERS)
    orders = range(CONFIRMING_ORDERS)
    turn = {seed: fillings[seed % AGREEING] for seed in orders}
    evidence = [
        control(
            "necessity",
            [rebuilt.collapses("necessity", start, seed, turn[seed], (suspect,)) for seed in orders],
            "none",
        ),
        control(
            "sufficiency", [rebuilt.collapses("sufficiency", start, seed, turn[seed], others) for seed in orders], "all"
        ),
        control(
            "specificity (another shard filled)",
            [rebuilt.collapses("specificity", start, s, turn[s], (name,)) for name in others for s in few],
            "all",
        ),
        control(
            "specificity (only another shard)",
            [
                rebuilt.collapses("specificity", start, s, turn[s], [n for n in rebuilt.shards if n != name])
                for name in others
                for s in few
            ],
            "none",
        ),
    ]
    found.controls += evidence
    found.forensic = {**(found.forensic or {}), "ranking": ranked, "ranked_first": suspect}
    failed = [each for each in evidence if not each.passed]
    unsure = [arm for arm in rebuilt.arms.kept if arm.outcome.uncertain]
    if failed or unsure:
        names = ", ".join(f"{each.name} {each.k}/{each.n}" for each in failed) or f"{len(unsure)} replays uncertain"
        return found.end(UNPROVEN, reason=f"the evidence does not agree on {suspect}: {names}. {SETTLES}")
    found.shards = (suspect,)
    return found.end(FORENSIC, "SINGLE", f"{SETTLES}; a rebuilt order is not the run's own")
