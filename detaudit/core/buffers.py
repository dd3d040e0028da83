"""The records of a comparison of dumps: how two buffers differ, what a hypothesis has to say, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from detaudit.core.model import Outcome


class Region(StrEnum):
    """Where the unequal elements of a buffer lie."""

    ONE = "one element"
    CONTIGUOUS = "contiguous"
    ROWS = "whole rows"
    ALL = "all elements"
    SCATTERED = "scattered"


class Nearness(StrEnum):
    """How far apart the unequal values are."""

    SAME = "the same values in other bits (sign of a zero, payload of a NaN)"
    ROUNDING = "apart by rounding only"
    UNCLEAR = "small beside the largest element: rounding after cancellation, or not"
    BEYOND = "close, but further apart than any order of additions could make them"
    FAR = "far apart"
    EXACT = "of a type that knows no rounding"


@dataclass(frozen=True)
class Difference:
    """How two buffers of one dtype and shape differ. Indices are flat, in C order.

    `unequal` of `elements` differ in their bits, the first at index `first` with the values `value_a` and `value_b`,
    the last at `last`. `ulp` is the largest distance in units in the last place and `ulp_at` its index: of floating
    types, over pairs without NaN; None where there is no such pair. `largest` and `relative` are the largest absolute
    and relative distance over finite pairs. `nonfinite` counts unequal pairs with NaN or Inf in one of them. `rows`
    are the first and last row when the region is whole rows. `chunk` is the first of `chunks` pieces of 64 KiB that
    differs. `permutation` tells that both hold the same elements in another order.
    """

    elements: int
    unequal: int
    first: int
    last: int
    value_a: str
    value_b: str
    region: Region
    nearness: Nearness
    permutation: bool
    chunk: int
    chunks: int
    ulp: int | None = None
    ulp_at: int | None = None
    largest: float | None = None
    relative: float | None = None
    nonfinite: int = 0
    rows: tuple[int, int] | None = None


class BufferStatus(StrEnum):
    EQUAL = "EQUAL"
    DIVERGE = "DIVERGE"
    INCOMPARABLE = "NOT COMPARABLE"
    UNKNOWN = "NOT DUMPED"


@dataclass(frozen=True)
class BufferComparison:
    """One buffer of one process at one step in two dumps. `name` is its short name in a hypothesis set, else the leaf's
    own; `detail` says why it could not be compared."""

    step: int
    name: str
    leaf: str
    status: BufferStatus
    process: str = "main"
    shape: tuple[int, ...] = ()
    elements: int = 0
    difference: Difference | None = None
    detail: str = ""


class Support(StrEnum):
    SUPPORTED = "supported"
    RULED_OUT = "ruled out"
    OPEN = "open"


@dataclass(frozen=True)
class HypothesisFinding:
    """What the dumps say of one hypothesis, as the cause of the first difference."""

    id: str
    title: str
    support: Support
    reason: str


@dataclass(frozen=True)
class DumpVerdict:
    """The answer of a comparison of dumps. `reason` is what stands behind `VERDICT:`."""

    outcome: Outcome
    reason: str
    buffers: tuple[BufferComparison, ...] = ()
    hypotheses: tuple[HypothesisFinding, ...] = ()
    warnings: tuple[str, ...] = ()
