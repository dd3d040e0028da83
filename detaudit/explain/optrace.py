"""Traces the operators of a window of steps from inside the user's process.

`attach` puts a `Tracer` beside the recorder. At the close of the step before the window (for step 0: right after torch
is imported) it enters a dispatch mode beneath those of the user; `Tracer.__torch_dispatch__` then sees every operator:
`_before` takes the digests of its inputs, the operator runs, `_after` takes those of its outputs and runs it again
on clones. It leaves at the close of the window's last step, when it is on top of the mode stack; until it is, it looks
the other way.

The user's bits stay as they are: operators run once on the user's tensors, repeats run on clones, no generator is
consumed, nothing is held alive. Under torch.compile a dispatch mode makes the traced steps run eagerly.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from detaudit.capture import environment
from detaudit.capture.patch import Patches
from detaudit.capture.recorder import Recorder
from detaudit.explain import host, rerun, reseeds, tracefile
from detaudit.explain.operands import (
    content,
    generator_state,
    outputs,
    own_generator,
    plain_values,
    read_tensors,
    storage_bytes,
    written_tensors,
)
from detaudit.explain.operators import Operator, describe
from detaudit.explain.sites import Place, Sites
from detaudit.explain.storages import Storages

MAX_CLONE = 2 << 30
"""Bytes that may be cloned to run one operator again; a larger one is traced, not repeated."""

EAGER = "torch.compile was used: the traced steps ran eagerly, operator by operator"


@dataclass
class _Call:
    """What is known of an operator before it runs."""

    operator: Operator
    place: Place
    module: str
    node: str
    inputs: list[tuple[int, int | None, bool]]
    values: list[str]
    generator: str
    own: int
    snapshot: rerun.Snapshot | None
    repeats: bool


class Tracer(TorchDispatchMode):
    """The dispatch mode, and an observer of the recorder. One a process."""

    def __init__(self, recorder: Recorder, window: tuple[int, int], reruns: int) -> None:
        super().__init__()
        self._recorder = recorder
        self._first, self._last = window
        self._reruns = reruns
        self._lock = threading.RLock()
        self._writer = tracefile.TraceWriter(window, reruns)
        self._storages = Storages()
        self._sites = Sites()
        self._numbers: dict[Place, int] = {}
        self._checked: set[str] = set()
        self._tracing = False
        self._ended = False
        self._opened = False
        self._patches = Patches()
        self._patches.wrap(torch, "compile", self._compile)
        reseeds.watch_own(self._patches, self._seeded)
        self._watches: list[Patches] = []

    # The recorder's events.

    def on_step(self, step: int) -> None:
        if step > 0 and not self._opened:
            name = environment.FAMILY.process_name() + tracefile.SUFFIX
            self._writer.open(Path(self._recorder.settings.directory) / name)
            self._opened = True
        if step > self._last:
            self._end()
            self._leave()
        elif step >= self._first:
            self._begin(step)
        self._flush()

    def on_leaf(self, name: str, tensor: torch.Tensor, digest: int) -> None:
        if not self._tracing:
            return
        with self._lock:
            line = {"leaf": name, "storage": self._storages.number(tensor), "digest": f"{digest:016x}"}
            if self._storages.is_unwritten(tensor):
                line["unwritten"] = 1
            self._writer.write(line)

    def on_end(self) -> None:
        self._end()
        self._flush()

    def on_fork(self) -> None:
        self._tracing, self._ended = False, True
        self._lock = threading.RLock()

    # Entering and leaving.

    def _begin(self, step: int) -> None:
        if not self._tracing and not self._ended:
            if step > 0:
                self._writer.write({"old": self._storages.seen_before()})
            self._watches = [reseeds.watch(self._seeded), host.watch(self._host_made, self._host_read)]
            self._enter()
            self._tracing = True
        self._writer.write({"step": step})

    def _enter(self) -> None:
        """Push the mode beneath the user's own: he pops his in the order in which he pushed them."""
        above = _get_current_dispatch_mode_stack()
        for _ in above:
            _pop_mode()
        self.__enter__()
        for mode in above:
            _push_mode(mode)

    def _leave(self) -> None:
        height = torch._C._len_torch_dispatch_stack()
        if height and torch._C._get_dispatch_stack_at(height - 1) is self:
            self.__exit__(None, None, None)

    def _end(self) -> None:
        if not self._tracing:
            return
        self._tracing, self._ended = False, True
        for patches in self._watches:
            patches.remove()
        if self._writer.full:
            self._note(f"the trace is cut after {self._writer.LIMIT} lines of one step")
        self._writer.write({"end": 1})

    def _flush(self) -> None:
        try:
            self._writer.flush()
        except OSError as error:
            self._tracing, self._ended = False, True
            (Path(self._recorder.settings.directory) / "trace-error.txt").write_text(f"{error}\n")

    def _note(self, text: str) -> None:
        self._writer.write({"note": text})

    def _compile(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._note(EAGER)
        return original(*args, **kwargs)

    def _seeded(self, function: str, value: str, own: int = 0) -> None:
        if self._tracing and self._recorder.at_work != threading.get_ident():
            with self._lock:
                line = {"seed": function, "value": value, "site": self._number(self._sites.here()[0])}
                self._writer.write({**line, "own": own} if own else line)

    def _host_made(self, name: str, tensor: torch.Tensor) -> None:
        self._guarded(self._host, name, "outs", tensor)

    def _host_read(self, name: str, tensor: torch.Tensor) -> None:
        self._guarded(self._host, name, "ins", tensor)

    def _host(self, name: str, side: str, tensor: torch.Tensor) -> None:
        if not self._tracing or self._recorder.at_work == threading.get_ident():
            return
        with torch._C._DisableTorchDispatch(), self._lock:  # type: ignore[attr-defined]
            row = [self._storages.number(tensor), _hex(content(tensor))]
            site = self._number(self._sites.here()[0])
            self._writer.write({"op": tracefile.HOST + name, "site": site, side: [row]})

    # The operators.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._tracing or self._recorder.at_work == threading.get_ident():
            return func(*args, **kwargs)
        call = self._guarded(self._before, func, args, kwargs)
        result = func(*args, **kwargs)
        if call is not None:
            self._guarded(self._after, func, args, kwargs, call, result)
        return result

    def _guarded(self, part: Any, *arguments: Any) -> Any:
        """A defect of the tracer must not end the user's training; it must end the trace's being trusted."""
        try:
            return part(*arguments)
        except Exception as error:
            with self._lock:
                self._note(f"the tracer failed at {arguments[0]}: {type(error).__name__}: {error}")
                self._tracing, self._ended = False, True
            return None

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        operator = describe(func)
        place, module, node = self._origin()
        if operator.view:
            return None
        read = list(read_tensors(operator, args, kwargs))
        written = list(written_tensors(operator, args, kwargs))
        with self._lock:
            inputs = [(self._storages.number(t), content(t), self._storages.is_unwritten(t)) for t in read]
        repeats = bool(self._reruns) and operator.rerun and rerun.can_rerun([*read, *written])
        repeats = repeats and _clonable(written)
        return _Call(
            operator=operator,
            place=place,
            module=module,
            node=node,
            inputs=inputs,
            values=list(plain_values(args, kwargs)),
            generator=generator_state(args, kwargs) if operator.random else "",
            own=own_generator(args, kwargs) if operator.random else 0,
            snapshot=rerun.Snapshot(written) if repeats and written else None,
            repeats=repeats,
        )

    def _origin(self) -> tuple[Place, str, str]:
        """(place, module, backward node) of the operator about to run."""
        node = torch._C._current_autograd_node()
        module = self._recorder.module_path()
        place, crossed = self._sites.here()
        own = isinstance(node, torch.autograd.function.BackwardCFunction) and not self._sites.recomputing()
        if node is not None and (crossed or own):
            # Not when the user's code is called from inside the engine: a recomputed forward, a hook on a gradient.
            origin = self._sites.origin(node)
            return (*(origin or (place, module)), node.name())
        with self._lock:
            self._sites.forward(place, module)
        return place, module, ""

    def _after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: _Call, result: Any) -> None:
        operator = call.operator
        found = outputs(operator, result, args, kwargs)
        outcome = [None] * len(found) if operator.allocates else [content(tensor) for tensor in found]
        repeated = self._repeated(func, args, kwargs, call, outcome) if call.repeats else None
        with self._lock:
            for tensor in found:
                (self._storages.allocated if operator.allocates else self._storages.written)(tensor)
            numbers = [self._storages.number(tensor) for tensor in found]
            if operator.reads_out:
                call.values.append(repr(result))
            self._write(call, list(zip(numbers, outcome, strict=True)), repeated)

    def _repeated(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: _Call, outcome: list[int | None]
    ) -> tuple[int, int, int] | None:
        operator = call.operator
        first_time = operator.name not in self._checked
        if first_time and not self._keeps_inputs(args, kwargs, call):
            operator.rerun = False
            return None
        state = torch.default_generator.get_state() if first_time else None

        def digests(result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int | None]:
            return [content(tensor) for tensor in outputs(operator, result, args, kwargs)]

        times = max(self._reruns, rerun.PATIENCE) if operator.suspect else self._reruns
        found = rerun.repeat(func, args, kwargs, call.snapshot, outcome, digests, times)
        if state is not None:
            self._checked.add(operator.name)
            if not torch.equal(state, torch.default_generator.get_state()):
                torch.default_generator.set_state(state)
                operator.rerun = False
                return None
        return found

    def _keeps_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], call: _Call) -> bool:
        """Whether the operator left alone what its schema says it only reads; asked once for each overload."""
        written = {tensor.untyped_storage()._cdata for tensor in written_tensors(call.operator, args, kwargs)}
        for tensor, (_, before, _) in zip(read_tensors(call.operator, args, kwargs), call.inputs, strict=True):
            shared = tensor.layout is torch.strided and tensor.untyped_storage()._cdata in written
            if not shared and content(tensor) != before:
                return False
        return True

    def _write(self, call: _Call, outs: list[tuple[int, int | None]], repeated: tuple[int, int, int] | None) -> None:
        line: dict[str, Any] = {"op": call.operator.name, "site": self._number(call.place)}
        optional = {
            "module": call.module,
            "ins": [
                [number, _hex(digest), 1] if raw else [number, _hex(digest)] for number, digest, raw in call.inputs
            ],
            "outs": [[number, _hex(digest)] for number, digest in outs],
            "values": call.values,
            "node": call.node,
            "random": call.generator,
            "own": call.own,
            "rerun": repeated,
            "alloc": int(call.operator.allocates),
        }
        self._writer.write({**line, **{key: value for key, value in optional.items() if value}})

    def _number(self, place: Place) -> int:
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = len(self._numbers)
            file = os.path.abspath(place[0]) if place[0] else ""
            self._writer.write({"site": number, "file": file, "line": place[1] or None, "in": place[2]})
        return number


def attach(recorder: Recorder) -> None:
    """Trace the window that the recorder's settings name; the recorder has taken no step yet."""
    window = recorder.settings.trace
    if window is None:
        return
    tracer = Tracer(recorder, window, recorder.settings.trace_reruns)
    recorder.observers.append(tracer)
    tracer.on_step(0)


def _clonable(tensors: list[torch.Tensor]) -> bool:
    sizes = [storage_bytes(tensor) for tensor in tensors]
    return None not in sizes and sum(size or 0 for size in sizes) <= MAX_CLONE


def _hex(digest: int | None) -> str | None:
    return None if digest is None else f"{digest:016x}"
