"""The dose curve of a concentration: how many of the suspects' batches it takes, whichever they are."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from detaudit.trainsect.counterfactual import Interval
from detaudit.trainsect.filling import Filling, Position

SUBSETS = 3
LEVELS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)


@dataclass(frozen=True)
class Dose:
    """`collapsed` of `of` random subsets of `batches` suspect batches collapsed."""

    batches: int
    collapsed: int
    of: int


@dataclass(frozen=True)
class DoseCurve:
    """Doses in rising order. `smallest_all` is the smallest dose at which, and from which on, every subset collapsed;
    `largest_none` the largest at which none did."""

    total: int
    doses: tuple[Dose, ...]

    @property
    def smallest_all(self) -> int | None:
        sure = None
        for dose in reversed(self.doses):
            if dose.collapsed < dose.of:
                break
            sure = dose.batches
        return sure

    @property
    def largest_none(self) -> int | None:
        return max((dose.batches for dose in self.doses if dose.collapsed == 0), default=None)

    def value(self) -> dict[str, Any]:
        return {
            "suspect_batches": self.total,
            "doses": [{"batches": d.batches, "collapsed": d.collapsed, "of": d.of} for d in self.doses],
            "smallest_with_all_collapsed": self.smallest_all,
            "largest_with_none_collapsed": self.largest_none,
        }


def by_step(positions: Iterable[Position]) -> dict[str, tuple[Position, ...]]:
    """Units for the search by batch: `step 57` -> its positions."""
    found: dict[int, list[Position]] = {}
    for position in sorted(positions):
        found.setdefault(position[0], []).append(position)
    return {f"step {step}": tuple(places) for step, places in found.items()}


def dose_curve(interval: Interval, suspects: Iterable[str], filling: Filling) -> DoseCurve:
    """Random subsets of the suspects' batches, everything else of the interval benign."""
    batches = by_step(p for unit in suspects for p in interval.units[unit])
    everything = frozenset(p for places in interval.units.values() for p in places)
    mine = frozenset(p for places in batches.values() for p in places)
    inner = Interval(
        interval.arms, interval.start, interval.stop, batches, interval.always | (everything - mine), "dose"
    )
    names = list(batches)
    doses = []
    for count in sorted({max(1, round(level * len(names))) for level in LEVELS}):
        draws = 1 if count == len(names) else SUBSETS
        seen = []
        for k in range(draws):
            chosen = random.Random(f"dose:{count}:{k}").sample(names, count)
            seen.append(inner.collapses(chosen, filling, "dose", f"{count} of {len(names)} batches, draw {k}"))
        doses.append(Dose(count, sum(seen), draws))
    return DoseCurve(len(names), tuple(doses))
