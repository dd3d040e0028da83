"""Executes steps of a target: pins generators, feeds batches, evaluates, and reads state where a checkpoint is due.

`Execution.run` reads top to bottom. What differs from the recording (batch content, generators at the first training
forward, training loss, leaves of a checkpoint) is gathered as `Mismatch`es in execution order; whether that is an
error is the caller's to say: a counterfactual differs on purpose, an identity replay may not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from detaudit.core.errors import InconclusiveError, UnreadableError, UsageError
from detaudit.trainsect import batches, checkpoint, generators, leaves, target
from detaudit.trainsect.codec import Decoder, owned
from detaudit.trainsect.leaves import first_difference
from detaudit.trainsect.model import Event, MicroBatches, Patch
from detaudit.trainsect.run import RecordedRun, states_of


@dataclass(frozen=True)
class Mismatch:
    """A leaf of a replay that is not what was recorded. `step` is the step before whose update it was seen."""

    step: int
    leaf: str
    expected: str
    found: str


class WrongBatch(InconclusiveError):
    """A fetched batch is not the recorded one; nothing behind it would mean anything."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(
            f"step {mismatch.step}, leaf batch: the fetched content {mismatch.found} is not the recorded "
            f"{mismatch.expected}; the target's fetch() gives other data than the run had"
        )
        self.mismatch = mismatch


@dataclass
class Trace:
    """What an execution has shown so far; copied along with a snapshot."""

    evaluations: dict[int, float] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)

    def copy(self) -> Trace:
        return Trace(
            dict(self.evaluations), dict(self.states), dict(self.losses), list(self.events), list(self.mismatches)
        )


@dataclass(frozen=True)
class Request:
    """One replay as values: what a cache key and a worker are made of."""

    start: int
    stop: int
    substitutions: Mapping[int, MicroBatches] = field(default_factory=dict)
    evaluate_at: tuple[int, ...] = ()
    patch: Patch | None = None
    seed: int | None = None


class Execution:
    """A target with a run behind it. `identity` also compares training losses and generators with the recording."""

    def __init__(self, run: RecordedRun, built: Any, identity: bool = False) -> None:
        self.run_record, self.target, self.identity = run, built, identity
        self.declared = target.declared(built)
        self.trace = Trace()
        self.after_step: Callable[[int], None] = lambda step: None
        self._checkpoints: dict[int, checkpoint.Encoded] = {}
        self._updates = 0

    def checkpoint_of(self, step: int) -> checkpoint.Encoded:
        """The checkpoint of a step, read and checked once."""
        if step not in self._checkpoints:
            entry = self.run_record.checkpoints.get(step)
            if entry is None:
                known = ", ".join(map(str, sorted(self.run_record.checkpoints))) or "none"
                raise UsageError(f"there is no checkpoint of step {step}; there are {known}")
            self._checkpoints[step] = checkpoint.read(entry)
        return self._checkpoints[step]

    def begin(self, step: int) -> None:
        """Load a checkpoint and forget what was shown."""
        target.load(self.target, self.checkpoint_of(step), f"the checkpoint of step {step}")
        self.trace = Trace()

    def restore(self, saved: checkpoint.Encoded, trace: Trace) -> None:
        """Continue from a snapshot of another replay with the same prefix."""
        target.load(self.target, saved, "a snapshot")
        self.trace = trace.copy()

    def steps(self, first: int, stop: int, request: Request) -> None:
        """Execute the updates [first, stop)."""
        handles = [o.register_step_post_hook(self._updated) for o in self._optimizers()]
        try:
            for step in range(first, stop):
                self._step(step, request)
        finally:
            for handle in handles:
                handle.remove()

    def finish(self, request: Request) -> Trace:
        """What is due at the end: patch, evaluation, state."""
        self._arrive(request.stop, request)
        self._read_state(request.stop, with_gradients=False)
        return self.trace

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [v for v in self.target.state().values() if isinstance(v, torch.optim.Optimizer)]

    def _updated(self, *_: Any) -> None:
        self._updates += 1

    def _arrive(self, step: int, request: Request) -> None:
        if request.patch is not None and request.patch.at == step:
            self._patch(request.patch)
        if step in request.evaluate_at:
            generators.pin_seed(0, step)
            self.trace.evaluations[step] = float(self.target.evaluate(step))

    def _patch(self, patch: Patch) -> None:
        here, there = target.take(self.target), self.checkpoint_of(patch.source)
        names = [n for n in here.leaves if any(fnmatchcase(n, glob) for glob in patch.leaves)]
        if not names:
            raise UsageError(f"no leaf of the state matches {', '.join(patch.leaves)}")
        node, tensors = graft(here, there, names)
        state = checkpoint.Encoded(node, tensors, leaves.leaves(node, tensors))
        target.load(self.target, state, f"the patch before step {patch.at}")

    def _step(self, step: int, request: Request) -> None:
        self._arrive(step, request)
        micro_batches = self._batches(step, request)
        self._pin(step, request)
        self._updates = 0
        hook = _FirstForward(self, step)
        try:
            loss = self.target.step(micro_batches, step)
        finally:
            hook.remove()
        if not hook.seen:
            self._at_forward(step)
        if loss is not None:
            self.trace.losses[step] = float(loss)
        self._compare_loss(step, request)
        if not self._updates and self._optimizers():
            self.trace.events.append(Event(step, "skipped", "no optimizer updated in this step"))
        if self._updates > len(self._optimizers()):
            raise UsageError(f"step(micro_batches, {step}) made {self._updates} updates; it makes exactly one")
        self.after_step(step)

    def _batches(self, step: int, request: Request) -> list[Any]:
        entry = self.run_record.steps.get(step)
        other = request.substitutions.get(step)
        if other is not None:
            if entry is not None and entry.ids is not None and [*map(len, other)] != [*map(len, entry.ids)]:
                raise UsageError(
                    f"step {step}: a substitute of sizes {[*map(len, other)]} for {[*map(len, entry.ids)]}"
                )
            self._check_pool(step, other)
            return self._fetch(step, other)
        if entry is None:
            raise InconclusiveError(
                f"step {step} is not in the recording; only substituted batches can be replayed there"
            )
        if entry.ids is None:
            found = self._from_tape(step, entry.tape)
        else:
            self._check_pool(step, entry.ids)
            found = self._fetch(step, entry.ids)
        digest = batches.content(found)
        if entry.batch and digest != entry.batch:
            raise WrongBatch(Mismatch(step, "batch", entry.batch, digest))
        return found

    def _check_pool(self, step: int, rows: MicroBatches) -> None:
        pool = self.run_record.pool
        for sample in (i for row in rows for i in row):
            if pool is not None and sample not in pool:
                raise UsageError(f"step {step}: the pool of {len(pool)} samples does not hold id {sample}")

    def _fetch(self, step: int, rows: MicroBatches) -> list[Any]:
        return [self.target.fetch(row, target.sample_rng(step, place)) for place, row in enumerate(rows)]

    def _from_tape(self, step: int, sha: str) -> list[Any]:
        if not sha or self.run_record.tape is None:
            raise InconclusiveError(
                f"step {step} has neither sample ids nor a tape (an IterableDataset?); record it with tape=True"
            )
        return read_tape(self.run_record.tape.get(sha))

    def _pin(self, step: int, request: Request) -> None:
        entry = self.run_record.steps.get(step)
        if request.seed is not None and (entry is None or entry.rng_missing):
            generators.pin_seed(request.seed, step, self.declared)
        else:
            generators.pin(states_of(self.run_record, step), self.declared)

    def _at_forward(self, step: int) -> None:
        """At the first training forward, where the recording read generators and state too."""
        entry = self.run_record.steps.get(step)
        if self.identity and entry is not None:
            for name, data in generators.take(self.declared).items():
                found = generators.sha256(data)
                if name in entry.rng and found != entry.rng[name]:
                    self.trace.mismatches.append(Mismatch(step, f"rng.{name}", entry.rng[name], found))
        self._read_state(step, with_gradients=True)

    def _read_state(self, step: int, with_gradients: bool) -> None:
        if step not in self.run_record.checkpoints:
            return
        found = target.take(self.target, copy=False)
        self.trace.states[step] = found.sha256
        if self.identity:
            expected = self.checkpoint_of(step).leaves
            kept = {n: t for n, t in expected.items() if with_gradients or not checkpoint.is_gradient(n)}
            seen = {n: t for n, t in found.leaves.items() if n in kept or not checkpoint.is_gradient(n)}
            different = first_difference(kept, seen)
            if different is not None:
                self.trace.mismatches.append(Mismatch(step, *different))

    def _compare_loss(self, step: int, request: Request) -> None:
        entry = self.run_record.steps.get(step)
        if not self.identity or entry is None or entry.loss is None or step not in self.trace.losses:
            return
        expected, found = entry.loss.hex(), self.trace.losses[step].hex()
        if expected != found:
            self.trace.mismatches.append(Mismatch(step, "loss", expected, found))


class _FirstForward:
    """Calls the execution at the first training forward of a step, once, and is out of the way then."""

    def __init__(self, execution: Execution, step: int) -> None:
        self.seen = False
        self._execution, self._number = execution, step
        values = execution.target.state().values()
        self._modules = {id(m) for v in values if isinstance(v, nn.Module) for m in v.modules()}
        self._hook: Any = register_module_forward_pre_hook(self._forward)

    def remove(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if id(module) in self._modules and module.training and torch.is_grad_enabled() and not self.seen:
            self.seen = True
            self.remove()
            self._execution._at_forward(self._number)


def graft(here: checkpoint.Encoded, there: checkpoint.Encoded, names: Sequence[str]) -> tuple[Any, list[torch.Tensor]]:
    """The state `here` with the named tensor leaves of the state `there`. Raises UsageError where they do not match."""
    walk = leaves.walk
    other = dict(walk(there.node))
    tensors = [*here.tensors]
    for name, node in walk(here.node):
        if name not in names:
            continue
        source = other.get(name)
        if source is None or not (isinstance(node, list) and node[0] == "tensor"):
            raise UsageError(f"the leaf {name} is no tensor of both states; only tensors are exchanged")
        tensors[node[1]] = owned(there.tensors[source[1]], copy=True)
    return here.node, tensors


def read_tape(data: bytes) -> list[Any]:
    """The micro-batches of a taped step."""
    try:
        node, rows = json.loads(data)
        tensors = []
        for dtype, shape, text in rows:
            raw = torch.frombuffer(bytearray(bytes.fromhex(text)) or bytearray(1), dtype=torch.uint8)
            kind = getattr(torch, dtype.removeprefix("torch."))
            tensors.append(raw.view(kind).reshape(shape) if text else torch.empty(shape, dtype=kind))
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise UnreadableError(f"a taped batch is damaged: {error}") from error
    found = Decoder(tensors).decode(node)
    return list(found)
