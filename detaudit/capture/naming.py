"""What the user calls his objects: the variable name found by identity in the caller's frames at first sight.

Names must be equal in two runs of one program, so nothing here depends on addresses, hashes or thread order.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Mapping
from types import FrameType

from torch import nn

from detaudit.core.names import join, strip_wrappers

MAX_FRAMES = 64
OUR_PACKAGE = __name__.split(".")[0]


class Namer:
    """Labels for modules, optimizers and loaders: unique, given at first sight, kept for the object's life."""

    def __init__(self) -> None:
        self._labels: dict[int, tuple[weakref.ref[object], str]] = {}
        self._used: dict[str, int] = {}
        self._classes: dict[str, int] = {}

    def known(self, target: object) -> str:
        """The label of an object seen before; empty for a new one."""
        entry = self._labels.get(id(target))
        return entry[1] if entry is not None and entry[0]() is target else ""

    def name(self, target: object) -> str:
        """The label of an object: its variable name, else class name and number; a taken name gets `_2`, `_3` ..."""
        label = self.known(target)
        if not label:
            label = self._unique(variable_name(target) or self._class_label(target))
            self._labels[id(target)] = (weakref.ref(target), label)
        return label

    def _class_label(self, target: object) -> str:
        kind = type(target).__name__
        number = self._classes.get(kind, 0)
        self._classes[kind] = number + 1
        return f"{kind}{number}"

    def _unique(self, label: str) -> str:
        count = self._used.get(label, 0) + 1
        self._used[label] = count
        return label if count == 1 else f"{label}_{count}"


def variable_name(target: object) -> str:
    """The name that the innermost frame of the user's code has for an object; empty when no frame names it.

    Looks at local variables, then at attributes of `self`, then inside modules held by local variables
    (`model.encoder`), then at the globals of that frame.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return ""
        if _is_users(frame):
            found = _search_frame(frame, target)
            if found:
                return found
        frame = frame.f_back
    return ""


def _is_users(frame: FrameType) -> bool:
    package = frame.f_globals.get("__name__", "")
    if not isinstance(package, str):
        return False
    if package.startswith(f"{OUR_PACKAGE}.workloads"):
        return True
    return package.split(".")[0] not in ("torch", OUR_PACKAGE, "importlib", "runpy", "threading", "multiprocessing")


def _search_frame(frame: FrameType, target: object) -> str:
    names = frame.f_locals
    found = _search(names, target)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        _forget(frame, names, sys.getrefcount(names))
        found = found or _direct(frame.f_globals, target)
    return found


def _forget(frame: FrameType, names: Mapping[str, object], references: int) -> None:
    """Empty the snapshot that `f_locals` leaves attached to a function's frame: it would keep the user's tensors
    alive until the function returns. Not when the user holds it (`d = locals()`) or `exec` put names of its own in."""
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    if isinstance(names, dict) and references <= 4 and names.keys() <= own:
        names.clear()


def _search(names: Mapping[str, object], target: object) -> str:
    return _direct(names, target) or _attribute(names, target) or _inside_modules(names, target)


def _direct(names: Mapping[str, object], target: object) -> str:
    return next((name for name, value in list(names.items()) if value is target and _is_name(name)), "")


def _is_name(name: str) -> bool:
    """Whether a key of a frame is a variable that the user wrote: not `self`, not the interpreter's or pytest's own."""
    return name != "self" and name.isidentifier()


def _attribute(names: Mapping[str, object], target: object) -> str:
    owner = names.get("self")
    if owner is None or owner is target:
        return ""
    for space in ("__dict__", "_modules"):
        held = _instance_dict(owner) if space == "__dict__" else _instance_dict(owner).get(space, {})
        if isinstance(held, dict):
            found = next((name for name, value in list(held.items()) if value is target), "")
            if found:
                return found
    return ""


def _instance_dict(owner: object) -> dict[str, object]:
    try:
        return object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}


def _inside_modules(names: Mapping[str, object], target: object) -> str:
    if not isinstance(target, nn.Module):
        return ""
    for name, value in list(names.items()):
        if isinstance(value, nn.Module) and _is_name(name):
            for path, module in value.named_modules():
                if module is target:
                    return join(name, strip_wrappers(path))
    return ""


def visible_modules() -> list[tuple[str, nn.Module]]:
    """The modules that the user's frames name, innermost first, each once: locals, attributes of `self`, globals."""
    found: dict[int, tuple[str, nn.Module]] = {}
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        if _is_users(frame):
            for name, value in _named_values(frame):
                if isinstance(value, nn.Module) and _is_name(name):
                    found.setdefault(id(value), (name, value))
        frame = frame.f_back
    return list(found.values())


def _named_values(frame: FrameType) -> list[tuple[str, object]]:
    names = frame.f_locals
    values = list(names.items())
    owner = names.get("self")
    if owner is not None:
        space = _instance_dict(owner)
        values += space.items()
        values += (space.get("_modules") or {}).items()  # type: ignore[union-attr, attr-defined]
        del space
    del owner
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        _forget(frame, names, sys.getrefcount(names))
        values += frame.f_globals.items()
    return values
