"""Minimal sufficient sets of a monotone yes/no oracle, by few questions. No torch, no replay: only the oracle is asked.

`quickxplain` finds one set S with f(S) = 1 and f(S - {x}) = 0 for every x in it, in at most 2k log2(n/k) + 2k
questions (Junker, AAAI 2004). `all_sets` finds the rest by a hitting-set tree (Reiter 1987). The oracle is memoised, so
a question asked twice costs once; `asked` counts the distinct ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Unit = str
Units = frozenset[Unit]


class BudgetExhausted(Exception):
    """The oracle was asked as often as it may be."""


@dataclass
class Oracle:
    """f(S): does the collapse still come when only S is real? `budget` bounds the distinct questions (0: no bound)."""

    ask: Callable[[Units], bool]
    budget: int = 0
    answers: dict[Units, bool] = field(default_factory=dict)
    free: int = 0
    """Questions answered before the search began (controls), which count for themselves."""

    def __call__(self, units: Iterable[Unit]) -> bool:
        key = frozenset(units)
        if key not in self.answers:
            if self.budget and self.asked >= self.budget:
                raise BudgetExhausted(f"{self.asked} questions asked, the budget")
            self.answers[key] = self.ask(key)
        return self.answers[key]

    @property
    def asked(self) -> int:
        return len(self.answers) - self.free

    def know(self, units: Iterable[Unit], answer: bool) -> None:
        """Enter a control's answer; it does not count as a question."""
        key = frozenset(units)
        if key not in self.answers:
            self.free += 1
        self.answers[key] = answer


@dataclass(frozen=True)
class SetsFound:
    """Minimal sufficient sets in the order found, minimal correction sets (hitting sets), and whether that is all."""

    sufficient: tuple[Units, ...]
    corrections: tuple[Units, ...]
    complete: bool
    asked: int
    note: str = ""


def quickxplain(oracle: Oracle, units: Sequence[Unit]) -> Units:
    """One minimal sufficient set of `units`, given f(units) = 1 and f(empty) = 0. Put suspects last: the clean halves
    then go first. A wrong order costs questions, never the answer."""
    if not units:
        raise ValueError("no units to search")
    return frozenset(_explain(oracle, (), False, tuple(units)))


def _explain(oracle: Oracle, background: tuple[Unit, ...], grew: bool, units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    if grew and oracle(background):
        return ()
    if len(units) == 1:
        return units
    left, right = units[: len(units) // 2], units[len(units) // 2 :]
    kept_right = _explain(oracle, background + left, bool(left), right)
    kept_left = _explain(oracle, background + kept_right, bool(kept_right), left)
    return kept_left + kept_right


def all_sets(oracle: Oracle, units: Sequence[Unit], stop: Callable[[Sequence[Units]], bool] | None = None) -> SetsFound:
    """All minimal sufficient sets, breadth first, until the budget or `stop(sets so far)` ends the search.

    A node of the tree is a set of units taken out. f(units - out) = 1 means another set lies in what is left; 0 makes
    `out` a correction set. A set found before that avoids `out` is reused without a question."""
    found: list[Units] = []
    corrections: list[Units] = []
    seen: set[Units] = set()
    queue: list[Units] = [frozenset()]
    try:
        while queue:
            out = queue.pop(0)
            if out in seen or any(cut <= out for cut in corrections):
                continue
            seen.add(out)
            known = next((each for each in found if not each & out), None)
            if known is None:
                left = tuple(unit for unit in units if unit not in out)
                if not left or not oracle(left):
                    corrections.append(out)
                    continue
                known = quickxplain(oracle, left)
                found.append(known)
                if stop and stop(found):
                    return SetsFound(tuple(found), _minimal(corrections), False, oracle.asked, "stopped early")
            queue += [out | {unit} for unit in sorted(known)]
    except BudgetExhausted as end:
        return SetsFound(tuple(found), _minimal(corrections), False, oracle.asked, f"BUDGET-EXHAUSTED: {end}")
    return SetsFound(tuple(found), _minimal(corrections), True, oracle.asked)


def _minimal(sets: Sequence[Units]) -> tuple[Units, ...]:
    return tuple(each for each in sets if not any(other < each for other in sets))


def is_concentration(sets: Sequence[Units]) -> bool:
    """At least three sets of one size >= 2, each overlapping every other: how much counts, not which."""
    if len(sets) < 3 or len({len(each) for each in sets}) != 1 or len(sets[0]) < 2:
        return False
    return all(a & b for i, a in enumerate(sets) for b in sets[:i])
