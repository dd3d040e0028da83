"""Replicas of one run against each other: the first step at which ranks that should be equal are not.

Under data-parallel training every rank holds the same parameters and optimizer state after every update. A rank that
does not (a missed broadcast, a reduction that differs by rank, a flipped bit) is found here, from one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from detaudit.core.errors import InconclusiveError
from detaudit.core.names import Selection
from detaudit.trail.reader import TrailReader

REPLICATED = ("param.*", "optim.*", "grad.*")
"""Leaves that are equal on all ranks after a data-parallel update; activations and batches are not."""


@dataclass(frozen=True)
class RankDisagreement:
    """The first leaf on which ranks differ at `step`. `groups` are the ranks that agree with each other, the largest
    first; `alone` is the one rank outside a majority, empty when there is no such rank."""

    step: int
    leaf: str
    groups: tuple[tuple[str, ...], ...]
    alone: str


@dataclass(frozen=True)
class RankComparison:
    disagreement: RankDisagreement | None
    ranks: tuple[str, ...]
    steps_compared: int
    leaves_compared: int


def compare_ranks(trails: Mapping[str, TrailReader], selection: Selection | None = None) -> RankComparison:
    """Compare the ranks of one run over the selected leaves (REPLICATED when None or without a glob to include).

    Raises InconclusiveError when nothing can be compared: one rank, no common step, no common leaf.
    """
    ranks = tuple(trails)
    if len(ranks) < 2:
        raise InconclusiveError(f"one trail ({', '.join(ranks)}): there are no replicas to compare")
    given = selection or Selection()
    chosen = given if given.include else Selection(REPLICATED, given.exclude)
    steps = sorted(set.intersection(*(set(trail.steps) for trail in trails.values())))
    names: set[str] = set()
    for step in steps:
        rows = [_row(trail, step, chosen) for trail in trails.values()]
        order = [name for name in rows[0] if all(name in row for row in rows)]
        names.update(order)
        for name in order:
            if len({row[name] for row in rows}) > 1:
                found = _disagreement(step, name, ranks, [row[name] for row in rows])
                return RankComparison(found, ranks, steps.index(step) + 1, len(names))
    if not names:
        raise InconclusiveError(f"no leaf that matches {chosen.describe()} is common to {', '.join(ranks)}")
    return RankComparison(None, ranks, len(steps), len(names))


def _row(trail: TrailReader, step: int, chosen: Selection) -> dict[str, int]:
    position = trail.position(step)
    assert position is not None
    leaves, digests = trail.layout(position).leaves, trail.digests(position)
    named = zip(leaves, digests, strict=True)
    return {leaf.name: digest for leaf, digest in named if leaf.name in chosen and not leaf.unsupported}


def _disagreement(step: int, leaf: str, ranks: Sequence[str], digests: Sequence[int]) -> RankDisagreement:
    by_digest: dict[int, list[str]] = {}
    for rank, digest in zip(ranks, digests, strict=True):
        by_digest.setdefault(digest, []).append(rank)
    groups = sorted((tuple(group) for group in by_digest.values()), key=len, reverse=True)
    majority = len(groups) == 2 and len(groups[0]) > 1 == len(groups[1])
    return RankDisagreement(step, leaf, tuple(groups), groups[1][0] if majority else "")
