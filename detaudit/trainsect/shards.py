"""Which shards of the trigger interval cause the collapse: controls, the search, and the decision table.

f(S) = 1 when the replay with only the shards S real collapses at B. From the minimal sufficient sets of f:

one set of one shard, necessary        SINGLE         the seed's necessity and sufficiency
one set of several                     INTERACTION    each necessary, none sufficient
disjoint sets                          INDEPENDENT    each sufficient, none necessary
>= 3 overlapping sets of one size      CONCENTRATION  how much counts, not which: a dose curve, no shard alone
same multiset, permuted, no collapse   ORDER          decided before the search

Anything else, a failed control or an uncertain replay is UNPROVEN, with what failed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detaudit.trainsect.counterfactual import Interval
from detaudit.trainsect.counts import Control, control
from detaudit.trainsect.filling import Filling, substitute
from detaudit.trainsect.model import MicroBatches
from detaudit.trainsect.search import Oracle, SetsFound, Units, all_sets, is_concentration

BUDGET = 45
"""Covers single, pair, triple, two independent and a-or-(b-and-c) among 256 units; concentration exhausts it."""
PERMUTATIONS = 3
PLACEBOS = 2

SINGLE, INTERACTION, INDEPENDENT = "SINGLE", "INTERACTION", "INDEPENDENT"
CONCENTRATION, ORDER, UNPROVEN = "CONCENTRATION", "ORDER", "UNPROVEN"


@dataclass(frozen=True)
class Isolated:
    """What the search among the units of an interval found."""

    kind: str
    sets: tuple[Units, ...] = ()
    complete: bool = True
    asked: int = 0
    controls: tuple[Control, ...] = ()
    reason: str = ""
    corrections: tuple[Units, ...] = field(default=())

    @property
    def named(self) -> tuple[str, ...]:
        """The units a verdict may name: none for concentration, order or unproven."""
        if self.kind in (SINGLE, INTERACTION, INDEPENDENT):
            return tuple(sorted(set().union(*self.sets)))
        return ()


def real_control(interval: Interval, fillings: Sequence[Filling]) -> Control:
    """With the whole interval real and benign data after it, the collapse must still come, under every filling."""
    seen = [interval.collapses(interval.units, filling, "control") for filling in fillings]
    return control("interval real, benign after it", seen, "all")


def order_control(interval: Interval, filling: Filling) -> Control:
    """The same samples of the interval in K other orders. When none collapses, the order is the cause."""
    seen = []
    recorded = interval.arms.recorded(interval.start, interval.arms.horizon)
    inside = {step: recorded[step] for step in range(interval.start, interval.stop)}
    tail = substitute(recorded, filling, None, range(interval.stop, interval.arms.horizon))
    for k in range(PERMUTATIONS):
        subs = {**permuted(inside, k), **tail}
        arm = interval.arms.play("order", f"same samples, permutation {k}", interval.start, subs, filling.name)
        seen.append(arm.outcome.collapsed)
    return control("same samples in another order", seen, "any", "none collapses: the order is the cause")


def permuted(batches: Mapping[int, MicroBatches], seed: int) -> dict[int, MicroBatches]:
    """The samples of the given steps in another order, in the same micro-batch sizes."""
    ids = [i for step in sorted(batches) for micro in batches[step] for i in micro]
    random.Random(f"permutation:{seed}").shuffle(ids)
    rest = iter(ids)
    return {s: tuple(tuple(next(rest) for _ in micro) for micro in batches[s]) for s in sorted(batches)}


def isolate(
    interval: Interval, fillings: Sequence[Filling], hint: Mapping[str, float], *, budget: int = BUDGET
) -> Isolated:
    """The minimal sufficient sets of the interval's units and their kind. Given: all units real collapse, none real do
    not (both controls were run). `hint` orders the units, the most suspect last; it decides nothing."""
    first = fillings[0]
    units = ordered(interval.units, hint)
    oracle = Oracle(lambda real: interval.collapses(real, first), budget=budget)
    oracle.know(units, True)
    oracle.know((), False)
    found = all_sets(oracle, units, stop=is_concentration)
    kind, reason = classify(found)
    checks = recheck(interval, fillings[1:], found) if kind != UNPROVEN else []
    if kind in (SINGLE, INTERACTION):
        checks.append(necessity(interval, fillings, found.sufficient[0]))
        checks.append(placebo(interval, first, units, found.sufficient[0]))
    if kind == INDEPENDENT:
        checks.append(necessity(interval, fillings, frozenset().union(*found.sufficient), "every cause filled"))
    failed = [each for each in checks if each.passed is False]
    if failed:
        kind, reason = UNPROVEN, "failed: " + "; ".join(each.name for each in failed)
    return Isolated(
        kind, found.sufficient, found.complete, found.asked, tuple(checks), reason or found.note, found.corrections
    )


def ordered(units: Mapping[str, object], hint: Mapping[str, float]) -> list[str]:
    def key(name: str) -> tuple[float, str]:
        value = hint.get(name, -math.inf)
        return (math.inf if math.isnan(value) else value, name)

    return sorted(units, key=key)


def classify(found: SetsFound) -> tuple[str, str]:
    """The row of the decision table that the sets fall in, before the re-checks."""
    sets = found.sufficient
    if is_concentration(sets):
        return CONCENTRATION, f"{len(sets)} overlapping sets of {len(sets[0])} units each suffice"
    if not found.complete:
        return UNPROVEN, found.note or "the search was not completed"
    if not sets:
        return UNPROVEN, "no set of units suffices"
    if len(sets) == 1:
        return (SINGLE, "") if len(sets[0]) == 1 else (INTERACTION, "")
    if all(not a & b for i, a in enumerate(sets) for b in sets[:i]):
        return INDEPENDENT, ""
    return INTERACTION, "several sets share members: " + "; ".join(" + ".join(sorted(each)) for each in sets)


def recheck(interval: Interval, others: Sequence[Filling], found: SetsFound) -> list[Control]:
    """Every set found, and each set less one member, under the other fillings: an inhibitor among the units makes the
    search return wrong sets, and these re-checks expose them."""
    whole, less = [], []
    for filling in others:
        for each in found.sufficient:
            whole.append(interval.collapses(each, filling, "second filling"))
            less += [interval.collapses(each - {unit}, filling, "second filling") for unit in sorted(each)]
    return [
        control("sufficiency under another filling", whole, "all"),
        control("minimality under another filling", less, "none"),
    ]


def necessity(interval: Interval, fillings: Sequence[Filling], cause: Units, name: str = "cause filled") -> Control:
    rest = [unit for unit in interval.units if unit not in cause]
    return control(f"necessity ({name})", [interval.collapses(rest, f, "necessity") for f in fillings], "none")


def placebo(interval: Interval, filling: Filling, units: Sequence[str], cause: Units) -> Control:
    """An unrelated unit filled: the collapse must still come, or any perturbation would heal it."""
    unrelated = [unit for unit in units if unit not in cause][:PLACEBOS]
    seen = [
        interval.collapses([u for u in units if u != out], filling, "placebo", f"unrelated {out} filled")
        for out in unrelated
    ]
    return control("placebo (unrelated unit filled)", seen, "all")
