"""What the parts of Trainsect hand to each other: frozen records, the protocols of a recorded run and of a replayer.

Loads no torch. Step numbers are 0-based; a checkpoint of step t holds the state *before* update t, so replaying
[start, stop) executes the updates start .. stop - 1 and ends in the state of a checkpoint of step `stop`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

MicroBatches = tuple[tuple[int, ...], ...]
"""The sample ids of each micro-batch of one step, in the order in which they were trained on."""


@dataclass(frozen=True)
class StepEntry:
    """One recorded step.

    `ids` is None where the batches carry no ids (an IterableDataset): only a tape can replay such a step. `batch` is
    the hexadecimal content digest of what the loop received. `rng` maps a generator (`python`, `numpy`, `torch`,
    `cuda0`, a declared name) to the SHA-256 of its state at the step's first training forward; `rng_missing` says why
    there is none. `loss` is the training loss where the loop told it, NaN and infinities included.
    """

    step: int
    ids: MicroBatches | None
    batch: str
    rng: Mapping[str, str]
    rng_missing: str = ""
    loss: float | None = None
    skipped: bool = False
    tape: str = ""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Cursor, epoch, base seed and worker seeds of the loader, as far as it showed them."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: the loss of the state before update `step`. `data` is the digest of what was evaluated on."""

    step: int
    loss: float
    data: str = ""


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint on disk. `file_sha256` covers the file; `state_sha256` every leaf of the state (names, dtypes,
    shapes, strides, bytes); `parameters_sha256` the model's parameters alone, as in the seed."""

    step: int
    path: Path
    file_sha256: str
    state_sha256: str
    parameters_sha256: str


@dataclass(frozen=True)
class Event:
    """Something that happened in a step and is no leaf: `skipped` (GradScaler found inf and left the update out)."""

    step: int
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Patch:
    """Leaves to exchange in mid-replay: before update `at`, every leaf that matches one of `leaves` (globs over the
    names of a state, `model.buffer.*`) takes its value from the checkpoint of step `source`."""

    at: int
    source: int
    leaves: tuple[str, ...]


@dataclass(frozen=True)
class ReplayResult:
    """What a replay of [start, stop) showed.

    `evaluations` holds the losses asked for, by step (`stop` may be among them); `states` the state's SHA-256 before
    each step that has a checkpoint, and at `stop`; `losses` the training loss of each step as the target returned it.
    `key` is the content key under which the result is cached; `executed` counts the updates that really ran for it
    (0 for a cached one, fewer than stop - start where a prefix was shared), and is no part of the evidence.
    """

    start: int
    stop: int
    evaluations: Mapping[int, float]
    states: Mapping[int, str]
    losses: Mapping[int, float]
    events: tuple[Event, ...] = ()
    key: str = ""
    executed: int = field(default=0, compare=False)


class Run(Protocol):
    """A recorded run, read and checked (`detaudit.trainsect.run.open_run`)."""

    @property
    def directory(self) -> Path: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """The content of run.json: manifest, threads, pool, batch size, command."""

    @property
    def steps(self) -> Mapping[int, StepEntry]:
        """Empty for a run that was stripped of its recorder data."""

    @property
    def evaluations(self) -> Sequence[Evaluation]: ...

    @property
    def checkpoints(self) -> Mapping[int, CheckpointEntry]: ...

    @property
    def instrumented(self) -> bool:
        """Whether recorder data are there; without them only the forensic mode is open."""

    @property
    def pool(self) -> range | tuple[int, ...] | None:
        """The ids that the data set holds, None when unknown."""

    @property
    def warnings(self) -> Sequence[str]:
        """A torn tail, a missing end, steps without a snapshot: what a report must state."""

    def shard_of(self, sample: int) -> str:
        """The shard of a sample. Raises UsageError when the run has no shard map, or the pool lacks the id."""


class Replayer(Protocol):
    """Executes parts of a run again. Results are cached by content and common prefixes shared behind this protocol."""

    def replay(
        self,
        start: int,
        stop: int,
        *,
        substitutions: Mapping[int, MicroBatches],
        evaluate_at: Sequence[int],
        patch: Patch | None = None,
        seed: int | None = None,
    ) -> ReplayResult:
        """Load the checkpoint of step `start`, execute [start, stop) with the recorded batches except where
        `substitutions` names others, evaluate before the steps `evaluate_at`.

        A substitute must have the micro-batch sizes of what it replaces. `seed` pins the generators of steps whose
        snapshot is missing (forensic replays), by (seed, step). start == stop evaluates a checkpoint.

        Raises UsageError for unknown steps, ids or sizes, InconclusiveError where the recording does not suffice."""

    def sample_losses(self, checkpoint: int, ids: Sequence[int]) -> Mapping[int, float] | None:
        """The loss of single samples under the frozen weights of a checkpoint; None when the target cannot tell."""
