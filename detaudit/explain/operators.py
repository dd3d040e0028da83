"""What an operator's schema tells about it, read once for each overload."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

RERUNNABLE_NAMESPACES = frozenset({"aten", "prims", "torchvision"})
"""Operators that may be run again: their effects stand in their schema. One of the user's own may count its calls, a
collective waits for its peers."""

ONLY_WRITE = frozenset({
    "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_",
    "fill_", "zero_", "copy_",
})  # fmt: skip
"""In-place operators whose `self` is written over, never read."""

HIDDEN_WRITES = {
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
}
"""Positions of arguments that an operator writes although its schema denies it: the running statistics."""

CERTAIN = frozenset({
    "fill_", "zero_", "copy_", "clone", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros",
    "new_ones", "new_full", "arange", "scalar_tensor", "_to_copy", "_local_scalar_dense", "lift_fresh", "resize_",
})  # fmt: skip
"""Not worth running again: they move or make values and add nothing up."""


SUSPECTS = frozenset({
    "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put", "put", "put_", "index_copy", "index_copy_",
})  # fmt: skip
"""Known to race on a CPU (facts: the census of 47 operators): run again often enough for a rate at once, since under
load a race shows in few of its runs."""


@dataclass
class Operator:
    """`written` are positions and names of the arguments it writes, `unread` those of them it does not read. A `view`
    computes nothing; an operator that `allocates` returns memory as it finds it."""

    name: str
    view: bool
    random: bool
    allocates: bool
    reads_out: bool
    """Hands a value to Python: what Python does with it is out of sight."""
    rerun: bool
    suspect: bool
    written: set[int | str] = field(default_factory=set)
    unread: set[int | str] = field(default_factory=set)


@cache
def describe(func: Any) -> Operator:
    """The description of an OpOverload."""
    namespace, _, name = func._schema.name.partition("::")
    operator = Operator(
        name=f"{namespace}.{name}.{func._overloadname}",
        # `lift_fresh` is how torch.tensor(...) hands over what it made of Python values: the place where they come in.
        view=_is_view(func) and name != "lift_fresh",
        random=torch.Tag.nondeterministic_seeded in func.tags,
        allocates=namespace == "aten" and "empty" in name,
        reads_out=name == "_local_scalar_dense",
        rerun=namespace in RERUNNABLE_NAMESPACES and name not in CERTAIN,
        suspect=name in SUSPECTS,
    )
    for position, argument in enumerate(func._schema.arguments):
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            keys = {argument.name} if argument.kwarg_only else {position, argument.name}
            operator.written |= keys
            if argument.is_out or (position == 0 and name in ONLY_WRITE):
                operator.unread |= keys
    operator.written |= set(HIDDEN_WRITES.get(name, ()))
    operator.rerun = operator.rerun and not (operator.view or operator.random or operator.allocates)
    return operator


def _is_view(func: Any) -> bool:
    """Whether every result shows memory of an argument that is not written."""
    returns = func._schema.returns
    aliases = [found.alias_info for found in returns]
    return bool(returns) and all(alias is not None and not alias.is_write for alias in aliases)
