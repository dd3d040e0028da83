"""Records a script that knows nothing of it, and runs it again with batches exchanged. Loaded by the injected code.

A step is closed by the update of the one optimizer that trains; the state is the modules that the script's frames
name at the first training forward, its optimizers, schedulers and scalers. With several optimizers the recording ends
and says so: such a script calls `start_recording` itself.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from detaudit.capture import install
from detaudit.capture.naming import visible_modules
from detaudit.capture.patch import Patches
from detaudit.capture.recorder import real_exit
from detaudit.core.env import Settings
from detaudit.core.errors import DetauditError
from detaudit.trainsect import generators
from detaudit.trainsect.batches import LoaderTap
from detaudit.trainsect.recorder import Options, Recording
from detaudit.trainsect.run import RecordedRun, open_run, states_of

ERROR = "trainsect-error.txt"
_attached: ZeroCode | None = None


def attach(settings: Settings) -> bool:
    """Begin in this process. Returns whether the audit's own recorder is wanted beside it."""
    global _attached
    config = json.loads(settings.trainsect)
    if os.environ.get("TRAINSECT_PROCESS", str(os.getpid())) == str(os.getpid()):
        os.environ["TRAINSECT_PROCESS"] = str(os.getpid())  # workers inherit it and stay out of the way
        _attached = ZeroCode(Path(config["out"]), config, Path(settings.directory))
    return bool(config.get("trails"))


class ZeroCode:
    """Everything that is watched in the user's process."""

    def __init__(self, out: Path, config: dict[str, Any], errors: Path) -> None:
        self._out, self._config, self._errors = out, config, errors
        self._recording: Recording | None = None
        self._over = False
        self._losses: list[float] = []
        self._made: dict[str, list[Any]] = {"optimizer": [], "scheduler": [], "scaler": []}
        self._trainer: Any = None
        self._outcome = "complete"
        self._plan = Exchange.parse(config.get("rerun"))
        self.tap = LoaderTap(self._training, self._plan.substitute if self._plan else None)
        self._patches = Patches()
        self._watch()

    def _watch(self) -> None:
        self._patches.wrap(torch.optim.Optimizer, "__init__", self._keep("optimizer"))
        self._patches.wrap(torch.optim.lr_scheduler.LRScheduler, "__init__", self._keep("scheduler"))
        self._patches.wrap(torch.amp.GradScaler, "__init__", self._keep("scaler"))
        self._patches.wrap(torch.amp.GradScaler, "step", self._scaled)
        self._patches.wrap(torch.Tensor, "backward", self._backward)
        self._hook: Any = register_module_forward_pre_hook(self._forward)
        register_optimizer_step_post_hook(self._updated)
        hook = sys.excepthook

        def raised(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._outcome = f"exception {kind.__name__}"
            hook(kind, error, trace)

        sys.excepthook = raised
        atexit.register(self.finish)

    def _keep(self, kind: str) -> Callable[..., Any]:
        def made(original: Callable[..., Any], thing: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(thing is other for other in self._made[kind]):
                self._made[kind].append(thing)
            return original(thing, *args, **kwargs)

        return made

    def _training(self) -> bool:
        return self._recording.training() if self._recording is not None else torch.is_grad_enabled()

    def _forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._recording is None and not self._over and module.training and torch.is_grad_enabled():
            self._hook.remove()
            self._guarded(lambda: self._begin(module))

    def _begin(self, module: nn.Module) -> None:
        del self.tap.pending[:-1]  # only the batch of this forward is trained on
        config = self._config
        pool, shards = config.get("pool"), config.get("shards")
        dataset = self.tap.datasets.get(self.tap.pending[0].place["loader"]) if self.tap.pending else None
        if pool is None and hasattr(dataset, "__len__"):
            pool = len(dataset)  # type: ignore[arg-type]
        bounds = getattr(dataset, "cumulative_sizes", None)
        if shards is None and bounds:
            shards = {"bounds": list(bounds)}
        options = Options(
            every=int(config.get("every", 40)),
            pool=pool,
            shards=shards,
            tape=bool(config.get("tape")),
            command=tuple(config.get("command", ())),
            details={"zero_code": True},
        )
        self._recording = Recording(self._out, self._objects(module), options, self.tap)
        self._recording.before_step = self._before_step
        self._recording.begin_step()

    def _objects(self, module: nn.Module) -> dict[str, Any]:
        found = [(name, m) for name, m in visible_modules() if not _inside(m, [x for _, x in visible_modules()])]
        if not any(module is inner for _, m in found for inner in m.modules()):
            found.insert(0, ("model", module))
        models = dict(found) if len(found) > 1 else {"model": found[0][1]}
        for kind, things in self._made.items():
            for place, thing in enumerate(things):
                models[kind if len(things) == 1 else f"{kind}{place}"] = thing
        return models

    def _before_step(self, step: int) -> None:
        if self._plan is None:
            return
        if self._plan.stop is not None and step >= self._plan.stop:
            self.finish()
            install.uninstall("complete")
            _flush_everything()
            real_exit(0)
        self._plan.pin(step)

    def _backward(self, original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() == 1 and self._recording is not None and not self._over:
            self._losses.append(float(tensor.detach()))
        return original(tensor, *args, **kwargs)

    def _updated(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._recording is None or self._over:
            return
        if self._trainer is not None and self._trainer is not optimizer:
            self._stop("several optimizers update in turn; call start_recording() and record() in the script")
            return
        self._trainer = optimizer
        self._close(False)

    def _scaled(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        before = self._recording.step if self._recording is not None else -1
        result = original(scaler, *args, **kwargs)
        if self._recording is not None and not self._over and self._recording.step == before:
            self._close(True)
        return result

    def _close(self, skipped: bool) -> None:
        recording, losses = self._recording, self._losses
        self._losses = []
        loss = sum(losses) if losses else None
        if recording is not None:
            self._guarded(lambda: recording.record(recording.step, loss=loss, skipped=skipped))

    def _guarded(self, action: Callable[[], None]) -> None:
        """A defect of the recording ends the recording, never the user's training."""
        try:
            action()
        except (DetauditError, OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            self._stop(f"{type(error).__name__}: {error}")

    def _stop(self, reason: str) -> None:
        self._over = True
        (self._errors / ERROR).write_text(reason + "\n", "utf-8")
        print(f"trainsect: recording stopped: {reason}", file=sys.stderr)
        if self._recording is not None:
            self._recording.stop(reason)

    def finish(self) -> None:
        """The end of the process, or of the steps that were asked for."""
        if self._recording is not None and not self._over:
            self._over = True
            self._recording.stop(self._outcome)


def _inside(module: nn.Module, others: list[nn.Module]) -> bool:
    return any(module is inner for other in others if other is not module for inner in other.modules())


def _flush_everything() -> None:
    """What the interpreter's own end would flush: files that the user still holds open."""
    for thing in gc.get_objects():
        if isinstance(thing, io.IOBase):
            try:
                thing.flush()
            except (ValueError, OSError):
                continue


class Exchange:
    """The batches to exchange in a re-execution, by the place at which their loader drew them."""

    def __init__(self, run: RecordedRun, rows: dict[int, list[list[int]]], stop: int | None) -> None:
        self._run, self.stop = run, stop
        self._first = min(rows, default=None)
        self._places: dict[tuple[int, int, int], list[int]] = {}
        for step, micro_batches in rows.items():
            places = run.steps[step].loader["places"]
            for place, ids in zip(places, micro_batches, strict=True):
                self._places[place["loader"], place["epoch"], place["position"]] = ids

    @classmethod
    def parse(cls, value: dict[str, Any] | None) -> Exchange | None:
        if value is None:
            return None
        rows = {int(step): ids for step, ids in value["substitutions"].items()}
        return cls(open_run(value["run"]), rows, value.get("stop"))

    def substitute(self, loader: int, epoch: int, position: int, drawn: Any) -> Any:
        return self._places.get((loader, epoch, position), drawn)

    def pin(self, step: int) -> None:
        """From the first exchanged step on, both arms draw the same numbers."""
        if self._first is not None and step >= self._first:
            generators.pin(states_of(self._run, step))
