"""Losses, seen as the roots of each backward call; skipped updates; and the clock of programs without an optimizer.

torch has no hook for the start of a backward call or for an update that GradScaler leaves out, so
`torch.autograd.backward`, `torch.autograd.grad` and `GradScaler.step` are wrapped. The wrappers pass arguments,
results and exceptions through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from detaudit.capture.hooks import OptimizerHooks, in_backward, out_of_sight
from detaudit.capture.leaves import flatten
from detaudit.capture.naming import variable_name
from detaudit.capture.patch import Patches
from detaudit.capture.recorder import Recorder, event
from detaudit.core.model import StepKind

MAX_GRAPH_NODES = 20_000
"""Nodes looked at when the leaf tensors of a program without optimizer are sought."""


class BackwardWatch:
    """Wraps the entry points of autograd and GradScaler."""

    def __init__(self, recorder: Recorder, optimizers: OptimizerHooks) -> None:
        self.recorder = recorder
        self._optimizers = optimizers
        self._patches = Patches()
        self._patches.wrap(torch.autograd, "backward", self._backward)
        self._patches.wrap(torch.autograd, "grad", self._grad)
        self._patches.wrap(torch.amp.GradScaler, "step", self._scaler_step)

    def remove(self) -> None:
        self._patches.remove()

    def _backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if out_of_sight() or in_backward():
            return original(*args, **kwargs)
        roots = args[0] if args else kwargs.get("tensors")
        free = self._seen(roots)
        result = original(*args, **kwargs)
        self._done(free)
        return result

    def _grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if out_of_sight() or in_backward():
            return original(*args, **kwargs)
        self._seen(args[0] if args else kwargs.get("outputs"))
        result = original(*args, **kwargs)
        self._gradients_of_call(result)
        self._done([])
        return result

    @event
    def _seen(self, roots: Any) -> list[tuple[str, torch.Tensor]]:
        """Digest the roots. Without an optimizer, also find the leaf tensors whose gradients the call will fill."""
        tensors = _as_tensors(roots)
        for tensor in tensors:
            self.recorder.add("loss", tensor)
            self._check_finite(tensor)
        return [] if self.recorder.optimizer_made else list(self._leaf_tensors(tensors))

    def _check_finite(self, tensor: torch.Tensor) -> None:
        with torch.no_grad():
            value = tensor.detach()
            if not bool(torch.isfinite(value).all()):
                self.recorder.nonfinite("loss", "NaN" if bool(torch.isnan(value).any()) else "Inf")

    def _leaf_tensors(self, roots: Sequence[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        self.recorder.introduce_visible()
        for index, tensor in enumerate(_accumulators(roots)):
            names = self.recorder.roots.names(tensor)
            yield (names[0] if names else variable_name(tensor) or f"leaf[{index}]"), tensor

    @event
    def _gradients_of_call(self, gradients: Any) -> None:
        for name, value in flatten(gradients, "grad.call"):
            if value is not None:
                self.recorder.add(name, value)

    @event
    def _done(self, free: list[tuple[str, torch.Tensor]] | None) -> None:
        """After a backward call: in a program without optimizer it closes the step."""
        recorder = self.recorder
        if recorder.optimizer_made or recorder.marked_by_user:
            return
        filled = [(name, tensor) for name, tensor in free or [] if tensor.grad is not None]
        for name, tensor in filled:
            recorder.add(f"grad.{name}", tensor.grad)
        recorder.add_group("param.free", [(f"param.{name}", tensor) for name, tensor in free or []])
        recorder.close_step(StepKind.BACKWARD)

    def _scaler_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        scaler, optimizer = args[0], args[1] if len(args) > 1 else kwargs["optimizer"]
        before = self.recorder.updates
        self._scaler_state(scaler)
        result = original(*args, **kwargs)
        if self.recorder.updates == before:
            self._optimizers.skipped(optimizer)
        return result

    @event
    def _scaler_state(self, scaler: torch.amp.GradScaler) -> None:
        label = self.recorder.namer.name(scaler)
        for key in ("_scale", "_growth_tracker"):
            value = getattr(scaler, key, None)
            if value is not None:
                self.recorder.add(f"optim.{label}.{key.removeprefix('_')}", value)


def _as_tensors(roots: Any) -> list[torch.Tensor]:
    if isinstance(roots, torch.Tensor):
        return [roots]
    if isinstance(roots, (list, tuple)):
        return [root for root in roots if isinstance(root, torch.Tensor)]
    return []


def _accumulators(roots: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The leaf tensors that a backward call accumulates into, in the order of a depth-first walk of the graph."""
    seen: set[Any] = set()
    stack = [root.grad_fn for root in reversed(roots) if root.grad_fn is not None]
    while stack and len(seen) < MAX_GRAPH_NODES:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable
        stack.extend(inner for inner, _ in reversed(node.next_functions) if inner is not None and inner not in seen)
