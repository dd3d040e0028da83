"""Global hooks of torch: modules and optimizers. Every hook returns None; only a wrapped closure returns its value.

No full-backward hooks (they break in-place operations on outputs), no hooks on single modules (they switch the fast
path of TransformerEncoderLayer off), nothing while torch.compile is tracing.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from detaudit.capture.buffer import Entry
from detaudit.capture.leaves import flatten, optimizer_parameters, optimizer_state
from detaudit.capture.recorder import Recorder, event
from detaudit.core.model import StepKind


class _Thread(threading.local):
    """Per thread: the modules being called, and the last output that was digested."""

    def __init__(self) -> None:
        self.stack: list[nn.Module] = []
        self.last: tuple[weakref.ref[torch.Tensor], int, Entry] | None = None


def in_backward() -> bool:
    """Whether the calling thread is inside the autograd engine (recomputation of a checkpoint, a nested backward)."""
    return torch._C._current_graph_task_id() != -1


def out_of_sight() -> bool:
    """Whether tensors have no bytes to read here: torch.compile is tracing, or a torch.func transform is running (a
    batched tensor under vmap). What such a region returns to the program is seen again."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


class ModuleHooks:
    """Inputs of root modules, their state at first sight, and every module's output as it leaves the module."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._thread = _Thread()
        self._activation_gradients = recorder.selection.opts_into("actgrad")
        recorder.module_path = self._path
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, with_kwargs=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def reset_stack(self) -> None:
        """Forget calls that an exception ended; to be called where no module can be running."""
        self._thread.stack.clear()

    def _path(self) -> str:
        stack = self._thread.stack
        return (self.recorder.roots.path(stack[-1]) or type(stack[-1]).__name__) if stack else ""

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if out_of_sight():
            return
        self._enter(module, args)

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if out_of_sight():
            return
        self._leave(module, output)

    @event
    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        stack = self._thread.stack
        if not stack and not in_backward():
            self._root_call(module, args)
        stack.append(module)

    def _root_call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        label = self.recorder.introduce(module)
        for index, value in enumerate(args):
            self._add_all(value, f"input.{label}.{index}")
        for key, value in _keyword_arguments().items():
            self._add_all(value, f"input.{label}.{key}")

    def _add_all(self, value: Any, name: str) -> None:
        for leaf, inner in flatten(value, name):
            self.recorder.add(leaf, inner)

    @event
    def _leave(self, module: nn.Module, output: Any) -> None:
        stack = self._thread.stack
        while stack and stack.pop() is not module:
            pass  # calls that ended by an exception which the program caught
        if not self.recorder.live:
            return
        path = self.recorder.roots.path(module) or type(module).__name__
        kind = "act.recompute" if in_backward() else "act" if torch.is_grad_enabled() else "act.nograd"
        for leaf, value in flatten(output, f"{kind}.{path}"):
            self._add_output(leaf, value)

    def _add_output(self, name: str, value: object) -> None:
        """Digest an output; the very tensor that a child returned a moment ago is not digested again."""
        if not isinstance(value, torch.Tensor) or value.is_inference():
            self.recorder.add(name, value)
            return
        last = self._thread.last
        if last is not None and last[0]() is value and last[1] == value._version:
            entry = Entry(name, last[2].found, last[2].stats)
            if not self.recorder.selection.excludes(name):
                self.recorder.offer(name, value)
        elif self.recorder.selection.excludes(name):
            return
        else:
            entry = self.recorder.digest(name, value)
            self._thread.last = (weakref.ref(value), value._version, entry)
        self.recorder.add_entry(entry, value)
        if self._activation_gradients and value.requires_grad:
            value.register_hook(lambda gradient: self._gradient(name, gradient))

    @event
    def _gradient(self, name: str, gradient: torch.Tensor) -> None:
        self.recorder.add("actgrad" + name.removeprefix("act"), gradient)


def _keyword_arguments() -> dict[str, Any]:
    """The keyword arguments of the module call whose pre-hook is running: torch hands a global pre-hook only the
    positional ones, so they are read from the calling frame."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "inner":
        if frame.f_code.co_name == "_call_impl":
            break
        frame = frame.f_back  # type: ignore[assignment]
    found = frame.f_locals.get("kwargs") if frame is not None else None
    return dict(found) if isinstance(found, dict) else {}


class OptimizerHooks:
    """Gradients before an update; optimizer state, parameters and buffers after it. An update closes a step."""

    def __init__(self, recorder: Recorder, modules: ModuleHooks) -> None:
        self.recorder = recorder
        self._modules = modules
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        self._made = torch.optim.Optimizer.__init__
        torch.optim.Optimizer.__init__ = self._watch_init(self._made)  # type: ignore[method-assign]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        torch.optim.Optimizer.__init__ = self._made  # type: ignore[method-assign]

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        recorder = self.recorder

        def __init__(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            recorder.optimizer_made = True
            original(optimizer, *args, **kwargs)

        __init__.__doc__ = original.__doc__
        return __init__

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            return None
        wrapped = self._with_closure(optimizer, args, kwargs)
        if wrapped is None:
            self._gradients(optimizer)
        return wrapped

    def _with_closure(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The call with its closure wrapped, so that gradients are read after each evaluation; None without one."""
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._wrap(optimizer, kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._wrap(optimizer, args[1]), *args[2:]), kwargs
        return None

    def _wrap(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            result = closure()
            self._gradients(optimizer)
            return result

        return evaluate

    @event
    def _gradients(self, optimizer: torch.optim.Optimizer) -> None:
        self._modules.reset_stack()
        recorder = self.recorder
        if not recorder.namer.known(optimizer):
            recorder.optimizer_made = True
            recorder.introduce_visible()
        label = recorder.namer.name(optimizer)
        if not recorder.live:
            return
        dense, sparse = [], []
        for name, parameter in optimizer_parameters(optimizer, recorder.roots):
            gradient = parameter.grad
            if gradient is not None:
                (dense if gradient.layout is torch.strided else sparse).append((f"grad.{name}", gradient))
        recorder.add_group(f"grad.{label}", dense)
        for name, gradient in sparse:
            recorder.add(name, gradient)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            self._updated(optimizer)

    @event
    def _updated(self, optimizer: torch.optim.Optimizer) -> None:
        self.recorder.updates += 1
        label = self.recorder.namer.name(optimizer)
        self.state_after_update(optimizer, label)
        if not self.recorder.marked_by_user:
            self.recorder.close_step(StepKind.UPDATE, label)

    @event
    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """GradScaler left an update out: the step closes all the same."""
        self._gradients(optimizer)
        label = self.recorder.namer.name(optimizer)
        self.state_after_update(optimizer, label)
        if not self.recorder.marked_by_user:
            self.recorder.close_step(StepKind.SKIPPED, label)

    def state_after_update(self, optimizer: torch.optim.Optimizer, label: str) -> None:
        """Optimizer state, then parameters, then the buffers of all known modules."""
        recorder = self.recorder
        if not recorder.live:
            return
        parameters = optimizer_parameters(optimizer, recorder.roots)
        tensors: list[tuple[str, torch.Tensor]] = []
        for name, value in optimizer_state(label, optimizer, parameters):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                tensors.append((name, value))
            else:
                recorder.add(name, value)
        recorder.add_group(f"optim.{label}", tensors)
        recorder.add_group(f"param.{label}", [(f"param.{name}", parameter) for name, parameter in parameters])
        recorder.add_group(f"other.{label}", list(_untrained(recorder, parameters)))
        recorder.add_group(f"buffer.{label}", list(_buffers(recorder)))


def _buffers(recorder: Recorder) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for _, module in recorder.roots.alive():
        for buffer in module.buffers():
            names = recorder.roots.names(buffer) or recorder.roots.adopt(module, buffer)
            if id(buffer) not in seen and names:
                seen.add(id(buffer))
                yield f"buffer.{names[0]}", buffer


def _untrained(recorder: Recorder, trained: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters of known modules that this optimizer does not train (EMA copies, a frozen teacher, the other network
    of a pair), unless they outweigh what it trains more than twice: a frozen base under an adapter is digested at
    first sight and at exit only."""
    own = {id(parameter) for _, parameter in trained}
    others: dict[int, torch.Tensor] = {}
    for _, module in recorder.roots.alive():
        others.update((id(p), p) for p in module.parameters() if id(p) not in own)
    if sum(p.nbytes for p in others.values()) > 2 * sum(parameter.nbytes for _, parameter in trained):
        return
    for parameter in others.values():
        for name in recorder.roots.names(parameter)[:1]:
            yield f"param.{name}", parameter
