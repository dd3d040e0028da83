"""Waits for torch: hooks go in right after `import torch` has finished, in processes that import it, and only there.

Loads nothing heavy itself: it runs in every Python process of the user's command.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from detaudit.capture import host_generators
from detaudit.capture.toggle import Toggled
from detaudit.core import env

MARKER = "loaded"
TRACER = "detaudit.explain.optrace"
TRAINSECT = "detaudit.trainsect.zerocode"
"""Loaded by name and only when asked for: they lie in rooms above this one."""


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once, right after a module has been executed for the first time."""

    def __init__(self, actions: dict[str, Callable[[], None]]) -> None:
        self._actions = actions

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        action = self._actions.pop(name, None)
        if action is None:
            return None
        # The action is taken out first, so that the search below passes by here.
        spec = importlib.util.find_spec(name) if path is None else importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, action)
        return spec


class _Loader(importlib.abc.Loader):
    """A module's own loader, with an action behind it. Everything else is the loader's own."""

    def __init__(self, inner: Any, action: Callable[[], None]) -> None:
        self._inner = inner
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._action()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def start() -> None:
    """Called by sitecustomize when DETAUDIT_DIR is set."""
    settings = env.read({name: value for name, value in os.environ.items() if name.startswith(env.PREFIX)})
    Path(settings.directory, MARKER).touch()
    # Before the generators are watched: to the recorder they are as unseeded as in a plain run.
    toggled = Toggled(settings.toggle)
    toggled.at("start")
    generators = [host_generators.watch_python()]

    def numpy_loaded() -> None:
        toggled.at("numpy.random")
        generators.append(host_generators.watch_numpy())

    def torch_loaded() -> None:
        from detaudit.capture import install

        toggled.at("torch")
        if settings.trainsect and not importlib.import_module(TRAINSECT).attach(settings):
            return
        recorder = install.install(settings, generators)
        install.ProcessEnd().watch()
        if settings.trace is not None:
            importlib.import_module(TRACER).attach(recorder)

    sys.meta_path.insert(0, AfterImport({"torch": torch_loaded, "numpy.random": numpy_loaded}))
