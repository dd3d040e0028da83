"""The repeat of a diverged pair with dumps around the step at which it first differed.

One run cannot know that step, so `DETAUDIT_DUMP_STEPS=first-divergence` is answered by the double run. The repeat may
part elsewhere, as races do: it is dumped over a window of steps, and its dumps speak for themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from detaudit.core import env
from detaudit.core.model import Divergence
from detaudit.launch import child

FOLDER = "first-divergence"
BEFORE = 16
AFTER = 4
"""Steps of the window before and after the first divergence: a race that shows in each fifth step is met in it."""


def first_pair(settings: env.Settings) -> env.Settings:
    """The settings of a pair that does not know yet where it differs: steps named by number only."""
    steps = tuple(step for step in settings.dump_steps if step != env.FIRST_DIVERGENCE)
    return replace(settings, dump=settings.dump and bool(steps), dump_steps=steps or (0,))


def wants_repeat(settings: env.Settings, first: Divergence | None) -> bool:
    """Whether the divergence was to be dumped and lies at a step that was not."""
    asked = settings.dump and env.FIRST_DIVERGENCE in settings.dump_steps
    return asked and first is not None and first.step not in settings.dump_steps


def around(settings: env.Settings, first: Divergence) -> env.Settings:
    """The settings of the repeat: a window of steps, and the first diverging leaf unless leaves were named."""
    window = range(max(0, first.step - BEFORE), first.step + AFTER + 1)
    return replace(
        settings,
        dump_steps=tuple(step for step in window if step % settings.every == 0),
        dump_leaves=settings.dump_leaves or (first.leaf.partition("#")[0],),
        # What follows the window is of no interest.
        steps=min(settings.steps or window.stop, window.stop),
    )


def repeat(
    command: Sequence[str], settings: Callable[[str], env.Settings], first: Divergence, progress: Callable[[str], None]
) -> None:
    """Run the pair again with dumps. `settings` gives those of a run by its label, a path below the audit's own."""
    for label in ("A", "B"):
        asked = around(settings(f"{FOLDER}/{label}"), first)
        steps = asked.dump_steps
        progress(f"run {label} again, dumping steps {steps[0]} to {steps[-1]}")
        child.run(command, label, asked, os.environ)
