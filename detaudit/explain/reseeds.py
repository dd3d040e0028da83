"""Sees every seed and state that the program gives a global generator while it is traced, and each of its own.

`torch.Generator` is a class of C++ that cannot be changed: a subclass stands in for it, for generators made after torch
was imported. One that torch makes itself (`clone_state`) is not of that class; its states show at the operators.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

from detaudit.capture.patch import Patches
from detaudit.digest.host import tensor_digest

WATCHED = {
    "torch": (torch, ("manual_seed", "seed", "set_rng_state")),
    "torch.random": (torch.random, ("manual_seed", "seed", "set_rng_state")),
    "random": (random, ("seed", "setstate")),
    "numpy.random": (None, ("seed", "set_state")),
}

MAX_TEXT = 80

_ALIVE: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The program's own generators by the address of their state: an operator is handed a new object over the same state.
"""

OWN = "torch.Generator."
"""How the functions of a generator of the program's own begin."""


def watch(seen: Callable[[str, str], None]) -> Patches:
    """Wrap the seeding functions; `seen(function, argument)` is called before each call of one."""
    patches = Patches()
    for owner_name, (owner, names) in WATCHED.items():
        found = owner or sys.modules.get(owner_name)
        for name in names if found is not None else ():
            patches.wrap(found, name, partial(_call, seen, f"{owner_name}.{name}"))
    return patches


def watch_own(patches: Patches, seen: Callable[[str, str, int], None]) -> None:
    """Let a subclass that tells of its seeds stand in for `torch.Generator`; `seen(function, argument, number)` is
    called before each call. The state and its use stay those of torch."""
    numbers = count(1)

    class Likeness(type(torch._C.Generator)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, torch._C.Generator)

    class Generator(torch._C.Generator, metaclass=Likeness):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.detaudit_number = next(numbers)
            _ALIVE[self._cdata] = self

        def __reduce__(self) -> Any:
            return (torch._C.Generator, *super().__reduce__()[1:])

        def manual_seed(self, seed: int) -> torch._C.Generator:
            return self._told("manual_seed", seed)

        def seed(self) -> int:
            return self._told("seed")

        def set_state(self, new_state: Any) -> torch._C.Generator:
            return self._told("set_state", new_state)

        def _told(self, name: str, *values: Any) -> Any:
            seen(OWN + name, ", ".join(map(_shown, values)), self.detaudit_number)
            return getattr(torch._C.Generator, name)(self, *values)

    patches.replace(torch, "Generator", Generator)


def number_of(generator: torch._C.Generator) -> int:
    """The number that tells a generator of the program's own from another; 0 for one that is not watched."""
    found = _ALIVE.get(generator._cdata)
    return 0 if found is None else int(found.detaudit_number)


def _call(seen: Callable[[str, str], None], function: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    values = [*args, *kwargs.values()]
    seen(function, ", ".join(map(_shown, values)))
    return original(*args, **kwargs)


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"<Tensor {tensor_digest(value):016x}>"
    if hasattr(value, "__len__"):
        return f"<{type(value).__name__}>"
    return repr(value)[:MAX_TEXT]
