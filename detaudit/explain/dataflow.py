"""The backward slice: from the first diverging leaf along unequal tensors to where the inequality began.

`trace_back` walks from a storage to the operators that wrote it, from those to their unequal inputs, and so on. It
ends at a *source*: a place where everything that went in was equal, or where what came in was made by no operator.
The earliest source in order of execution is the answer; the others lie behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from detaudit.explain.align import Alignment
from detaudit.explain.tracefile import HOST, Op, Operand, Trace


class Source(Enum):
    """Why the slice ends at an operator of A (its place is `End.index`)."""

    OPERATOR = auto()  # all inputs equal, outputs unequal
    VALUE = auto()  # an argument that is no tensor differs
    HOST = auto()  # a tensor made from data of the host
    RANDOM = auto()  # a random operator with equal inputs
    UNPRODUCED = auto()  # an unequal input that no traced operator wrote
    UNWRITTEN = auto()  # an unequal input that was allocated and never written
    OLD = auto()  # an unequal input from before the window
    PRODUCER = auto()  # an unequal input that other operators produced in B
    UNPAIRED = auto()  # the operator ran in one run only


@dataclass(frozen=True)
class End:
    """One end of the slice: operator `index` of A (len(ops) where the leaf itself is the reader), its input number
    `position`, and the path of operators from there to the leaf."""

    source: Source
    index: int
    position: int = 0
    path: tuple[int, ...] = ()


@dataclass
class Flow:
    """Two aligned traces with the writers of each storage."""

    a: Trace
    b: Trace
    alignment: Alignment
    _writers_a: dict[int, list[int]] = field(init=False)
    _writers_b: dict[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._writers_a, self._writers_b = _writers(self.a), _writers(self.b)

    def pair(self, index: int) -> tuple[Op, Op | None]:
        other = self.alignment.partner[index]
        return self.a.ops[index], None if other is None else self.b.ops[other]

    def trace_back(self, left: Operand, right: Operand, before_a: int, before_b: int) -> list[End]:
        """The ends of the slice from an unequal pair of operands that were read when `before_a` operators of A and
        `before_b` of B had run; earliest first."""
        ends: list[End] = []
        seen: set[int] = set()
        start = (left, right, before_a, before_b, len(self.a.ops), 0, ())
        pending: list[tuple[Operand, Operand, int, int, int, int, tuple[int, ...]]] = [start]
        while pending:
            left, right, before_a, before_b, reader, position, path = pending.pop()
            found = self._end_or_writers(left, right, before_a, before_b)
            if isinstance(found, Source):
                ends.append(End(found, reader, position, path))
                continue
            for index in found:
                if index in seen:
                    continue
                seen.add(index)
                end = self._end_at(index)
                if end is not None:
                    ends.append(End(end, index, 0, (index, *path)))
                    continue
                op, other = self.pair(index)
                assert other is not None
                for place, (mine, theirs) in enumerate(zip(op.inputs, other.inputs, strict=True)):
                    if unequal(mine, theirs):
                        pending.append((mine, theirs, index, other.index, index, place, (index, *path)))
        return sorted(ends, key=lambda end: end.index)

    def _end_at(self, index: int) -> Source | None:
        """Whether inequality begins at an operator; None where an unequal input explains it."""
        op, other = self.pair(index)
        if other is None:
            return Source.UNPAIRED
        if len(op.inputs) != len(other.inputs):
            return Source.PRODUCER
        if any(unequal(mine, theirs) for mine, theirs in zip(op.inputs, other.inputs, strict=True)):
            return None
        if op.name.startswith(HOST):
            return Source.HOST
        if op.values != other.values:
            return Source.VALUE
        return Source.RANDOM if op.random else Source.OPERATOR

    def _end_or_writers(self, left: Operand, right: Operand, before_a: int, before_b: int) -> Source | list[int]:
        """The operators that wrote unequal content into an operand, or why there are none."""
        mine = _until(self._writers_a.get(left.storage, []), before_a)
        theirs = _until(self._writers_b.get(right.storage, []), before_b)
        last, last_b = (mine[-1] if mine else None), (theirs[-1] if theirs else None)
        if last is None and last_b is None:
            return Source.OLD if left.storage in self.a.old or right.storage in self.b.old else Source.UNPRODUCED
        if last is None or last_b is None or self.alignment.partner[last] != last_b:
            if last is not None and self.alignment.partner[last] is None:
                return [last]
            return Source.PRODUCER
        unlike = [index for index in mine if self._wrote_unequal(index, left.storage)]
        if unlike:
            return unlike
        return Source.UNWRITTEN if left.unwritten or right.unwritten else Source.UNPRODUCED

    def _wrote_unequal(self, index: int, storage: int) -> bool:
        op, other = self.pair(index)
        if other is None or len(op.outputs) != len(other.outputs):
            return True
        pairs = zip(op.outputs, other.outputs, strict=True)
        return any(mine.storage == storage and unequal(mine, theirs) for mine, theirs in pairs)

    def writers(self, storage: int) -> list[int]:
        """The operators of A that wrote a storage, in order."""
        return self._writers_a.get(storage, [])

    def readers(self, storage: int) -> Iterator[Op]:
        """The operators of A that read a storage, in order."""
        return (op for op in self.a.ops if any(operand.storage == storage for operand in op.inputs))


def unequal(left: Operand, right: Operand) -> bool:
    """Whether both digests are known and differ."""
    return left.digest != right.digest and left.digest is not None and right.digest is not None


def _writers(trace: Trace) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for op in trace.ops:
        for operand in op.outputs:
            if operand.storage >= 0 and (not found[operand.storage] or found[operand.storage][-1] != op.index):
                found[operand.storage].append(op.index)
    return dict(found)


def _until(indices: list[int], before: int) -> list[int]:
    return indices[: bisect_left(indices, before)]
