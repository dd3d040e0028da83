"""The records that rooms hand to each other: frozen, free of torch, comparable by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Leaf:
    """One named piece of training state in a layout.

    `dtype` is torch's name without the prefix (`float32`), or `value` for a plain Python value. `unsupported` holds
    the reason when the bytes could not be read; such a leaf never compares equal. `aliases` are further names of the
    same memory (tied weights).
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    unsupported: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stats:
    """Numbers beside a digest. `bag` is an order-free multiset hash; `sumsq` a fixed-order fp64 sum of squares over
    the finite elements; `low` and `high` the extremes of the finite elements (0.0 when there are none)."""

    bag: int
    sumsq: float
    low: float
    high: float
    nans: int
    infs: int


class StepKind(StrEnum):
    """What closed a step."""

    UPDATE = "update"
    SKIPPED = "skipped"  # GradScaler found inf and left the update out
    BACKWARD = "backward"  # no optimizer in the process: one backward is one step
    MARKED = "marked"  # the user called audit.step()
    TAIL = "tail"  # what followed the last update


@dataclass(frozen=True)
class Layout:
    """The leaves of a step in execution order, and what closed the step. Stored once however many steps share it."""

    leaves: tuple[Leaf, ...]
    kind: StepKind = StepKind.UPDATE
    optimizer: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(leaf.name for leaf in self.leaves)


@dataclass(frozen=True)
class StepRecord:
    """One step of a trail. `digests` holds one 64-bit integer per leaf of the layout, in its order; `stats` likewise,
    or is empty. `chain` is the running hash over everything up to and including this step."""

    step: int
    layout: Layout
    digests: tuple[int, ...]
    chain: int
    stats: tuple[Stats, ...] = ()


@dataclass(frozen=True)
class RunManifest:
    """What a run was: `decisive` entries decide bits and must agree, `context` entries are only reported."""

    decisive: Mapping[str, object] = field(default_factory=dict)
    context: Mapping[str, object] = field(default_factory=dict)


class DivergenceKind(StrEnum):
    VALUE = "value"
    MISSING = "missing"
    SHAPE = "shape"
    DTYPE = "dtype"


@dataclass(frozen=True)
class Divergence:
    """One leaf that differs between two trails at one step. `run_a` and `run_b` are sums of squares where both trails
    hold stats, digests in hexadecimal otherwise, shapes or dtypes for those kinds; empty where a side lacks the leaf.
    `delta` is |run_a - run_b| of the sums of squares, None without stats. `order` is the place of the leaf in the
    execution order of its step."""

    step: int
    leaf: str
    kind: DivergenceKind
    rank: str = ""
    order: int = 0
    optimizer: str = ""
    run_a: str = ""
    run_b: str = ""
    delta: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """The first divergence of a pair of trails and everything that differs at that step."""

    first: Divergence
    diverging: Sequence[Divergence]
    equal_before: int
    """Number of compared leaves of that step that come before `first` and are equal."""


class Outcome(StrEnum):
    CLEAN = "clean"
    DIVERGED = "diverged"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        return {"clean": 0, "diverged": 1, "inconclusive": 3}[self.value]


class ExplanationKind(StrEnum):
    """What the drill-down found. Exactly one of these is reported."""

    OPERATOR = "operator"  # equal inputs, unequal outputs, confirmed by running it again on the same inputs
    OUTSIDE = "outside"  # an unequal tensor that no traced operator produced
    RNG = "rng"  # a random operator whose generator's state was already unequal
    CONTROL_FLOW = "control-flow"  # the operator sequences differ, or a tensor came from another producer
    MEMORY = "memory"  # a value was read that nobody wrote
    NOT_REPRODUCED = "not_reproduced"  # the traced pairs did not diverge where they were traced
    UNPROVEN = "unproven"  # the evidence does not decide


@dataclass(frozen=True)
class Toggle:
    """One experiment: the pair repeated with one axis changed, `diverged` of `pairs` times apart."""

    name: str
    pairs: int
    diverged: int


@dataclass(frozen=True)
class Cause:
    """An entry of the catalogue. `fix` is code to paste, `against` what speaks against it, `support` one of
    experiment, signature, weak."""

    id: str
    title: str
    fix: str
    against: str
    support: str


@dataclass(frozen=True)
class Explanation:
    """Why the runs diverged. For a backward operator `file`, `line` and `code` are the forward line in the user's
    script. `rate` says how often, in words; `evidence` what the kind rests on, a sentence an entry."""

    kind: ExplanationKind
    step: int | None
    operator: str = ""
    module: str = ""
    file: str = ""
    line: int | None = None
    code: str = ""
    evidence: tuple[str, ...] = ()
    rate: str = ""
    toggles: tuple[Toggle, ...] = ()
    cause: Cause | None = None


@dataclass(frozen=True)
class RunReport:
    """How one run of the audited command went. `overhead` is the share of wall time spent in the recorder, None when
    the run left no figure. `exit_status` is negative for a signal, as in subprocess; None where nobody kept it."""

    label: str
    exit_status: int | None
    wall_seconds: float | None = None
    overhead: float | None = None
    trails: tuple[str, ...] = ()
    last_step: int | None = None
    outcome: str = ""


@dataclass(frozen=True)
class Verdict:
    """The answer of an audit. Presenters in `report` read nothing but this."""

    outcome: Outcome
    reason: str
    warnings: tuple[str, ...] = ()
    steps_compared: int = 0
    leaves_compared: int = 0
    first_divergence: Divergence | None = None
    diverging_leaves: tuple[Divergence, ...] = ()
    equal_before: int = 0
    runs: tuple[RunReport, ...] = ()
    pair: tuple[str, str] = ("A", "B")
    """Labels of the two runs that `run_a` and `run_b` of the divergences speak of."""
    created_files: tuple[str, ...] = ()
    manifest_differences: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    selection: str = ""
    command: tuple[str, ...] = ()
    directory: str = ""
    certificate: str = ""
    next_command: str = ""
    explanation: Explanation | None = None
    """What the drill-down found; None where there was nothing to explain or it was not asked for."""
