"""What a re-execution is compared by, on runs made by hand."""

from __future__ import annotations

from pathlib import Path

from detaudit.trainsect.model import StepEntry
from detaudit.trainsect.rerun import differences, untouched
from detaudit.trainsect.run import RecordedRun


def run(*rngs, batch="b"):
    steps = {step: StepEntry(step, ((step,),), batch, rng) for step, rng in enumerate(rngs)}
    return RecordedRun(Path("run"), {}, steps, (), {}, (), True)


def states(python, torch="t", numpy="n"):
    return {"python": python, "numpy": numpy, "torch": torch}


def test_a_run_is_itself():
    assert differences(run(states("p"), states("q")), run(states("p"), states("q")), 2) is None


def test_a_generator_that_nobody_draws_from_decides_nothing():
    recorded, again = run(states("p", "t"), states("p", "u")), run(states("x", "t"), states("x", "u"))
    assert untouched(recorded, 2) == {"python", "numpy"}
    assert differences(recorded, again, 2) is None


def test_one_that_is_drawn_from_does():
    recorded, again = run(states("p"), states("q")), run(states("x"), states("y"))
    found = differences(recorded, again, 2)
    assert (found.step, found.leaf, found.expected, found.found) == (0, "rng.python", "p", "x")
    assert untouched(recorded, 2) == {"numpy"}


def test_one_drawn_from_in_one_of_the_runs_does():
    found = differences(run(states("p"), states("p")), run(states("x"), states("y")), 2)
    assert (found.step, found.leaf) == (0, "rng.python")
    found = differences(run(states("p"), states("q")), run(states("p"), states("p")), 2)
    assert (found.step, found.leaf) == (1, "rng.python")


def test_torch_always_decides():
    found = differences(run(states("p", "t"), states("p", "t")), run(states("p", "u"), states("p", "u")), 2)
    assert (found.step, found.leaf) == (0, "rng.torch")


def test_what_was_drawn_before_the_first_step_shows_in_the_batch():
    found = differences(run(states("p")), run(states("x"), batch="other"), 1)
    assert (found.step, found.leaf) == (0, "batch")


def test_later_steps_do_not_count():
    assert untouched(run(states("p"), states("q")), 1) == {"python", "numpy"}


def test_a_missing_step_is_found():
    found = differences(run(states("p"), states("p")), run(states("p")), 2)
    assert (found.step, found.leaf, found.found) == (1, "step", "missing")
