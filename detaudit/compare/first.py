"""The first divergence of two trails: bisection on the running hash, then the leaves of that step.

`compare_trails` reads top to bottom: `_common_steps`, `_first_unequal_step` (by bisection when nothing is left out,
by a scan otherwise), `_differences`. Runs are aligned by step number, leaves by name; a missing counterpart is a
finding of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detaudit.core.model import Divergence, DivergenceKind, Finding, Layout, Leaf, Stats, StepKind
from detaudit.core.names import Selection, merged_order
from detaudit.trail.reader import TrailReader


@dataclass(frozen=True)
class Comparison:
    """What a pair of trails showed. `unsupported` names selected leaves that carry no digest; `leaves_compared` counts
    the distinct selected names over all compared steps. The tail is compared, but is no step in `steps_compared`."""

    finding: Finding | None
    steps_compared: int
    leaves_compared: int
    unsupported: tuple[str, ...] = ()


def compare_trails(a: TrailReader, b: TrailReader, selection: Selection | None = None, rank: str = "") -> Comparison:
    """Compare two trails of one rank over the selected leaves (all when None)."""
    chosen = selection or Selection()
    common = _common_steps(a, b)
    unequal = _first_unequal_step(a, b, common, chosen)
    finding = None
    if unequal is not None:
        finding = _differences(a, b, unequal, chosen, rank)
    ended = _first_missing_step(a, b, common)
    if ended is not None and (finding is None or ended < finding.first.step):
        finding = _ended(a, b, ended, rank)
    seen = _selected_leaves((a, b), chosen)
    return Comparison(
        finding=finding,
        steps_compared=len(common) - _ends_in_tail(a, common),
        leaves_compared=len({leaf.name for leaf in seen}),
        unsupported=tuple(sorted({f"{leaf.name}: {leaf.unsupported}" for leaf in seen if leaf.unsupported})),
    )


def _common_steps(a: TrailReader, b: TrailReader) -> list[int]:
    clash = _tails_of_one(a, b)
    if a.steps == b.steps and not clash:
        return a.steps
    other = set(b.steps) - clash
    return [step for step in a.steps if step in other]


def _tails_of_one(a: TrailReader, b: TrailReader) -> set[int]:
    """Numbers that one run gave to its tail and the other to a step: the first run had ended there."""
    return {
        left.steps[-1]
        for left, right in ((a, b), (b, a))
        if _ends_in_tail(left, left.steps)
        and (place := right.position(left.steps[-1])) is not None
        and right.layout(place).kind is not StepKind.TAIL
    }


def _ends_in_tail(trail: TrailReader, steps: Sequence[int]) -> bool:
    return bool(steps) and trail.layout(_at(trail, steps[-1])).kind is StepKind.TAIL


def _first_unequal_step(a: TrailReader, b: TrailReader, common: Sequence[int], chosen: Selection) -> int | None:
    """The first common step whose selected leaves differ. The chain covers every leaf of every recorded step, so it
    answers alone only when nothing is left out and both trails hold the same steps."""
    if chosen.everything and common == a.steps == b.steps:
        position = first_true(len(common), lambda i: a.chains[i] != b.chains[i])
        return None if position is None else common[position]
    for step in common:
        if not _equal_step(a, b, _at(a, step), _at(b, step), chosen):
            return step
    return None


def first_true(length: int, holds: Callable[[int], bool]) -> int | None:
    """The first index in range(length) at which a predicate holds that, once true, stays true. O(log length) calls."""
    if not length or not holds(length - 1):
        return None
    low, high = 0, length - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _equal_step(a: TrailReader, b: TrailReader, i: int, j: int, chosen: Selection) -> bool:
    left, right = a.layout(i), b.layout(j)
    if left == right and a.raw_digests(i) == b.raw_digests(j):
        return True
    if chosen.everything:
        return False
    return _selected(left, a.digests(i), chosen) == _selected(right, b.digests(j), chosen)


def _selected(layout: Layout, digests: Sequence[int], chosen: Selection) -> dict[Leaf, int]:
    return {leaf: digest for leaf, digest in zip(layout.leaves, digests, strict=True) if leaf.name in chosen}


def _differences(a: TrailReader, b: TrailReader, step: int, chosen: Selection, rank: str) -> Finding:
    """Everything that differs at one step, in execution order."""
    left, right = _Side.of(a, step), _Side.of(b, step)
    order = [name for name in merged_order(left.layout.names, right.layout.names) if name in chosen]
    diverging = []
    for place, name in enumerate(order):
        divergence = _compare_leaf(left, right, name, step, place, rank)
        if divergence is not None:
            diverging.append(divergence)
    if not diverging:
        # Equal leaves in another order, or another optimizer: the layout itself is what differs.
        diverging.append(_layout_difference(left, right, step, rank))
    return Finding(diverging[0], tuple(diverging), equal_before=diverging[0].order)


@dataclass(frozen=True)
class _Side:
    """One trail's view of a step: its leaves by name with their digests and stats."""

    layout: Layout
    leaves: dict[str, tuple[Leaf, int, Stats | None]]

    @classmethod
    def of(cls, trail: TrailReader, step: int) -> _Side:
        position = _at(trail, step)
        layout, digests, stats = trail.layout(position), trail.digests(position), trail.stats(position)
        rows: Sequence[Stats | None] = stats or [None] * len(digests)
        named = zip(layout.leaves, digests, rows, strict=True)
        return cls(layout, {leaf.name: (leaf, digest, row) for leaf, digest, row in named})


NOT_TAKEN = Stats(bag=0, sumsq=0.0, low=0.0, high=0.0, nans=0, infs=0)
"""Stands in a trail with stats for a leaf that has none: a generator's state, plain values. Two tensors with these
numbers are all zeros, and then their digests are equal."""


def _compare_leaf(left: _Side, right: _Side, name: str, step: int, place: int, rank: str) -> Divergence | None:
    def found(kind: DivergenceKind, run_a: str, run_b: str, delta: float | None = None, note: str = "") -> Divergence:
        return Divergence(
            step=step,
            leaf=name,
            kind=kind,
            rank=rank,
            order=place,
            optimizer=left.layout.optimizer,
            run_a=run_a,
            run_b=run_b,
            delta=delta,
            note=note or ("after the last update" if left.layout.kind is StepKind.TAIL else ""),
        )

    a, b = left.leaves.get(name), right.leaves.get(name)
    if a is None or b is None:
        return found(DivergenceKind.MISSING, "present" if a else "", "present" if b else "")
    if a[0].dtype != b[0].dtype:
        return found(DivergenceKind.DTYPE, a[0].dtype, b[0].dtype)
    if a[0].shape != b[0].shape:
        return found(DivergenceKind.SHAPE, str(list(a[0].shape)), str(list(b[0].shape)))
    if a[1] == b[1] and a[0].unsupported == b[0].unsupported:
        return None
    if a[2] is None or b[2] is None or a[2] == b[2] == NOT_TAKEN:
        return found(DivergenceKind.VALUE, f"{a[1]:016x}", f"{b[1]:016x}")
    return found(
        DivergenceKind.VALUE, repr(a[2].sumsq), repr(b[2].sumsq), abs(a[2].sumsq - b[2].sumsq), _hint(a[2], b[2])
    )


def _hint(a: Stats, b: Stats) -> str:
    """What the stats tell beyond the sum of squares."""
    if (a.nans, a.infs) != (b.nans, b.infs):
        return f"NaN {a.nans}/{b.nans}, Inf {a.infs}/{b.infs}"
    if a.bag == b.bag:
        return "same values in another order"
    return "equal sum of squares, other bits" if a.sumsq == b.sumsq else ""


def _layout_difference(left: _Side, right: _Side, step: int, rank: str) -> Divergence:
    if (left.layout.kind, left.layout.optimizer) != (right.layout.kind, right.layout.optimizer):
        a, b = (f"{side.layout.kind} {side.layout.optimizer}".strip() for side in (left, right))
        return Divergence(step, "step", DivergenceKind.VALUE, rank, 0, left.layout.optimizer, a, b, None, "closed by")
    names = zip(left.layout.names, right.layout.names, strict=False)
    place, (a, b) = next(((i, pair) for i, pair in enumerate(names) if pair[0] != pair[1]), (0, ("", "")))
    note = "equal leaves in another order of execution" if a != b else "aliases differ"
    return Divergence(step, a or "step", DivergenceKind.VALUE, rank, place, left.layout.optimizer, a, b, None, note)


def _first_missing_step(a: TrailReader, b: TrailReader, common: Sequence[int]) -> int | None:
    if len(common) == len(a.steps) == len(b.steps):
        return None
    alone = (set(a.steps) ^ set(b.steps)) | _tails_of_one(a, b)
    return min((step for step in alone if was_asked(a, step) and was_asked(b, step)), default=None)


def was_asked(trail: TrailReader, step: int) -> bool:
    """Whether the recorder was asked for this step (`--every`, `--steps`): one it left out is no missing step."""
    every, limit = (int(str(trail.manifest.context.get(key, default))) for key, default in (("every", 1), ("steps", 0)))
    return step % every == 0 and (not limit or step < limit)


def _ended(a: TrailReader, b: TrailReader, step: int, rank: str) -> Finding:
    """One run has a step that the other has not: the other was in its tail, or over."""

    def holds(trail: TrailReader) -> bool:
        place = trail.position(step)
        return place is not None and (trail.layout(place).kind is not StepKind.TAIL or step not in _tails_of_one(a, b))

    holder = a if holds(a) else b
    optimizer = holder.layout(_at(holder, step)).optimizer
    note = f"the step is missing in the {'second' if holder is a else 'first'} run"
    state_a, state_b = ("present" if holds(trail) else "" for trail in (a, b))
    first = Divergence(step, "step", DivergenceKind.MISSING, rank, 0, optimizer, state_a, state_b, None, note)
    return Finding(first, (first,), equal_before=0)


def _selected_leaves(trails: Sequence[TrailReader], chosen: Selection) -> set[Leaf]:
    used = {trail.layout(i) for trail in trails for i in _first_uses(trail)}
    return {leaf for layout in used for leaf in layout.leaves if leaf.name in chosen}


def _first_uses(trail: TrailReader) -> list[int]:
    """The position of the first step of each layout in use."""
    seen: dict[int, int] = {}
    for position in range(len(trail.steps)):
        seen.setdefault(trail.layout_id(position), position)
    return list(seen.values())


def _at(trail: TrailReader, step: int) -> int:
    position = trail.position(step)
    if position is None:
        raise AssertionError(f"step {step} is not in {trail.path}")
    return position
