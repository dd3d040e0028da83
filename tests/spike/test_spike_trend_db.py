from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from detaudit.core.errors import UnreadableError
from detaudit.spike.read_trend import read_trend, unclip


def database(
    path: Path, metrics: list[str], rows: list[tuple[object, ...]], statistics: str = "min REAL, norm REAL"
) -> Path:
    db = sqlite3.connect(path)
    db.executescript(
        f"""
        CREATE TABLE monitoring_targets
            (target_id INTEGER PRIMARY KEY, target_name TEXT, vpp_stage INT, micro_step INT);
        CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY, metric_name TEXT UNIQUE);
        CREATE TABLE trend_data (rank INT, step INT, target_id INT, metric_id INT, {statistics},
            PRIMARY KEY (rank, step, target_id, metric_id)) WITHOUT ROWID;
        """
    )
    db.executemany("INSERT INTO monitoring_metrics (metric_name) VALUES (?)", [(m,) for m in metrics])
    db.executemany(
        "INSERT INTO monitoring_targets VALUES (?, ?, ?, ?)", [(1, "w", 0, 0), (2, "v", 0, 0), (3, "w", 0, 1)]
    )
    marks = ", ".join("?" * len(rows[0])) if rows else ""
    db.executemany(f"INSERT INTO trend_data VALUES ({marks})", rows)
    db.commit()
    db.close()
    return path


def test_metrics_and_statistics_are_found_by_name(tmp_path: Path) -> None:
    path = database(
        tmp_path / "x.db",
        ["actv", "grad_unreduced"],
        [(0, 0, 1, 1, 0, 99.0), (0, 0, 1, 2, 0, 1.5), (1, 0, 2, 2, 0, 2.5)],
    )
    run = read_trend(path, ["grad_unreduced"])
    cube = run.cubes["grad_unreduced"]
    assert run.available == ("actv", "grad_unreduced")
    assert cube.values[0, 0, 0, 0] == 1.5 and cube.values[1, 1, 0, 0] == 2.5
    assert run.rows == 2 and list(run.cubes) == ["grad_unreduced"]


def test_null_is_a_recorded_nan_and_a_missing_row_is_not(tmp_path: Path) -> None:
    path = database(
        tmp_path / "x.db", ["grad_unreduced"], [(0, 0, 1, 1, 0, None), (0, 1, 1, 1, 0, 1.0), (0, 1, 2, 1, 0, 1.0)]
    )
    cube = read_trend(path, ["grad_unreduced"]).cubes["grad_unreduced"]
    assert cube.present[0, :, :, 0].tolist() == [[True, True], [False, True]]
    assert math.isnan(cube.values[0, 0, 0, 0])


def test_clipped_infinities_come_back() -> None:
    values, count = unclip(np.array([1e9, 1e9 + 1, -1e9 - 1, math.nan, 3.0]))
    assert count == 2 and values[:3].tolist() == [1e9, math.inf, -math.inf]
    assert math.isnan(values[3]) and values[4] == 3.0


def test_targets_with_micro_steps_become_coordinates(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", ["grad_unreduced"], [(0, 5, 1, 1, 0, 1.0), (0, 5, 3, 1, 0, 2.0)])
    run = read_trend(path, ["grad_unreduced"])
    assert not run.flat
    assert run.cubes["grad_unreduced"].values[0, 0, 0].tolist() == [1.0, 2.0]


def test_without_norm_min_and_max_stand_in(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", ["grad_unreduced"], [(0, 0, 1, 1, -4.0, 2.0)], "min REAL, max REAL")
    cube = read_trend(path, ["grad_unreduced"]).cubes["grad_unreduced"]
    assert (cube.values.item(), cube.statistic) == (4.0, "absmax")


def test_a_dump_database_is_recognised_by_its_metric(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", ["forward", "parameters_grad"], [(0, 0, 1, 2, 0, 1.0)])
    assert read_trend(path, ["parameters_grad"]).variant == "dump"


def test_what_is_no_trend_db_is_said(tmp_path: Path) -> None:
    text = tmp_path / "x.db"
    text.write_text("not a database")
    with pytest.raises(UnreadableError, match="not an SQLite database"):
        read_trend(text, ["grad_unreduced"])
    with pytest.raises(UnreadableError, match="not a file"):
        read_trend(tmp_path / "none.db", ["grad_unreduced"])
    other = tmp_path / "other.db"
    sqlite3.connect(other).executescript("CREATE TABLE t (a)")
    with pytest.raises(UnreadableError, match="lacks monitoring_metrics"):
        read_trend(other, ["grad_unreduced"])
    bare = database(tmp_path / "bare.db", ["grad_unreduced"], [(0, 0, 1, 1, 0.0)], "zeros REAL")
    with pytest.raises(UnreadableError, match="neither norm nor both"):
        read_trend(bare, ["grad_unreduced"])


def test_a_damaged_database_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", ["grad_unreduced"], [(0, s, 1, 1, 0, 1.0) for s in range(3000)])
    data = bytearray(path.read_bytes())
    data[4096 * 3 :] = b"\xff" * (len(data) - 4096 * 3)
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=r"x\.db"):
        read_trend(path, ["grad_unreduced"])


def test_the_database_is_opened_read_only(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", ["grad_unreduced"], [(0, 0, 1, 1, 0, 1.0)])
    before = path.read_bytes()
    path.chmod(0o444)
    read_trend(path, ["grad_unreduced"])
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["x.db"]


def test_fetching_in_parts_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(r, s, t, 1, 0, r + s / 10 + t / 100) for r in range(3) for s in range(4) for t in (1, 2)]
    path = database(tmp_path / "x.db", ["grad_unreduced"], rows)
    whole = read_trend(path, ["grad_unreduced"]).cubes["grad_unreduced"]
    monkeypatch.setattr("detaudit.spike.read_trend.FETCH", 5)
    seen: list[tuple[str, int, int]] = []
    parts = read_trend(path, ["grad_unreduced"], lambda *call: seen.append(call)).cubes["grad_unreduced"]
    assert np.array_equal(whole.values, parts.values)
    assert seen[-1] == ("reading grad_unreduced", 3, 3) and len(seen) == 3


def test_the_real_sample(sample) -> None:  # type: ignore[no-untyped-def]
    run = read_trend(sample("gen_ddp_2rank_monitor_data.trend.db"), ["grad_unreduced", "grad_reduced"])
    cube, reduced = run.cubes["grad_unreduced"], run.cubes["grad_reduced"]
    assert run.flat and run.rows == 448
    assert (cube.ranks, len(cube.steps), reduced.steps) == ((0, 1), 12, (0, 3, 6, 9))
    assert cube.values[1, 0, 7, 0] == 10.27453724
