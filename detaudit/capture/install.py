"""Puts the recorder into a process and takes it out again. One recorder a process."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import warnings
from types import TracebackType
from typing import Any

from detaudit.capture import environment
from detaudit.capture.backward import BackwardWatch
from detaudit.capture.hooks import ModuleHooks, OptimizerHooks
from detaudit.capture.host_generators import HostGenerator
from detaudit.capture.loader import LoaderWatch
from detaudit.capture.patch import Patches
from detaudit.capture.recorder import Recorder
from detaudit.core.env import Settings
from detaudit.core.errors import UsageError

SINK = "detaudit.dump.gate"
"""Named, not imported: the room lies beside this one, and is loaded only in a run that is dumped."""

_current: Installation | None = None


class Installation:
    """A recorder with all its hooks in place."""

    def __init__(self, settings: Settings, generators: list[HostGenerator]) -> None:
        self.recorder = Recorder(settings)
        self.recorder.generators = generators
        if settings.dump:
            self.recorder.sink = importlib.import_module(SINK).open_sink(settings, environment.FAMILY.process_name)
        modules = ModuleHooks(self.recorder)
        optimizers = OptimizerHooks(self.recorder, modules)
        self._parts = [modules, optimizers, BackwardWatch(self.recorder, optimizers), LoaderWatch(self.recorder)]
        # torch.compile warns that it cannot see global hooks; ours return at once while it traces.
        warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")

    def remove(self) -> None:
        for part in reversed(self._parts):
            part.remove()


def current() -> Recorder | None:
    """The recorder of this process, None when nothing is recorded."""
    return _current.recorder if _current is not None else None


def install(settings: Settings, generators: list[HostGenerator] | None = None) -> Recorder:
    """Start recording in this process. Raises UsageError when it is being recorded already."""
    global _current
    if _current is not None:
        raise UsageError("this process is being recorded already; one recorder a process")
    _current = Installation(settings, generators if generators is not None else [])
    return _current.recorder


def uninstall(outcome: str) -> None:
    """Write the end of the trail and take every hook out."""
    global _current
    if _current is not None:
        _current.recorder.finish(outcome)
        _current.remove()
        for generator in _current.recorder.generators:
            generator.unwatch()
        _current = None


class ProcessEnd:
    """Sees how a process ends, whichever way: falling off the end, an exception, sys.exit, os._exit, a fork."""

    def __init__(self) -> None:
        self._outcome = "complete"
        self._patches = Patches()
        self._excepthook = sys.excepthook

    def watch(self) -> None:
        sys.excepthook = self._raised
        self._patches.wrap(os, "_exit", self._exit)
        atexit.register(self._at_exit)
        os.register_at_fork(before=environment.FAMILY.before_fork, after_in_child=self._forked)

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._outcome = f"exception {kind.__name__}"
        self._excepthook(kind, error, trace)

    def _exit(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        found = current()
        if found is not None:
            found.finish(f"os._exit({', '.join(map(str, args))})")
        return original(*args, **kwargs)

    def _at_exit(self) -> None:
        found = current()
        if found is not None:
            found.finish(self._outcome)

    def _forked(self) -> None:
        found = current()
        if found is not None:
            found.after_fork()
