"""What a recorded step is: an optimizer step, or a micro-step of an accumulation window. And what a norm is: of one
micro-batch, or of the sum so far.

Evidence in falling order: a window the user declares, a micro-step column, the steps at which grad_reduced was recorded
(one per optimizer step), and last the sawtooth that an accumulated norm draws. A series without any of these is taken
as it is, and the result says that K = 1 and independent micro-steps cannot be told apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from detaudit.core.errors import UsageError
from detaudit.spike.cube import Floats, MetricCube
from detaudit.spike.order_statistics import median_last

INDEPENDENT = "independent"
CUMULATIVE = "cumulative"
UNDECIDED = "undecided"

MAX_WINDOW = 64
SAWTOOTH_FIT = 0.5
"""Share of the movement that a sawtooth must explain before its period is believed."""
SAWTOOTH_LEAD = 0.1
"""How far the best period must lead over the next one."""


@dataclass(frozen=True)
class Window:
    """How recorded steps fold into optimizer steps. `size` is the longest window; 1 means one recorded step each.

    `starts` are the recorded steps at which windows begin, empty when nothing is folded. `question` is what the user
    must answer when the data do not tell.
    """

    size: int
    evidence: str
    confidence: float
    starts: tuple[int, ...] = ()
    note: str = ""
    question: str = ""


@dataclass(frozen=True)
class Accumulation:
    """Whether the norms inside a window accumulate. `rise` is the share of rising neighbours (1 when accumulating)."""

    mode: str
    evidence: str
    rise: float = math.nan
    question: str = ""


def declared_window(cube: MetricCube, size: int) -> Window:
    """Windows of `size` recorded steps, as the user says. Raises UsageError for an impossible size."""
    if size < 1 or size > len(cube.steps):
        raise UsageError(f"--window {size} does not fit {len(cube.steps)} recorded steps")
    starts = tuple(step for step in cube.steps if (step - cube.steps[0]) % size == 0)
    return Window(size, "declared", 1.0, starts if size > 1 else (), "window given by the user")


def find_window(cube: MetricCube, reduced_steps: tuple[int, ...], flat: bool) -> Window:
    """The window of a cube. `reduced_steps` are the steps that hold grad_reduced; `flat` says that the source may have
    flattened micro-steps into steps (trend.db)."""
    if cube.micro_declared:
        return Window(cube.micro_steps, "declared", 1.0, note="micro_step column")
    if not flat:
        return Window(1, "declared", 1.0, note="no micro_step column: the last micro-batch, or the sum, of every step")
    if reduced_steps and set(reduced_steps) < set(cube.steps):
        starts = tuple(sorted({cube.steps[0], *(step for step in reduced_steps if step in set(cube.steps))}))
        sizes = np.diff([*starts, cube.steps[-1] + 1])
        note = f"grad_reduced is recorded at {len(starts)} of {len(cube.steps)} steps: these begin the windows"
        return Window(int(sizes.max()), "grad_reduced", 1.0, starts, note)
    if reduced_steps and set(reduced_steps) >= set(cube.steps):
        return Window(1, "grad_reduced", 1.0, note="grad_reduced is recorded at every step")
    return _sawtooth(cube)


def _sawtooth(cube: MetricCube) -> Window:
    moves = common_moves(cube.values[..., 0])
    fits = {size: sawtooth_fit(moves, size) for size in range(2, min(MAX_WINDOW, (len(moves) + 1) // 2) + 1)}
    unknown = Window(
        1,
        "none",
        0.0,
        note="no window evidence: K = 1 and independent micro-steps cannot be told apart; steps are taken as recorded",
        question="How many micro-steps does one optimizer step have? Give --window N (1 if steps are optimizer steps).",
    )
    if not fits:
        return unknown
    ranked = sorted(fits, key=lambda size: (-fits[size], size))
    best = ranked[0]
    second = max((fits[size] for size in ranked[1:]), default=0.0)
    if fits[best] < SAWTOOTH_FIT or fits[best] - second < SAWTOOTH_LEAD:
        return unknown
    starts = tuple(step for i, step in enumerate(cube.steps) if i % best == 0)
    note = f"the norms fall back every {best} recorded steps (sawtooth explains {fits[best]:.0%} of the movement)"
    return Window(best, "heuristic", round(min(fits[best], 0.99), 2), starts, note)


def common_moves(values: Floats) -> Floats:
    """Median over ranks and targets of log(norm) differences between neighbouring steps; shape [S - 1].

    One rank's spike does not move it, and the noise of single gradients averages out: that is what makes windows of
    two or three visible, where a fixed threefold reset (sqrt(K) growth needs K > 9 for that) sees none.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.where(values > 0, values, np.nan))
    logs[~np.isfinite(logs)] = np.nan
    moves = np.diff(logs, axis=2)
    return median_last(np.moveaxis(moves, 2, 0).reshape(moves.shape[2], -1))


def sawtooth_fit(moves: Floats, size: int) -> float:
    """How much of the movement an accumulation of `size` micro-steps explains, 0 to 1.

    The sum of k gradients grows like k**a, a = 1/2 (orthogonal) to 1 (parallel): log differences are a * log((m+1)/m)
    inside a window and -a * log(size) where the next begins.
    """
    place = np.arange(1, len(moves) + 1) % size
    pattern = np.where(place == 0, -math.log(size), np.log((place + 1) / np.maximum(place, 1)))
    usable = np.isfinite(moves)
    moved, pattern = np.clip(moves[usable], -math.log(16), math.log(16)), pattern[usable]
    if len(moved) < 2 or not np.any(place[usable] == 0):
        return 0.0
    inside = place[usable] != 0
    if not inside.any():
        return 0.0
    # The exponent comes from inside the windows: contaminated weights make all ranks jump at their borders.
    exponent = float(np.sum(moved[inside] * pattern[inside]) / np.sum(pattern[inside] ** 2))
    if not 0.35 <= exponent <= 1.25:
        return 0.0
    expected = np.abs(exponent * pattern)
    left = np.minimum(np.abs(moved - exponent * pattern), expected)
    return float(1 - left.sum() / expected.sum())


def find_accumulation(cube: MetricCube, window: Window) -> Accumulation:
    """Whether norms accumulate inside the windows of a folded cube.

    Accumulated norms rise at nearly every micro-step; norms of single micro-batches rise at half of them. Between the
    two, or with fewer than four neighbours, the user is asked.
    """
    if window.size < 2:
        return Accumulation(INDEPENDENT, "one value a step")
    if window.evidence == "heuristic":
        return Accumulation(CUMULATIVE, "the sawtooth itself", 1.0)
    with np.errstate(invalid="ignore"):
        moves = np.diff(cube.values, axis=3)
    moves = moves[np.isfinite(moves) & (moves != 0)]
    question = (
        "Are the norms of one optimizer step accumulated over micro-steps? Give --accumulation cumulative|independent."
    )
    if len(moves) < 4:
        return Accumulation(UNDECIDED, f"{len(moves)} neighbouring micro-steps", question=question)
    rise = float(np.mean(moves > 0))
    evidence = f"{rise:.0%} of {len(moves)} neighbouring micro-steps rise"
    slack = 0.5 / math.sqrt(min(len(moves), 400))
    if rise >= 0.85 and rise - slack > 0.6:
        return Accumulation(CUMULATIVE, evidence, rise)
    if rise <= 0.7 and rise + slack < 0.85:
        return Accumulation(INDEPENDENT, evidence, rise)
    return Accumulation(UNDECIDED, evidence, rise, question)
