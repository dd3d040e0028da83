"""Sees every seed and state that the program gives a global generator while it is traced.

`torch.Generator` is a class of C++ and cannot be watched; its states show at the operators that use it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from detaudit.capture.patch import Patches

WATCHED = {
    "torch": (torch, ("manual_seed", "seed", "set_rng_state")),
    "torch.random": (torch.random, ("manual_seed", "seed", "set_rng_state")),
    "random": (random, ("seed", "setstate")),
    "numpy.random": (None, ("seed", "set_state")),
}

MAX_TEXT = 80


def watch(seen: Callable[[str, str], None]) -> Patches:
    """Wrap the seeding functions; `seen(function, argument)` is called before each call of one."""
    patches = Patches()
    for owner_name, (owner, names) in WATCHED.items():
        found = owner or sys.modules.get(owner_name)
        for name in names if found is not None else ():
            patches.wrap(found, name, partial(_call, seen, f"{owner_name}.{name}"))
    return patches


def _call(seen: Callable[[str, str], None], function: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    values = [*args, *kwargs.values()]
    seen(function, ", ".join(map(_shown, values)))
    return original(*args, **kwargs)


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor) or hasattr(value, "__len__"):
        return f"<{type(value).__name__}>"
    return repr(value)[:MAX_TEXT]
