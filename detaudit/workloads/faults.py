"""Which faults a run was asked to carry, and from which step on each of them acts.

Text form: `FAULT`, `late:STEP:FAULT`, or several parted by commas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detaudit.core.errors import UsageError


@dataclass(frozen=True)
class FaultKind:
    """A fault a workload can carry. `start` is the first step it acts at unless `late:` says otherwise; `races` says
    that it needs at least two intra-op threads to show."""

    meaning: str
    start: int = 0
    races: bool = False


@dataclass(frozen=True)
class FaultPlan:
    """The faults of one run, in the order they were named, each with its first step."""

    starts: Mapping[str, int]
    kinds: Mapping[str, FaultKind]

    def __contains__(self, name: str) -> bool:
        return name in self.starts

    def active(self, name: str, step: int) -> bool:
        """Whether the fault acts at this step."""
        return name in self.starts and step >= self.starts[name]

    def first_active(self, names: tuple[str, ...], step: int) -> str:
        """The first of `names`, in the order the user gave them, that acts at this step; empty when none does."""
        return next((name for name in self.starts if name in names and self.active(name, step)), "")

    @property
    def racing(self) -> tuple[str, ...]:
        """Those of the faults that need two threads to show."""
        return tuple(name for name in self.starts if self.kinds[name].races)

    def describe(self) -> str:
        """The plan in its text form, `none` when it is empty."""
        return ",".join(_spell(name, start, self.kinds[name]) for name, start in self.starts.items()) or "none"


NO_FAULTS = FaultPlan({}, {})


def parse_faults(text: str, kinds: Mapping[str, FaultKind]) -> FaultPlan:
    """Read `A,late:150:B`. Raises UsageError for an unknown fault, a bad step, or a fault that is named twice."""
    starts: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, start = _parse_one(part, kinds)
        if name in starts:
            raise UsageError(f"fault {name!r} is named twice in --inject {text!r}; name each fault once")
        starts[name] = start
    return FaultPlan(starts, kinds)


def _parse_one(part: str, kinds: Mapping[str, FaultKind]) -> tuple[str, int]:
    name, start = part, None
    if part.startswith("late:"):
        fields = part.split(":")
        if len(fields) != 3 or not fields[1].isdecimal():
            raise UsageError(f"cannot read fault {part!r}; write late:STEP:FAULT with STEP an integer >= 0")
        start, name = int(fields[1]), fields[2]
    if name not in kinds:
        raise UsageError(f"unknown fault {name!r}; the legal ones are {', '.join(kinds)}, and late:STEP:FAULT")
    return name, kinds[name].start if start is None else start


def _spell(name: str, start: int, kind: FaultKind) -> str:
    return name if start == kind.start else f"late:{start}:{name}"
