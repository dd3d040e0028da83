from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from detaudit.core.errors import UnreadableError
from detaudit.core.model import Layout, Leaf, Stats, StepRecord
from detaudit.spike.detect import detect
from detaudit.spike.select import select
from detaudit.spike.sources import load_trails


def trail(
    rank: int, steps: int = 12, spike: tuple[int, int] | None = None, per_step: int = 1, stats: bool = True
) -> list[StepRecord]:
    """One rank's trail as the reader gives it: two gradients (each `per_step` times) and a second moment."""
    rng = np.random.default_rng(rank)
    names = [
        f"grad.{name}" + (f"#{k}" if k else "") for k in range(per_step) for name in ("head.weight", "body.weight")
    ]
    names += ["optim.body.weight.exp_avg_sq", "loss"]
    layout = Layout(tuple(Leaf(name, "float32", (4,)) for name in names))
    records = []
    for step in range(steps):
        held = []
        for i, _ in enumerate(names):
            norm = float(np.exp(rng.normal(0, 0.05)))
            if spike == (step, i):
                norm *= 60
            held.append(Stats(0, norm**2, -1.0, 1.0, 0, 0))
        records.append(StepRecord(step, layout, (0,) * len(names), 0, tuple(held) if stats else ()))
    return records


def test_trails_with_stats_are_a_fourth_input() -> None:
    trails = {0: trail(0), 1: trail(1, spike=(8, 1)), 2: trail(2)}
    result = detect(load_trails(trails, "run"))
    assert (result["format"], result["summary"]["metric"]) == ("trail", "grad")
    root = select(result)["root_cause_coordinate"]
    assert (root["rank"], root["optimizer_step"], root["target_name"]) == (1, 8, "grad.body.weight")


def test_further_occurrences_in_a_step_are_micro_steps() -> None:
    trails = {0: trail(0, per_step=3), 1: trail(1, per_step=3, spike=(8, 5))}
    root = select(detect(load_trails(trails, "run")))["root_cause_coordinate"]
    assert (root["rank"], root["optimizer_step"], root["micro_step"]) == (1, 8, 2)


def test_gradients_that_are_equal_on_all_ranks_were_reduced_and_blame_nobody() -> None:
    same = trail(0, spike=(8, 0))
    result = detect(load_trails({0: same, 1: same, 2: same}, "run"))
    assert result["groups"][0]["rank"] is None and any("never which rank" in text for text in result["not_seen"])


def test_optimizer_state_is_watched_beside_the_gradients() -> None:
    result = detect(load_trails({0: trail(0, spike=(6, 2)), 1: trail(1)}, "run"))
    assert result["other_metrics"]["exp_avg_sq"]["optimizer_step"] == 6


@pytest.mark.parametrize(("counts", "trigger"), [((2, 0), "nan"), ((0, 1), "inf"), ((1, 1), "nan")])
def test_broken_elements_break_the_norm(counts: tuple[int, int], trigger: str) -> None:
    records = trail(1)
    stats = list(records[5].stats)
    stats[1] = Stats(0, 1.0, 0.0, 1.0, *counts)
    records[5] = StepRecord(5, records[5].layout, records[5].digests, 0, tuple(stats))
    lead = detect(load_trails({0: trail(0), 1: records}, "run"))["groups"][0]["lead"]
    assert (lead["rank"], lead["optimizer_step"], lead["trigger"]) == (1, 5, trigger)


def test_a_trail_without_stats_or_gradients_is_refused_with_the_cure() -> None:
    with pytest.raises(UnreadableError, match="DETAUDIT_STATS=1"):
        load_trails({0: trail(0, stats=False)}, "run")
    layout = Layout((Leaf("loss", "float32", ()),))
    with pytest.raises(UnreadableError, match=r"without grad\.\* leaves"):
        load_trails({0: [StepRecord(0, layout, (0,), 0, (Stats(0, 1.0, 0, 0, 0, 0),))]}, "run")


def test_trails_may_be_iterators() -> None:
    loaded = load_trails({3: iter(trail(3)), 5: iter(trail(5))}, "run")
    assert loaded.main.ranks == (3, 5) and np.isfinite(loaded.main.values).all()


def test_the_real_reader_feeds_the_room(tmp_path: Path) -> None:
    writer = pytest.importorskip("detaudit.trail.writer", reason="the trail room is not part of this checkout")
    from detaudit.cli.spike import open_trails
    from detaudit.core.model import RunManifest

    for rank in range(3):
        held = writer.TrailWriter(tmp_path / f"rank{rank}.trail", RunManifest())
        for record in trail(rank, spike=(8, 1) if rank == 2 else None):
            held.step(record.step, record.layout, record.digests, record.stats)
        held.close()
    trails = open_trails(str(tmp_path))
    assert sorted(trails) == [0, 1, 2]
    root = select(detect(load_trails(trails, "run")))["root_cause_coordinate"]
    assert (root["rank"], root["optimizer_step"]) == (2, 8)
