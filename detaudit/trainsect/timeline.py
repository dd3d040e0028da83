"""The checkpoint interval in which a collapse was triggered, by O(log n) replays.

Predicate R (rescue, the default): checkpoint c is healthy and a benign continuation to B does not collapse, while the
recorded one does. Predicate P (the seed's, mode `seed`): c is healthy and the recorded continuation collapses. Under
bit-exact replay the second half of P always holds, so P only finds the last healthy checkpoint: damage that shows late
(arXiv 2204.02311, section 5.1 for the kind) lies before the interval it names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2

Predicate = Callable[[int], bool]

MONOTONE, NON_MONOTONE = "monotone, neighbours verified", "NON-MONOTONE"


@dataclass(frozen=True)
class Bracket:
    """Half-open interval [start, stop) of steps: the predicate holds at checkpoint `start`, not at `stop`.

    None for `start` when it holds nowhere. `probes` lists (checkpoint, answer) in the order asked."""

    start: int | None
    stop: int
    confidence: str
    probes: tuple[tuple[int, bool], ...] = ()
    reversals: tuple[tuple[int, int], ...] = field(default=())
    """Pairs (earlier False, later True): evidence against monotonicity."""


def most_probes(checkpoints: int) -> int:
    """Upper bound of the probes of a monotone search: two endpoints, the bisection, two neighbours, one interior."""
    return 2 + ceil(log2(max(2, checkpoints))) + 3


def bracket(checkpoints: Sequence[int], horizon: int, holds: Predicate, seed: int = 0) -> Bracket:
    """Bisect the checkpoints before `horizon` (sorted). Both endpoints are probed, the neighbours of the boundary and
    one more on each wide side verified; a reversal starts a linear audit, and the union is reported."""
    points = [step for step in sorted(checkpoints) if step < horizon]
    asked: dict[int, bool] = {}

    def ask(index: int) -> bool:
        step = points[index]
        if step not in asked:
            asked[step] = holds(step)
        return asked[step]

    if not points:
        return Bracket(None, horizon, "no checkpoint before the horizon")
    last = len(points) - 1
    low, high = 0, last
    if ask(last):
        low = high = last
    elif ask(0):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ask(middle) else (low, middle)
    else:
        low = -1
        high = 0
    _verify(points, low, last, ask, seed)
    reversals = _reversals(asked)
    if reversals:
        return _audited(points, horizon, ask, asked)
    after = points[low + 1] if low + 1 <= last else horizon
    return Bracket(points[low] if low >= 0 else None, after, MONOTONE, tuple(asked.items()))


def _verify(points: Sequence[int], low: int, last: int, ask: Callable[[int], bool], seed: int) -> None:
    neighbours = {low - 1, low, low + 1, low + 2}
    interior = [i for i in range(last + 1) if i not in neighbours]
    chosen = random.Random(seed).sample(interior, 1) if interior else []
    for index in sorted({i for i in neighbours if 0 <= i <= last} | set(chosen)):
        ask(index)


def _reversals(asked: dict[int, bool]) -> tuple[tuple[int, int], ...]:
    order = sorted(asked)
    return tuple((a, b) for i, a in enumerate(order) for b in order[i + 1 :] if not asked[a] and asked[b])


def _audited(points: Sequence[int], horizon: int, ask: Callable[[int], bool], asked: dict[int, bool]) -> Bracket:
    """Every checkpoint of the reversal's range, then the union of all intervals where True turns to False."""
    reversals = _reversals(asked)
    first, final = min(a for a, _ in reversals), max(b for _, b in reversals)
    for index, step in enumerate(points):
        if first <= step <= final:
            ask(index)
    true = [step for step in points if asked.get(step)]
    falls = [s for s, t in zip(sorted(asked), sorted(asked)[1:], strict=False) if asked[s] and not asked[t]]
    start = falls[0] if falls else true[0]
    stop = next((step for step in points if step > true[-1]), horizon)
    return Bracket(start, stop, NON_MONOTONE, tuple(asked.items()), _reversals(asked))
