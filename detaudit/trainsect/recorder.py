"""The recorder of a training run: `start_recording`, `record` after each update, `record_eval`, `stop_recording`.

At a step's first training forward (gradients enabled, a module of the recorded model in training mode) the generators
are read and, when one is due, a checkpoint is written: the state before the update. `record()` closes the step. The
hook is global, not the model's own, and is out while the forward runs, so no fast path of torch is switched off.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from detaudit.capture import environment
from detaudit.core import env
from detaudit.core.errors import InconclusiveError, UsageError
from detaudit.trainsect import batches, checkpoint, generators, state
from detaudit.trainsect.chainlog import ChainWriter, spell_loss
from detaudit.trainsect.codec import Encoder, dumps
from detaudit.trainsect.pack import PackWriter

SCHEMA = "detaudit.trainsect.run/1"
RNG_BUDGET = 16_384
LOG, EVALUATIONS, RNG_PACK, TAPE_PACK, SETTINGS = "log.jsonl", "evaluations.jsonl", "rng.pack", "tape.pack", "run.json"
DISTRIBUTED = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True)
class Options:
    """How a run is recorded. `every` is the distance of checkpoints in steps; `shards` maps ids to shards (see
    `run.ShardMap`); `rng_budget` bounds the generator bytes that one step may add; `tape` keeps whole batches."""

    every: int = 40
    pool: int | None = None
    shards: Mapping[str, Any] | None = None
    rng_budget: int = RNG_BUDGET
    tape: bool = False
    command: tuple[str, ...] = ()
    first_step: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


class Recording:
    """One run being recorded. Raises UsageError for misuse; a full disk is told by a warning and in the log, and never
    ends the training."""

    def __init__(
        self, directory: Path, objects: Mapping[str, Any], options: Options, tap: batches.LoaderTap | None = None
    ) -> None:
        refuse_distributed(objects)
        if options.every < 1:
            raise UsageError(f"every={options.every}: checkpoints are at least one step apart")
        self.directory, self.objects, self.options = directory, dict(objects), options
        self._generators = {n: v for n, v in objects.items() if isinstance(v, generators.DECLARABLE)}
        directory.mkdir(parents=True, exist_ok=True)
        self._log = ChainWriter(directory / LOG)
        self._evaluations = ChainWriter(directory / EVALUATIONS)
        self._rng, self._tape = PackWriter(directory / RNG_PACK), PackWriter(directory / TAPE_PACK)
        self.step = options.first_step
        self._flags: dict[str, object] = {}
        self._taken: dict[str, str] | None = None
        self._missing, self._late, self._updates = "", "no training forward of the model was seen", 0
        self._modules = {id(m) for v in objects.values() if isinstance(v, nn.Module) for m in v.modules()}
        self._models = [v for v in objects.values() if isinstance(v, nn.Module)]
        self._optimizers = [v for v in objects.values() if isinstance(v, torch.optim.Optimizer)]
        self._handles = [o.register_step_post_hook(self._updated) for o in self._optimizers]
        checkpoint.encode(state.take(self.objects), copy=False)  # refuses now what no checkpoint could hold
        self._write_settings()
        self._hook: Any = None
        self.before_step: Callable[[int], None] = lambda step: None
        self.tap = tap or batches.LoaderTap(self.training)
        self._arm()

    def _write_settings(self) -> None:
        manifest = environment.manifest(env.Settings(str(self.directory)))
        value = {
            "schema": SCHEMA,
            "manifest": {"decisive": dict(manifest.decisive), "context": dict(manifest.context)},
            "state": sorted(self.objects),
            "threads": torch.get_num_threads(),
            "every": self.options.every,
            "first_step": self.options.first_step,
            "pool": self.options.pool,
            "shards": self.options.shards,
            "command": list(self.options.command),
            "device": sorted({str(p.device) for m in self._models for p in m.parameters()}),
            **self.options.details,
        }
        (self.directory / SETTINGS).write_text(json.dumps(value, indent=1, sort_keys=True, default=str) + "\n", "utf-8")

    def training(self) -> bool:
        """Whether a batch that is delivered now is trained on: gradients enabled, a recorded model in training mode."""
        return torch.is_grad_enabled() and any(model.training for model in self._models)

    def _arm(self) -> None:
        if self._hook is None and self._modules:
            self._hook = register_module_forward_pre_hook(self._forward)

    def _disarm(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if id(module) in self._modules and module.training and torch.is_grad_enabled():
            self.begin_step()

    def _updated(self, *_: Any) -> None:
        self._updates += 1

    def begin_step(self) -> None:
        """Take what the step starts from. Called by the first training forward; call it yourself where the model is
        used by other means than calling a module."""
        if self._taken is not None:
            return
        self._disarm()
        self.before_step(self.step)
        self._log_flags()
        self._taken, self._late = self._store_rng(), ""
        if self.step % self.options.every == 0:
            self.write_checkpoint()

    def _store_rng(self) -> dict[str, str]:
        states = generators.take(self._generators)
        named = {name: (generators.sha256(data), data) for name, data in states.items()}
        new = {sha: data for sha, data in named.values() if sha not in self._rng.known}
        size = sum(map(len, new.values()))
        self._missing = ""
        if size > self.options.rng_budget:
            self._missing = f"{size} bytes of generator states are over the budget of {self.options.rng_budget} a step"
        else:
            for sha, data in new.items():
                self._guarded(lambda sha=sha, data=data: self._put(self._rng, "rng", sha, data))
        return {name: sha for name, (sha, _) in named.items()}

    def _put(self, pack: PackWriter, kind: str, sha: str, data: bytes) -> None:
        if pack.put(sha, data):
            offset, length = pack.known[sha]
            self._log.append(kind, sha256=sha, offset=offset, bytes=length)

    def _log_flags(self) -> None:
        flags = environment._flags() | {"threads": torch.get_num_threads()}
        if flags != self._flags:
            self._flags = flags
            self._guarded(lambda: self._log.append("flags", step=self.step, flags=flags))

    def _guarded(self, write: Any) -> bool:
        try:
            write()
            return True
        except OSError as error:
            self._missing = f"could not be stored: {error.strerror or error}"
            warnings.warn(f"trainsect: step {self.step}: the recording is incomplete: {error}", stacklevel=4)
            return False

    def write_checkpoint(self) -> None:
        """Write the state as the checkpoint of the step under way; earlier ones stay whole when that fails."""
        encoded = checkpoint.encode(state.take(self.objects), copy=False)

        def write() -> None:
            entry = checkpoint.write(self.directory, self.step, encoded)
            name = f"{checkpoint.FOLDER}/{entry.path.name}"
            self._log.append(
                "checkpoint",
                step=self.step,
                file=name,
                sha256=entry.file_sha256,
                state=entry.state_sha256,
                parameters=entry.parameters_sha256,
            )

        if not self._guarded(write):
            self.event("checkpoint failed", "the disk is full or not writable; earlier checkpoints are whole")

    def event(self, kind: str, text: str = "") -> None:
        self._guarded(lambda: self._log.append("event", step=self.step, event=kind, text=text))

    def record(
        self, step: int, batch: Any = None, ids: Any = None, loss: Any = None, skipped: bool | None = None
    ) -> None:
        """Close the step, after its update. See the module function `record`."""
        if step != self.step:
            raise UsageError(f"record(step={step}): steps are recorded in order, the next one is {self.step}")
        delivered = self.tap.taken()
        rows = batches.micro(ids) if ids is not None else _delivered_ids(delivered)
        if rows is not None:
            self._check_pool(rows)
        parts = _parts(batch, rows, delivered)
        if self._late:
            self._missing = self._late
        line = {
            "step": step,
            "ids": rows,
            "batch": batches.content(parts) if parts else "",
            "rng": self._taken or {},
            "rng_missing": self._missing,
            "loss": spell_loss(_number(loss)),
            "skipped": bool(self._optimizers and not self._updates) if skipped is None else skipped,
            "tape": self._store_tape(parts) if parts and self.options.tape else "",
            "loader": {"places": [one.place for one in delivered]} if delivered else {},
        }
        self._guarded(lambda: self._log.append("step", **line))
        self.step, self._taken, self._updates = step + 1, None, 0
        self._late = "no training forward of the model was seen"
        self._arm()

    def _check_pool(self, rows: Iterable[Sequence[int]]) -> None:
        pool = self.options.pool
        strange = [i for row in rows for i in row if pool is not None and not 0 <= i < pool]
        if strange:
            raise UsageError(f"record(step={self.step}): the pool of {pool} samples does not hold id {strange[0]}")

    def _store_tape(self, parts: Sequence[Any]) -> str:
        encoder = Encoder()
        node = encoder.encode(list(parts), f"batch of step {self.step}")
        data = dumps([node, [_raw(tensor) for tensor in encoder.tensors]]).encode()
        sha = generators.sha256(data)
        return sha if self._guarded(lambda: self._put(self._tape, "tape", sha, data)) else ""

    def record_eval(self, step: int, loss: Any, data_digest: str = "") -> None:
        """Record the evaluation loss of the state before update `step`."""
        if loss is None:
            raise UsageError(f"record_eval(step={step}): an evaluation has a loss; got None")
        value = spell_loss(_number(loss))
        self._guarded(lambda: self._evaluations.append("evaluation", step=step, loss=value, data=data_digest))

    def stop(self, outcome: str = "complete") -> None:
        """Write the final state and the end, and take every hook out."""
        if outcome == "complete":
            self._guarded(self.write_checkpoint)
        self._guarded(lambda: self._log.append("end", outcome=outcome, steps=self.step))
        self._disarm()
        self.tap.remove()
        for handle in self._handles:
            handle.remove()
        for writer in (self._log, self._evaluations, self._rng, self._tape):
            writer.close()


def _raw(tensor: torch.Tensor) -> list[Any]:
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return [str(tensor.dtype), list(tensor.shape), data.hex()]


def _delivered_ids(delivered: Sequence[batches.Delivered]) -> Any:
    rows = [one.ids for one in delivered]
    return tuple(rows) if rows and all(row is not None for row in rows) else None


def _parts(batch: Any, rows: Any, delivered: Sequence[batches.Delivered]) -> list[Any]:
    """The micro-batches whose content is digested: what the user gave, else what the loaders delivered."""
    if batch is None:
        return [one.batch for one in delivered]
    if rows is None or len(rows) == 1:
        return [batch]
    if not isinstance(batch, list | tuple) or len(batch) != len(rows):
        raise UsageError(f"record(): {len(rows)} micro-batches of ids, so `batch` is a list of {len(rows)} batches")
    return list(batch)


def _number(loss: Any) -> float | None:
    return None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def refuse_distributed(objects: Mapping[str, Any]) -> None:
    """Raises InconclusiveError for a run that has ranks: one process cannot replay it."""
    for name, value in objects.items():
        found = next((c.__name__ for c in type(value).__mro__ if c.__name__ in DISTRIBUTED), "")
        if found:
            raise InconclusiveError(
                f"{name} is a {found}: distributed runs are not supported, they replay on no one process"
            )
    world = os.environ.get("WORLD_SIZE", "1")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = str(torch.distributed.get_world_size())
    if world not in ("", "1"):
        raise InconclusiveError(
            f"this run has {world} ranks: distributed runs (DDP, FSDP) are not supported by Trainsect"
        )
