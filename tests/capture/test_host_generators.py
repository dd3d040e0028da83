"""When python's and numpy's global generators decide a verdict, and when they do not."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from detaudit.capture.host_generators import HostGenerator, watch_numpy, watch_python


@pytest.fixture(params=["python", "numpy"])
def watched(request: pytest.FixtureRequest) -> Iterator[HostGenerator]:
    generator = watch_python() if request.param == "python" else watch_numpy()
    yield generator
    generator.unwatch()


def draw(generator: HostGenerator) -> None:
    random.random() if generator.name == "python" else np.random.rand()


def seed(generator: HostGenerator, value: int | None) -> None:
    random.seed(value) if generator.name == "python" else np.random.seed(value)


def saved(generator: HostGenerator) -> object:
    return random.getstate() if generator.name == "python" else np.random.get_state()


def restore(generator: HostGenerator, state: object) -> None:
    random.setstate(state) if generator.name == "python" else np.random.set_state(state)  # type: ignore[arg-type]


def test_untouched_then_consumed_then_seeded(watched: HostGenerator) -> None:
    assert watched.state() is None and not watched.consumed_unseeded
    draw(watched)
    assert watched.state() is None and watched.consumed_unseeded
    seed(watched, 3)
    first = watched.state()
    assert first is not None
    draw(watched)
    assert watched.state() != first


def test_seeding_from_the_system_is_no_seeding(watched: HostGenerator) -> None:
    seed(watched, None)
    assert watched.state() is None and watched.consumed_unseeded


def test_saving_and_restoring_around_a_call_is_no_seeding(watched: HostGenerator) -> None:
    before = saved(watched)
    draw(watched)
    restore(watched, before)
    assert watched.state() is None and not watched.consumed_unseeded


def test_setting_a_state_from_elsewhere_is_seeding(watched: HostGenerator) -> None:
    foreign = random.Random(5).getstate() if watched.name == "python" else np.random.RandomState(5).get_state()
    restore(watched, foreign)
    assert watched.state() is not None


def test_the_watched_functions_return_what_they_did_and_are_put_back(watched: HostGenerator) -> None:
    wrapped = random.seed if watched.name == "python" else np.random.seed
    assert wrapped.__name__ == "seed"
    watched.unwatch()
    assert not hasattr(random.seed if watched.name == "python" else np.random.seed, "__wrapped__")
