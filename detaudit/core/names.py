"""Canonical leaf names and the choice of leaves by glob.

A name is a dotted path: its class (`param`, `grad`, `optim`, `buffer`, `act`, `loss`, `batch`, `sampler`, `rng`,
`input`, `init`, or whatever the user declares), then the path inside it. The n-th further occurrence of one name
in a step carries the suffix `#n`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

WRAPPER_SEGMENTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Path segments that DDP, torch.compile, FSDP and activation checkpointing put around a user's module."""

OPT_IN_CLASSES = frozenset({"actgrad"})
"""Leaf classes that are recorded only when a glob names them."""


def strip_wrappers(path: str) -> str:
    """Drop the segments that wrappers add, so that a leaf keeps its name under DDP, compile or FSDP."""
    return ".".join(part for part in path.split(".") if part not in WRAPPER_SEGMENTS)


def join(*parts: str) -> str:
    """Dotted join that leaves out empty parts."""
    return ".".join(part for part in parts if part)


def occurrence(name: str, index: int) -> str:
    """The name of the index-th occurrence (0-based) of `name` in a step."""
    return name if index == 0 else f"{name}#{index}"


@lru_cache(maxsize=65536)
def matches(name: str, glob: str) -> bool:
    """Whether a leaf name, with or without occurrence, fits a glob."""
    # `opt[0]` is a name before it is a character class: a name copied from a report must match itself.
    return name == glob or fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(name, glob + "#*")


@lru_cache(maxsize=1 << 16)
def _matches_any(name: str, globs: tuple[str, ...]) -> bool:
    """Kept, because a recorder asks it of every leaf at every step."""
    return any(matches(name, glob) for glob in globs)


@dataclass(frozen=True)
class Selection:
    """Which leaves take part: globs to include (all when empty) and globs to leave out (`!glob`)."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def parse(cls, globs: Iterable[str]) -> Selection:
        globs = tuple(globs)
        return cls(
            include=tuple(glob for glob in globs if not glob.startswith("!")),
            exclude=tuple(glob[1:] for glob in globs if glob.startswith("!")),
        )

    @property
    def everything(self) -> bool:
        return not self.include and not self.exclude

    def excludes(self, name: str) -> bool:
        return bool(self.exclude) and _matches_any(name, self.exclude)

    def __contains__(self, name: str) -> bool:
        if self.excludes(name):
            return False
        return not self.include or any(matches(name, glob) for glob in self.include)

    def opts_into(self, leaf_class: str) -> bool:
        """Whether an opt-in class such as `actgrad` was asked for by name."""
        return any(glob.split(".")[0] == leaf_class for glob in self.include)

    def describe(self) -> str:
        return ",".join([*self.include, *("!" + glob for glob in self.exclude)])


def merged_order(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """One execution order over the names of two layouts.

    Common names keep the order of `left`; a name that only `right` has comes after the common name that precedes
    it there. Names only in `left` stay in place.
    """
    known = set(left)
    after: dict[str | None, list[str]] = {}
    anchor: str | None = None
    for name in right:
        if name in known:
            anchor = name
        else:
            after.setdefault(anchor, []).append(name)
    order = list(after.get(None, ()))
    for name in left:
        order.append(name)
        order.extend(after.get(name, ()))
    return order
