"""The table every phase-1 reader fills: one metric as a dense cube over rank, target, optimizer step and micro-step.

A cell is absent (never recorded), not a number (recorded as NaN or NULL), infinite, or finite. Absent and NaN are
kept apart because an absent cell is a gap in the evidence and a NaN is evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from detaudit.core.errors import UnreadableError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

MAX_CELLS_PER_ROW = 64
"""A cube far sparser than this is refused: its ranks share too few targets for one table."""


@dataclass(frozen=True, order=True)
class Target:
    """A monitored parameter or activation. `vpp_stage` is the index of the model chunk, not the pipeline rank."""

    name: str
    vpp_stage: int = 0


@dataclass(frozen=True)
class MetricCube:
    """One metric of one run.

    `values` and `present` have shape [R, P, S, K]: ranks, targets, recorded steps, micro-steps. `targets` keep the
    order in which they were first met, which is the hook-firing (backward) order for grad_unreduced.
    `micro_declared` says that the source had its own micro-step column.
    """

    metric: str
    ranks: tuple[int, ...]
    targets: tuple[Target, ...]
    steps: tuple[int, ...]
    values: Floats
    present: Bools
    micro_declared: bool = False
    statistic: str = "norm"
    duplicates: int = 0

    @property
    def micro_steps(self) -> int:
        return int(self.values.shape[3])

    @property
    def finite(self) -> Bools:
        return np.isfinite(self.values)

    def without_empty_targets(self) -> MetricCube:
        """The same cube without targets that hold nothing."""
        used = np.flatnonzero(self.present.any(axis=(0, 2, 3)))
        if len(used) == len(self.targets):
            return self
        targets = tuple(self.targets[i] for i in used)
        return replace(self, targets=targets, values=self.values[:, used], present=self.present[:, used])

    def refold(self, starts: Iterable[int]) -> MetricCube:
        """A flat cube (one micro-step a step) folded into windows that begin at the recorded steps `starts`.

        Afterwards `steps` are window ordinals, and position k of a window is its micro-step. A window shorter than the
        longest one is absent at its end.
        """
        if self.micro_steps != 1:
            raise AssertionError("only a flat cube can be folded")
        begins = np.asarray(sorted(set(starts)), dtype=np.int64)
        recorded = np.asarray(self.steps, dtype=np.int64)
        window = np.searchsorted(begins, recorded, side="right") - 1
        inside = window >= 0
        micro = recorded - begins[np.maximum(window, 0)]
        size = int(micro[inside].max()) + 1 if inside.any() else 1
        shape = (len(self.ranks), len(self.targets), len(begins), size)
        values = np.full(shape, np.nan)
        present = np.zeros(shape, dtype=bool)
        values[:, :, window[inside], micro[inside]] = self.values[:, :, inside, 0]
        present[:, :, window[inside], micro[inside]] = self.present[:, :, inside, 0]
        return replace(self, steps=tuple(range(len(begins))), values=values, present=present)


@dataclass
class CubeBuilder:
    """Collects rows of one metric block by block, then lays them out once.

    Blocks are kept as compact columns and freed while the cube is filled, so that the peak stays near one copy of the
    rows and one of the cube. Of two rows for one cell the one added later wins, and is counted.
    """

    metric: str
    statistic: str = "norm"
    micro_declared: bool = False
    _ids: dict[Target, int] = field(default_factory=dict)
    _blocks: list[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int16] | None, Floats]] = (
        field(default_factory=list)
    )
    rows: int = 0

    def target_id(self, name: str, vpp_stage: int = 0) -> int:
        return self._ids.setdefault(Target(name, vpp_stage), len(self._ids))

    def add(
        self,
        rank: int,
        steps: npt.NDArray[np.integer],
        targets: npt.NDArray[np.integer],
        values: Floats,
        micro: npt.NDArray[np.integer] | None = None,
    ) -> None:
        """Add rows of one rank: four parallel columns; `targets` are numbers from `target_id`."""
        if not len(values):
            return
        self.rows += len(values)
        packed = None if micro is None else micro.astype(np.int16)
        self._blocks.append((rank, steps.astype(np.int32), targets.astype(np.int32), packed, values))

    def build(self) -> MetricCube:
        """Lay the rows out. Raises UnreadableError when nothing was added or ranks share next to no targets."""
        if not self._blocks:
            raise UnreadableError(f"no rows of metric {self.metric!r}")
        ranks = sorted({block[0] for block in self._blocks})
        steps = np.unique(np.concatenate([np.unique(block[1]) for block in self._blocks]))
        size = 1 + max((int(block[3].max()) for block in self._blocks if block[3] is not None), default=0)
        shape = (len(ranks), len(self._ids), len(steps), size)
        cells = int(np.prod([np.int64(n) for n in shape]))
        if cells > MAX_CELLS_PER_ROW * self.rows + 10**7:
            raise UnreadableError(
                f"metric {self.metric!r}: {self.rows} rows would need a table of {cells} cells "
                f"({shape[0]} ranks x {shape[1]} targets x {shape[2]} steps x {shape[3]} micro-steps); "
                "give fewer ranks, steps or targets in one call"
            )
        values = np.full(cells, np.nan)
        present = np.zeros(cells, dtype=bool)
        place = {rank: i for i, rank in enumerate(ranks)}
        self._blocks.reverse()
        while self._blocks:
            rank, step, target, micro, column = self._blocks.pop()
            index = (place[rank] * shape[1] + target.astype(np.int64)) * shape[2] + np.searchsorted(steps, step)
            index *= shape[3]
            if micro is not None:
                index += micro
            values[index] = column  # of repeated places numpy keeps the last
            present[index] = True
        return MetricCube(
            metric=self.metric,
            ranks=tuple(ranks),
            targets=tuple(self._ids),
            steps=tuple(int(step) for step in steps),
            values=values.reshape(shape),
            present=present.reshape(shape),
            micro_declared=self.micro_declared,
            statistic=self.statistic,
            duplicates=self.rows - int(present.sum()),
        )
