"""The global generators of python and numpy, watched from the start of the program. Loads no torch.

Such a generator decides once the program has seeded it. Until then it is untouched, or consumed but never seeded,
which is context and a warning and never by itself a divergence: nearly every script draws from it somewhere
(temporary names, worker ids).
"""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Callable
from typing import Any


class HostGenerator:
    """One global generator. `seeders` are the functions of `owner` whose call makes it decisive; `read` returns its
    state as bytes."""

    def __init__(self, name: str, owner: Any, seeders: tuple[str, ...], read: Callable[[], bytes]) -> None:
        self.name = name
        self.seeded = False
        self._read = read
        self._baseline = read()
        self._restore = [(owner, seeder, getattr(owner, seeder)) for seeder in seeders]
        for _, seeder, original in self._restore:
            setattr(owner, seeder, self._watch(original))

    def _watch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def seed(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            # seed() and seed(None) draw from the operating system: the generator stays unseeded.
            if any(value is not None for value in (*args, *kwargs.values())):
                self.seeded = True
            return result

        seed.__name__ = getattr(original, "__name__", "seed")
        seed.__doc__ = original.__doc__
        return seed

    def unwatch(self) -> None:
        for owner, seeder, original in self._restore:
            setattr(owner, seeder, original)

    def state(self) -> bytes | None:
        """The state, or None while the program has not seeded the generator."""
        return self._read() if self.seeded else None

    @property
    def consumed_unseeded(self) -> bool:
        return not self.seeded and self._read() != self._baseline


def _python_state() -> bytes:
    version, internal, gauss = random.getstate()
    return array("L", internal).tobytes() + repr((version, gauss)).encode()


def _numpy_state() -> bytes:
    state = sys.modules["numpy.random"].get_state(legacy=False)
    inner = state["state"]
    keys = inner["key"].tobytes() if "key" in inner else repr(inner).encode()
    rest = (state["bit_generator"], inner.get("pos"), state.get("has_gauss"), state.get("gauss"))
    return keys + repr(rest).encode()


def watch_python() -> HostGenerator:
    """The generator behind `random.random()`; to be called before the program runs."""
    return HostGenerator("python", random, ("seed", "setstate"), _python_state)


def watch_numpy() -> HostGenerator:
    """The generator behind `numpy.random.rand()`; to be called right after numpy.random is imported."""
    return HostGenerator("numpy", sys.modules["numpy.random"], ("seed", "set_state"), _numpy_state)
