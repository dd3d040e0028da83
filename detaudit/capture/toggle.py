"""Applies one axis of the toggle experiments inside the user's process, before his program can notice.

`applied` runs at the start of the interpreter and returns what is still to be done right after `numpy.random` and
`torch` have been imported. What an axis does by environment variables alone is in `core/axes.py` and needs nothing
here. A script that sets the same thing itself is overruled, else the experiment would be of the script's own setting.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from detaudit.capture.patch import Patches

Action = Callable[[Patches], None]


class Entropy:
    """Fixed entropy in place of the system's: the n-th request of a process gets the n-th number of a fixed series, so
    that two generators still differ from one another."""

    def __init__(self) -> None:
        self._asked = 0

    def bits(self, count: int) -> int:
        self._asked += 1
        block = hashlib.shake_256(f"detaudit entropy {self._asked}".encode()).digest((count + 7) // 8)
        return int.from_bytes(block, "little") >> (-count % 8)

    def python(self, patches: Patches) -> None:
        """`random.Random()` and the module's own generator. SystemRandom stays what it says."""

        def seed(original: Callable[..., Any], generator: Any, a: Any = None, *rest: Any, **more: Any) -> Any:
            return original(generator, self.bits(128) if a is None else a, *rest, **more)

        patches.wrap(random.Random, "seed", seed)
        # random.seed was bound before: it would still call the function that stood in the class then.
        patches.replace(random, "seed", random._inst.seed)
        random.seed()

    def numpy(self, patches: Patches) -> None:
        """Every bit generator and RandomState without a seed asks SeedSequence, and that asks this one function
        (numpy/random/bit_generator.pyx)."""
        patches.replace(import_module("numpy.random.bit_generator"), "randbits", self.bits)
        import_module("numpy.random").seed()

    def torch(self, patches: Patches) -> None:
        """The global generator, `torch.seed()` and `Generator.seed()`; the type is immutable, so a subclass stands in
        for it."""
        import torch

        class Likeness(type(torch._C.Generator)):  # type: ignore[misc]
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, torch._C.Generator)

        entropy = self

        class Generator(torch._C.Generator, metaclass=Likeness):
            def seed(self) -> int:
                number = entropy.bits(63)
                self.manual_seed(number)
                return number

        def seed(original: Callable[..., Any]) -> int:
            number = entropy.bits(63)
            torch.manual_seed(number)
            return number

        patches.replace(torch, "Generator", Generator)
        patches.wrap(torch.random, "seed", seed)
        patches.replace(torch, "seed", torch.random.seed)
        torch.seed()


def one_thread(patches: Patches) -> None:
    import torch

    torch.set_num_threads(1)
    patches.wrap(torch, "set_num_threads", lambda original, *args, **kwargs: original(1))


def deterministic(fill: bool) -> Action:
    """Strict, not warn_only: a warning would leave kernels without a deterministic variant as they are, and the pair
    would test half of what its name says. Such an operator ends the run, and the report quotes it."""

    def act(patches: Patches) -> None:
        import torch

        def overrule(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            original(True)
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]

        patches.wrap(torch, "use_deterministic_algorithms", overrule)
        torch.use_deterministic_algorithms(True)

    return act


def no_workers(patches: Patches) -> None:
    from torch.utils.data import DataLoader

    signature = inspect.signature(DataLoader.__init__)
    # What makes no sense without workers is refused by DataLoader, not ignored.
    alone = {
        "num_workers": 0,
        "timeout": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
        "multiprocessing_context": None,
    }

    def init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update({name: value for name, value in alone.items() if name in bound.arguments})
        return original(*bound.args, **bound.kwargs)

    patches.wrap(DataLoader, "__init__", init)


def actions(name: str) -> Mapping[str, Action]:
    """What an axis does in the process, by moment: `start`, or the module after whose import it is done."""
    entropy = Entropy()
    table: dict[str, Mapping[str, Action]] = {
        "threads-1": {"torch": one_thread},
        "deterministic": {"torch": deterministic(fill=False)},
        "deterministic-fill": {"torch": deterministic(fill=True)},
        "workers-0": {"torch": no_workers},
        "entropy": {"start": entropy.python, "numpy.random": entropy.numpy, "torch": entropy.torch},
    }
    return table.get(name, {})


class Toggled:
    """The axis of this process: `at` is called at each moment and does what the axis asks for there, once."""

    def __init__(self, name: str) -> None:
        self._actions = dict(actions(name))
        self._patches = Patches()

    def at(self, moment: str) -> None:
        action = self._actions.pop(moment, None)
        if action is not None:
            action(self._patches)

    def remove(self) -> None:
        """Put back what was replaced; settings such as the thread count stay."""
        self._patches.remove()
