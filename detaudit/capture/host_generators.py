"""The global generators of python and numpy, watched from the start of the program. Loads no torch.

Such a generator decides once the program has seeded it. Until then it is untouched, or consumed but never seeded,
which is context and a warning and never by itself a divergence: nearly every script draws from it somewhere
(temporary names, worker ids).
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from importlib import import_module
from typing import Any

from detaudit.capture.patch import Patches

MAX_REMEMBERED = 4096


class HostGenerator:
    """One global generator of `owner`. It is `seeded` once the program calls the seeding function, or sets a state
    that was not taken from the generator while it was unseeded: saving and restoring the state around a library call,
    as torch.compile does, seeds nothing.

    `seed`, `get` and `set` are the names of the owner's functions; `fingerprint` turns a state into bytes.
    """

    def __init__(
        self, name: str, owner: Any, seed: str, get: str, set: str, fingerprint: Callable[[Any], bytes]
    ) -> None:
        self.name = name
        self.seeded = False
        self._fingerprint = fingerprint
        self._read = getattr(owner, get)
        self._baseline = self.state_bytes()
        self._handed_out = {self._baseline}
        self._patches = Patches()
        self._patches.wrap(owner, seed, self._on_seed)
        self._patches.wrap(owner, get, self._on_get)
        self._patches.wrap(owner, set, self._on_set)

    def state_bytes(self) -> bytes:
        return self._fingerprint(self._read())

    def _on_seed(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        # seed() and seed(None) draw from the operating system: the generator stays unseeded.
        if any(value is not None for value in (*args, *kwargs.values())):
            self.seeded = True
        return result

    def _on_get(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        state = original(*args, **kwargs)
        if not self.seeded and len(self._handed_out) < MAX_REMEMBERED:
            self._handed_out.add(self._fingerprint(state))
        return state

    def _on_set(self, original: Callable[..., Any], state: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(state, *args, **kwargs)
        if not self.seeded and self.state_bytes() not in self._handed_out:
            self.seeded = True
        return result

    def unwatch(self) -> None:
        self._patches.remove()

    def state(self) -> bytes | None:
        """The state, or None while the program has not seeded the generator."""
        return self.state_bytes() if self.seeded else None

    @property
    def consumed_unseeded(self) -> bool:
        return not self.seeded and self.state_bytes() != self._baseline


def _python_bytes(state: Any) -> bytes:
    version, internal, gauss = state
    return array("L", internal).tobytes() + repr((version, gauss)).encode()


def _numpy_bytes(state: Any) -> bytes:
    """Both forms of numpy's legacy state: the tuple (name, key, pos, has_gauss, gauss) and the dict."""
    if isinstance(state, dict):
        inner = state["state"]
        rest = (state["bit_generator"], inner.get("pos"), state.get("has_gauss"), state.get("gauss"))
        key = inner.get("key", inner)
    else:
        name, key, *tail = state
        rest = (name, *tail)
    return (key.tobytes() if hasattr(key, "tobytes") else repr(key).encode()) + repr(rest).encode()


def watch_python() -> HostGenerator:
    """The generator behind `random.random()`; to be called before the program runs."""
    return HostGenerator("python", random, "seed", "getstate", "setstate", _python_bytes)


def watch_numpy() -> HostGenerator:
    """The generator behind `numpy.random.rand()`; to be called right after numpy.random is imported."""
    return HostGenerator("numpy", import_module("numpy.random"), "seed", "get_state", "set_state", _numpy_bytes)
