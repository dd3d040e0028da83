"""Whether a replay collapsed at the horizon B: a threshold between the healthy and the collapsed recording.

The threshold is the geometric midpoint of the best healthy and the final recorded evaluation (the arithmetic one where
a loss is <= 0). A loss that is not finite never enters it, and counts as collapsed. Every replay reports its margin;
within 10 % of the threshold its answer is uncertain, and a verdict that rests on it is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from detaudit.core.errors import InconclusiveError
from detaudit.trainsect.collapse import Collapse
from detaudit.trainsect.model import Evaluation

CLOSE = math.log(1.1)
_WITHOUT_FINITE_END = 10.0
"""Factor over the best loss that stands for the final one when no evaluation after the onset is finite."""


@dataclass(frozen=True)
class Outcome:
    """The loss of one replay at B against the threshold. `margin` is log(loss / threshold), positive when collapsed
    (a fraction of the healthy-to-final distance in the raw scale); infinite for a loss that is not finite."""

    loss: float
    collapsed: bool
    margin: float
    uncertain: bool


@dataclass(frozen=True)
class Threshold:
    """The dividing loss at step `horizon`."""

    horizon: int
    value: float
    best: float
    final: float
    scale: str

    def judge(self, loss: float) -> Outcome:
        if not math.isfinite(loss):
            return Outcome(loss, True, math.inf, False)
        if self.scale == "log":
            margin = math.log(loss / self.value) if loss > 0 else -math.inf
        else:
            margin = (loss - self.value) / (self.final - self.best)
        return Outcome(loss, margin > 0, margin, abs(margin) < CLOSE)


def threshold_of(collapse: Collapse, evaluations: Sequence[Evaluation]) -> Threshold:
    """The threshold at the known-bad point of a collapse. Raises InconclusiveError where healthy and collapsed lie so
    close that every replay would be uncertain."""
    assert collapse.bad_step is not None and collapse.best_loss is not None and collapse.onset is not None
    best, horizon = collapse.best_loss, collapse.bad_step
    bad = [e.loss for e in evaluations if e.step >= collapse.onset[1] and math.isfinite(e.loss)]
    final = bad[-1] if bad else max(_WITHOUT_FINITE_END * best, best + abs(best) * _WITHOUT_FINITE_END)
    if best > 0 and final > 0:
        if math.log(final / best) < 2 * CLOSE:
            raise InconclusiveError(
                f"the best evaluation ({best:.6g}) and the final one ({final:.6g}) differ by less than 21 %: "
                "no threshold between them can be told from its margins; record the run further"
            )
        return Threshold(horizon, math.sqrt(best * final), best, final, "log")
    if final <= best:
        raise InconclusiveError(f"the final loss {final:.6g} does not lie above the best {best:.6g}")
    return Threshold(horizon, (best + final) / 2, best, final, "raw")
