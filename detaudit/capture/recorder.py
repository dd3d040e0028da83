"""The recorder of one process: gathers leaves into steps and writes the trail.

Events come from `hooks`, `backward` and `loader`; each adds leaves to the step under way. A step is closed by an
optimizer's update, by a skipped update, by a backward call where there is no optimizer, or by the user
(`audit.step()`). The trail file is opened when the first step closes, so launchers, data workers and scripts that
never train leave none.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from detaudit.capture import environment, rng
from detaudit.capture.buffer import Entry, StepBuffer
from detaudit.capture.host_generators import HostGenerator
from detaudit.capture.leaves import Group, Roots
from detaudit.capture.naming import Namer
from detaudit.core.env import Settings
from detaudit.core.model import Layout, Leaf, StepKind
from detaudit.core.names import Selection
from detaudit.digest.paths import choices, leaf_stats
from detaudit.digest.select import digest_leaf
from detaudit.digest.stats import EMPTY
from detaudit.trail.writer import TrailWriter

F = TypeVar("F", bound=Callable[..., Any])


class Observer(Protocol):
    """Follows a recording: the operator trace of a drill-down. Called under the recorder's lock."""

    def on_step(self, step: int) -> None:
        """The step before `step` has been closed."""

    def on_leaf(self, name: str, tensor: torch.Tensor, digest: int) -> None:
        """A tensor has been digested as the leaf `name` (without its occurrence)."""

    def on_end(self) -> None:
        """The trail is being closed."""

    def on_fork(self) -> None:
        """This process is a forked child, whose steps are not followed."""


real_exit = os._exit
"""Kept before anything can wrap it."""


class Sink(Protocol):
    """Takes the values of leaves at the moment they are digested: a dump. `name` comes without occurrence."""

    def take(self, step: int, name: str, value: object, /) -> None: ...

    def close(self, outcome: str, trained: bool, /) -> None: ...

    def after_fork(self) -> None: ...


class Recorder:
    """All state of the recording in one process. Public methods are events; each takes the lock."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.selection = Selection.parse(settings.leaves)
        self.lock = threading.RLock()
        self.namer = Namer()
        self.roots = Roots(self.namer)
        self.generators: list[HostGenerator] = []
        self.optimizer_made = False
        self.marked_by_user = False
        self.updates = 0
        self.stopped = ""
        self.seconds = 0.0
        self.sink: Sink | None = None
        self.observers: list[Observer] = []
        self.module_path: Callable[[], str] = str
        """The path of the module that the calling thread is inside of; empty outside of any."""
        self.at_work: int | None = None
        """The thread in which an event is being handled: what torch does there is not the user's."""
        self._forget()

    def _forget(self) -> None:
        """The state that a forked child does not share with its parent."""
        self.step = 0
        self._in_tail = False
        self.buffer = StepBuffer()
        self._groups: dict[str, Group] = {}
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self._writer: TrailWriter | None = None
        self._notes: list[tuple[str, dict[str, object]]] = []
        self._noted: set[str] = set()
        self._pid = os.getpid()

    @property
    def live(self) -> bool:
        """Whether the step under way is recorded (`--every K`) and recording still works."""
        return not self.stopped and (self._in_tail or self.step % self.settings.every == 0)

    def add(self, name: str, value: object) -> None:
        """Digest a value now and append it to the step."""
        if self.live and not self.selection.excludes(name):
            self.add_entry(self.digest(name, value), value)

    def digest(self, name: str, value: object) -> Entry:
        """The entry of a value as it is now, to be appended here or later."""
        self.offer(name, value)
        return Entry(name, digest_leaf(value), leaf_stats(value) if self.settings.stats else EMPTY)

    def offer(self, name: str, value: object) -> None:
        """Show the sink, where there is one, a value that is digested now."""
        if self.sink is not None:
            self.sink.take(self.step, name, value)

    def add_entry(self, entry: Entry, value: object = None) -> None:
        """Append an entry taken before, of `value` where that is a tensor."""
        if self.live and not self.selection.excludes(entry.name):
            self._begin()
            self.buffer.add(entry)
            self._show(entry, value)

    def _show(self, entry: Entry, value: object) -> None:
        if self.observers and isinstance(value, torch.Tensor):
            for observer in self.observers:
                observer.on_leaf(entry.name, value, entry.found.digest)

    def introduce(self, module: nn.Module) -> str:
        """Make a module a root, with its state as first seen (`init.*`); returns its label."""
        known = self.roots.path(module)
        if known:
            return known
        label = self.roots.register(module)
        for kind, tensors in (("param", module.parameters()), ("buffer", module.buffers())):
            for tensor in tensors:
                name = self.roots.names(tensor)[0]
                if name.startswith(f"{label}."):  # not what a root seen before holds too
                    self.add(f"init.{kind}.{name}", tensor)
        return label

    def introduce_visible(self) -> None:
        """Introduce every module that the user's frames name."""
        for module in self.roots.unseen_modules():
            self.introduce(module)

    def add_group(self, key: str, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Digest many tensors at once. `key` names the group, so that views are kept from step to step."""
        if not self.live:
            return
        chosen = [(name, tensor) for name, tensor in named if not self.selection.excludes(name)]
        if not chosen:
            return
        self._begin()
        group = self._groups.setdefault(key, Group())
        digests = group.digests([name for name, _ in chosen], [tensor for _, tensor in chosen])
        with_stats, followed = self.settings.stats, self.sink is not None or bool(self.observers)
        for (name, tensor), found in zip(chosen, digests, strict=True):
            stats = leaf_stats(tensor) if with_stats else EMPTY
            entry = Entry(name, found, stats, tuple(self.roots.names(tensor)[1:]))
            if followed:
                self.offer(name, tensor)
            self.buffer.add(entry)
            if followed:
                self._show(entry, tensor)

    def close_step(self, kind: StepKind, optimizer: str = "") -> None:
        """End the step under way; written unless `--every` leaves it out."""
        if self.live:
            self._begin()
            self._add_generators("end", head=False)
            self._write_step(kind, optimizer)
        self.step += 1
        for observer in self.observers:
            observer.on_step(self.step)
        if self.settings.steps and self.step >= self.settings.steps:
            self._stop_run()

    def nonfinite(self, leaf: str, what: str) -> None:
        """Note the first step at which a leaf is NaN or Inf."""
        self.note_once(f"nonfinite {leaf}", "nonfinite", leaf=leaf, what=what, step=self.step)

    def note_once(self, key: str, kind: str, **fields: object) -> None:
        if key not in self._noted:
            self._noted.add(key)
            self._notes.append((kind, fields))

    def finish(self, outcome: str) -> None:
        """Close the trail: the tail, the warnings, the end note. A process that closed no step leaves no trail."""
        with self.lock:
            if self._writer is None or self._pid != os.getpid():
                if self.sink is not None and self._pid == os.getpid():
                    self.sink.close(outcome, False)
                return
            self.at_work = threading.get_ident()
            if not self.stopped:
                self._guarded_tail()
            for observer in self.observers:
                observer.on_end()
            self._end(self.stopped or outcome)

    def stop(self, reason: str) -> None:
        """Give up recording and say so; the user's training goes on."""
        self.stopped = reason
        print(f"detaudit: recording stopped: {reason}", file=sys.stderr)

    def after_fork(self) -> None:
        """In a forked child: a new lock, no trail, no steps. The parent's file is not the child's to write."""
        self.lock = threading.RLock()
        environment.FAMILY.after_fork()
        for observer in self.observers:
            observer.on_fork()
        self.observers = []
        if self._writer is not None:
            self._writer.close()
        if self.sink is not None:
            self.sink.after_fork()
        self._forget()

    def _begin(self) -> None:
        """At the first event of a step: the generators as the step found them."""
        if self.buffer.empty:
            self._add_generators("", head=True)

    def _add_generators(self, when: str, head: bool) -> None:
        suffix = f".{when}" if when else ""
        for name, digest in rng.generator_leaves(self.generators):
            if not self.selection.excludes(name + suffix):
                self.buffer.add(Entry(name + suffix, digest, EMPTY), head=head)

    def _write_step(self, kind: StepKind, optimizer: str) -> None:
        leaves, digests, stats = self.buffer.close()
        layout = self._layout(leaves, kind, optimizer)
        if self._writer is None:
            directory = Path(self.settings.directory)
            self._writer = TrailWriter(
                directory / f"{environment.FAMILY.process_name()}.trail", environment.manifest(self.settings)
            )
        for choice in choices():
            why = {"why": choice.why} if choice.why else {}
            self.note_once(f"digest {choice.device}", "digest", device=choice.device, path=choice.path, **why)
        for note, fields in self._notes:
            self._writer.note(note, **fields)
        self._notes.clear()
        self._writer.step(self.step, layout, digests, stats if self.settings.stats else ())

    def _layout(self, leaves: Sequence[Leaf], kind: StepKind, optimizer: str) -> Layout:
        """The one Layout object of these leaves; leaves are interned by the buffer, so identity is enough."""
        key = (kind, optimizer, *map(id, leaves))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout(tuple(leaves), kind, optimizer)
        return layout

    def _guarded_tail(self) -> None:
        try:
            self._tail()
        except Exception as error:
            self.stop(self._explain(error))

    def _tail(self) -> None:
        self._in_tail = True
        self._begin()
        for label, module in self.roots.alive():
            self.add_group(f"tail.{label}", [(f"param.{n}", p) for p in module.parameters() for n in self._own(p)])
            self.add_group(f"tailb.{label}", [(f"buffer.{n}", b) for b in module.buffers() for n in self._own(b)])
        self._add_generators("end", head=False)
        for generator in self.generators:
            if generator.consumed_unseeded:
                text = f"the {generator.name} generator was used but never seeded; it alone decides no verdict"
                self.note_once(f"unseeded {generator.name}", "warning", text=text)
        self._write_step(StepKind.TAIL, "")

    def _own(self, tensor: torch.Tensor) -> Iterable[str]:
        return self.roots.names(tensor)[:1]

    def _end(self, outcome: str) -> None:
        writer, self._writer = self._writer, None
        if self.sink is not None:
            self.sink.close(outcome, True)
        if writer is None or writer.closed:
            return
        try:
            writer.note("end", outcome=outcome, steps=self.step)
        except OSError as error:
            self.stop(self._explain(error))
        writer.close()
        sidecar = writer.path.with_suffix(".overhead.json")
        try:
            sidecar.write_text(json.dumps({"seconds": self.seconds, "steps": self.step}) + "\n")
        except OSError:
            pass  # a figure for the report; the trail itself is whole

    def _stop_run(self) -> None:
        self._end(self.stopped or "step limit")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        real_exit(0)

    def _explain(self, error: BaseException) -> str:
        if isinstance(error, OSError):
            return f"error: the trail cannot be written: {error.strerror or error}"
        return f"error: {type(error).__name__}: {error}"

    def failed(self, error: Exception) -> None:
        """A defect of the recorder must not end the user's training; it must end the verdict's being clean."""
        detail = "".join(traceback.format_exception(error))
        try:
            (Path(self.settings.directory) / f"recorder-error-{os.getpid()}.txt").write_text(detail)
        except OSError:
            pass
        self.stop(self._explain(error))


def event(method: F) -> F:
    """Wrap an event of a class with a `recorder`: under the lock, timed, and never raising into the user's program."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder: Recorder = self.recorder
        if recorder.stopped:
            return None
        started = time.perf_counter()
        with recorder.lock:
            outer, recorder.at_work = recorder.at_work, threading.get_ident()
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                recorder.failed(error)
                return None
            finally:
                recorder.at_work = outer
                recorder.seconds += time.perf_counter() - started

    return run  # type: ignore[return-value]
