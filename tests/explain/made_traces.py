"""Traces made by hand: operators without torch, for the tests of aligning, slicing and classifying."""

from __future__ import annotations

from dataclasses import replace

from detaudit.core.model import Divergence, DivergenceKind
from detaudit.explain.tracefile import LeafSeen, Op, Operand, Reseed, Site, Trace


def site(line: int) -> Site:
    return Site("/project/train.py", line, "train")


def operands(text: str) -> tuple[Operand, ...]:
    """`"1:aa 2:bb! 3:-"`: storage and digest; `!` marks memory nobody wrote, `-` an unknown digest."""
    found = []
    for word in text.split():
        storage, _, digest = word.partition(":")
        found.append(Operand(int(storage), None if digest == "-" else digest.rstrip("!"), digest.endswith("!")))
    return tuple(found)


class Made:
    """Builds a trace operator by operator."""

    def __init__(self, first: int = 0, last: int = 0, old: tuple[int, ...] = ()) -> None:
        self.trace = Trace((first, last), 3, old=frozenset(old), complete=True)
        self.step = first

    def op(self, name: str, ins: str = "", outs: str = "", line: int = 1, **more: object) -> Made:
        """Append an operator: `index_put` is `aten.index_put.default`."""
        full = name if "." in name else f"aten.{name}.default"
        made = Op(len(self.trace.ops), self.step, full, site(line), inputs=operands(ins), outputs=operands(outs))
        self.trace.ops.append(replace(made, **more))  # type: ignore[arg-type]
        return self

    def leaf(self, name: str, operand: str) -> Made:
        (seen,) = operands(operand)
        self.trace.leaves.append(
            LeafSeen(len(self.trace.ops), self.step, name, seen.storage, seen.digest or "", seen.unwritten)
        )
        return self

    def seed(self, function: str, value: str, line: int = 1, own: int = 0) -> Made:
        self.trace.reseeds.append(Reseed(len(self.trace.ops), self.step, function, value, site(line), own))
        return self

    def next_step(self) -> Made:
        self.step += 1
        return self


def divergence(leaf: str, step: int = 0, kind: DivergenceKind = DivergenceKind.VALUE) -> Divergence:
    return Divergence(step, leaf, kind)
