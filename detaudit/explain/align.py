"""Pairs the operators of two traces: by name, place and module in order of execution, with insertions on either side.

Position alone would pair everything wrongly after one extra operator. Equal sequences pair as they stand; otherwise
the common beginning and end are taken off and the rest goes through a longest-matching-block search (difflib).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from detaudit.explain.tracefile import Op, Trace

MAX_SEARCH = 20_000
"""Operators between the common beginning and end that are searched; beyond it they count as unpaired."""

Key = tuple[int, str, str, str | None, int | None, str]


@dataclass(frozen=True)
class Alignment:
    """`partner[i]` is the index in B of A's operator i, None for one that only A has; `partner_b` the inverse.
    `parting` is the first pair of indices at which the sequences part, None for equal sequences."""

    partner: list[int | None]
    partner_b: list[int | None]
    parting: tuple[int, int] | None


def align(a: Trace, b: Trace) -> Alignment:
    left, right = [_key(op) for op in a.ops], [_key(op) for op in b.ops]
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    if start == len(left) == len(right):
        same: list[int | None] = list(range(start))
        return Alignment(same, list(same), None)
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    partner: list[int | None] = [None] * len(left)
    for index in range(start):
        partner[index] = index
    for back in range(1, end + 1):
        partner[len(left) - back] = len(right) - back
    _match(left[start : len(left) - end], right[start : len(right) - end], start, partner)
    inverse: list[int | None] = [None] * len(right)
    for index, other in enumerate(partner):
        if other is not None:
            inverse[other] = index
    return Alignment(partner, inverse, (start, start))


def _match(left: Sequence[Key], right: Sequence[Key], offset: int, partner: list[int | None]) -> None:
    if max(len(left), len(right)) > MAX_SEARCH:
        return
    for block in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
        for step in range(block.size):
            partner[offset + block.a + step] = offset + block.b + step


def _key(op: Op) -> Key:
    return (op.step, op.name, op.module, op.site.file, op.site.line, op.node)
