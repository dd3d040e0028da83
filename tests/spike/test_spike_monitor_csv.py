from __future__ import annotations

import importlib.util
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detaudit.core.errors import UnreadableError
from detaudit.spike import csv_blocks
from detaudit.spike.monitor_files import expand, identify, in_start_order, start_order
from detaudit.spike.read_csv import read_csv

RANK0, RANK1 = "Dec01_07-38-18-rank0-00000001", "Dec01_07-38-18-rank1-00000002"
PARSERS = [
    "csv",
    pytest.param(
        "pyarrow",
        marks=pytest.mark.skipif(
            not importlib.util.find_spec("pyarrow"), reason="pyarrow is an extra and not installed"
        ),
    ),
]


def put(root: Path, folder: str, name: str, text: str) -> Path:
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


HEADER = "vpp_stage,name,step,micro_step,norm,min,shape,dtype\n"


def rows(step: int, *values: tuple[str, int, str]) -> str:
    return "".join(f'0,{name},{step},{micro},{norm},-1,"[8, 8]",torch.float32\n' for name, micro, norm in values)


@pytest.mark.parametrize("parser", PARSERS)
def test_reads_ranks_steps_and_micro_steps_into_one_cube(tmp_path: Path, parser: str) -> None:
    for folder, scale in ((RANK0, 1), (RANK1, 10)):
        for step in (0, 1):
            text = HEADER + rows(step, ("b", 0, f"{scale}.5"), ("a", 0, "2"), ("b", 1, "3"), ("a", 1, f"{step + 4}"))
            put(tmp_path, folder, f"grad_unreduced_{step}-{step}.csv", text)
    run = read_csv(tmp_path, ["grad_unreduced"], parser)
    cube = run.cubes["grad_unreduced"]
    assert (cube.ranks, cube.steps, cube.micro_steps) == ((0, 1), (0, 1), 2)
    assert [target.name for target in cube.targets] == ["b", "a"], "order of first occurrence is the hook order"
    assert cube.values[:, 0, 0, 0].tolist() == [1.5, 10.5]
    assert cube.values[1, 1, 1, 1] == 5
    assert (run.rows, run.files, run.parser) == (16, 4, parser)


@pytest.mark.parametrize("parser", PARSERS)
def test_columns_are_found_by_header_in_any_order(tmp_path: Path, parser: str) -> None:
    text = 'dtype,norm,step,shape,name,vpp_stage\ntorch.float32,7.5,3,"[2, 2]",w,1\n'
    put(tmp_path, RANK0, "grad_reduced_3-3.csv", text)
    cube = read_csv(tmp_path, ["grad_reduced"], parser).cubes["grad_reduced"]
    assert (cube.values.item(), cube.steps, cube.targets[0].vpp_stage) == (7.5, (3,), 1)
    assert not cube.micro_declared


@pytest.mark.parametrize("parser", PARSERS)
def test_nan_and_inf_are_values_and_absence_is_not(tmp_path: Path, parser: str) -> None:
    put(tmp_path, RANK0, "grad_unreduced_0-0.csv", HEADER + rows(0, ("a", 0, "nan"), ("b", 0, "inf"), ("c", 0, "1")))
    put(tmp_path, RANK0, "grad_unreduced_1-1.csv", HEADER + rows(1, ("a", 0, "1"), ("b", 0, "-inf")))
    cube = read_csv(tmp_path, ["grad_unreduced"], parser).cubes["grad_unreduced"]
    assert math.isnan(cube.values[0, 0, 0, 0]) and cube.present[0, 0, 0, 0]
    assert cube.values[0, 1, :, 0].tolist() == [math.inf, -math.inf]
    assert math.isnan(cube.values[0, 2, 1, 0]) and not cube.present[0, 2, 1, 0]


@pytest.mark.parametrize("parser", PARSERS)
def test_broken_lines_are_named_counted_and_left_out(tmp_path: Path, parser: str) -> None:
    good = rows(0, ("a", 0, "1"), ("b", 0, "2"))
    text = HEADER + good + "0,c,0,0\n" + '0,d,0,0,oops,-1,"[8, 8]",torch.float32\n' + rows(0, ("e", 0, "5"))
    path = put(tmp_path, RANK0, "grad_unreduced_0-0.csv", text)
    run = read_csv(tmp_path, ["grad_unreduced"], parser)
    assert [(line.row, line.file) for line in run.broken] == [(4, str(path)), (5, str(path))]
    assert "4 fields where the header has 8" in run.broken[0].reason and "oops" in run.broken[1].reason
    assert [t.name for t in run.cubes["grad_unreduced"].targets] == ["a", "b", "e"]


@pytest.mark.parametrize("parser", PARSERS)
def test_a_torn_quote_does_not_swallow_the_lines_after_it(tmp_path: Path, parser: str) -> None:
    text = HEADER + rows(0, ("a", 0, "1")) + '0,b,0,0,2,-1,"[8, 8,torch\n' + rows(0, ("c", 0, "3"), ("d", 0, "4"))
    put(tmp_path, RANK0, "grad_unreduced_0-0.csv", text)
    run = read_csv(tmp_path, ["grad_unreduced"], parser)
    assert {t.name for t in run.cubes["grad_unreduced"].targets} >= {"a", "c", "d"}
    assert run.rows + run.broken_count == 4


@pytest.mark.parametrize("parser", PARSERS)
def test_a_file_cut_in_mid_line_keeps_its_whole_lines(tmp_path: Path, parser: str) -> None:
    put(tmp_path, RANK0, "grad_unreduced_0-0.csv", HEADER + rows(0, ("a", 0, "1")) + "0,b,0,0,0.")
    run = read_csv(tmp_path, ["grad_unreduced"], parser)
    assert (run.rows, run.broken_count) == (1, 1)


@pytest.mark.parametrize("parser", PARSERS)
def test_blocks_join_to_the_same_cube(tmp_path: Path, parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(5):
        values = [(f"p{i}", k, f"{step + i + k / 10}") for k in range(2) for i in range(7)]
        put(tmp_path, RANK0, f"grad_unreduced_{step}-{step}.csv", HEADER + rows(step, *values))
    whole = read_csv(tmp_path, ["grad_unreduced"], parser).cubes["grad_unreduced"]
    monkeypatch.setattr("detaudit.spike.csv_blocks.BLOCK_BYTES", 120)
    monkeypatch.setattr("detaudit.spike.read_csv.BLOCK_BYTES", 120)
    parts = read_csv(tmp_path, ["grad_unreduced"], parser).cubes["grad_unreduced"]
    assert np.array_equal(whole.values, parts.values) and whole.targets == parts.targets


def test_row_numbers_hold_beyond_the_first_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detaudit.spike.csv_blocks.BLOCK_BYTES", 200)
    lines = [rows(0, (f"p{i}", 0, "1")) for i in range(40)]
    lines[31] = "broken\n"
    put(tmp_path, RANK0, "grad_unreduced_0-0.csv", HEADER + "".join(lines))
    run = read_csv(tmp_path, ["grad_unreduced"], "csv")
    assert [line.row for line in run.broken] == [33] and run.rows == 39


def test_norm_may_be_absent_then_the_largest_magnitude_stands_in(tmp_path: Path) -> None:
    put(tmp_path, RANK0, "grad_unreduced_0-0.csv", "name,step,max,min\nw,0,2,-3\n")
    cube = read_csv(tmp_path, ["grad_unreduced"]).cubes["grad_unreduced"]
    assert (cube.values.item(), cube.statistic) == (3.0, "absmax")


@pytest.mark.parametrize(
    ("header", "says"),
    [("name,step,mean\n", "neither a norm column"), ("name,norm\n", "lacks step"), ("a,b\n", "lacks name, step")],
)
def test_a_header_without_what_is_needed_is_an_error_that_names_it(tmp_path: Path, header: str, says: str) -> None:
    put(tmp_path, RANK0, "grad_unreduced_0-0.csv", header + "1,2,3\n")
    with pytest.raises(UnreadableError, match=says):
        read_csv(tmp_path, ["grad_unreduced"])


def test_the_later_start_of_a_rank_wins_and_is_said(tmp_path: Path) -> None:
    early, late = "Nov30_23-59-59-rank0-ffffffff", "Dec01_00-00-01-rank0-00000000"
    put(tmp_path, late, "grad_unreduced_1-1.csv", HEADER + rows(1, ("a", 0, "7")))
    put(tmp_path, early, "grad_unreduced_0-0.csv", HEADER + rows(0, ("a", 0, "1")))
    put(tmp_path, early, "grad_unreduced_1-1.csv", HEADER + rows(1, ("a", 0, "2")))
    run = read_csv(tmp_path, ["grad_unreduced"])
    assert run.cubes["grad_unreduced"].values.ravel().tolist() == [1, 7]
    assert run.restarts == {0: [early, late]} and run.cubes["grad_unreduced"].duplicates == 1


def test_january_is_later_than_december_over_new_year() -> None:
    folders = [f"{clock}-rank0-0000000{i}" for i, clock in enumerate(("Jan01_00-10-00", "Dec31_23-50-00"))]
    files = [identify(Path(folder) / "grad_unreduced_0-0.csv") for folder in folders]
    ordered = in_start_order([file for file in files if file])
    assert [file.folder[:3] for file in ordered] == ["Dec", "Jan"]
    assert start_order("Foo01_00-00-00") == ()


def test_v2_files_are_read_by_scope(tmp_path: Path) -> None:
    header = "vpp_stage,step,module_name,scope,micro_step,norm\n"
    body = "".join(
        f"-1,4,w{i},{scope},{k},{i + k}.5\n" for scope in ("unreduced", "reduced") for k in (0, 1) for i in (0, 1)
    )
    put(tmp_path, "rank_3", "weight_grad_step4-4.csv", header + body)
    cube = read_csv(tmp_path, ["grad_unreduced"]).cubes["grad_unreduced"]
    assert (cube.ranks, cube.steps, cube.micro_steps) == ((3,), (4,), 2)
    assert cube.values[0, 1].tolist() == [[1.5, 2.5]] and cube.targets[0].vpp_stage == -1


def test_v2_micro_step_that_is_a_count_is_no_coordinate(tmp_path: Path) -> None:
    header = "vpp_stage,step,module_name,scope,micro_step,norm\n"
    for step in (0, 1):
        put(tmp_path, "rank_0", f"weight_grad_step{step}-{step}.csv", header + f"0,{step},w,unreduced,4,1.0\n")
    cube = read_csv(tmp_path, ["grad_unreduced"]).cubes["grad_unreduced"]
    assert cube.micro_steps == 1 and not cube.micro_declared


def test_model_chunks_keep_targets_of_one_name_apart(tmp_path: Path) -> None:
    put(tmp_path, RANK0, "grad_unreduced_0-0.csv", "vpp_stage,name,step,norm\n0,w,0,1\n1,w,0,2\n0,v,0,3\n")
    cube = read_csv(tmp_path, ["grad_unreduced"]).cubes["grad_unreduced"]
    assert [(t.name, t.vpp_stage) for t in cube.targets] == [("w", 0), ("w", 1), ("v", 0)]
    assert cube.values[0, :, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "metric", "rank"),
    [
        (f"{RANK1}/exp_avg_sq_0-9.csv", "exp_avg_sq", 1),
        (f"{RANK1}/exp_avg_0-9.csv", "exp_avg", 1),
        (f"{RANK1}/actv_grad_0-0.csv", "actv_grad", 1),
        ("plain/gen_rank2_grad_unreduced_2-3.csv", "grad_unreduced", 2),
        ("plain/grad_unreduced_2-3.csv", "grad_unreduced", 0),
    ],
)
def test_a_file_is_known_by_its_name(name: str, metric: str, rank: int) -> None:
    file = identify(Path(name))
    assert file is not None and (file.metric, file.rank) == (metric, rank)


@pytest.mark.parametrize("name", ["x/stack_info.csv", "x/notes.csv", "x/foo_1-2.csv"])
def test_other_files_are_not_monitor_output(name: str) -> None:
    assert identify(Path(name)) is None


def test_directory_file_and_glob_are_the_same_input(tmp_path: Path) -> None:
    path = put(tmp_path, RANK0, "grad_unreduced_0-0.csv", HEADER + rows(0, ("a", 0, "1")))
    assert (
        expand(tmp_path)
        == expand(path)
        == expand(str(tmp_path / "*rank0*" / "*.csv"))
        == expand(str(tmp_path / "*rank0*"))
    )


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no CSV files"):
        read_csv(tmp_path, ["grad_unreduced"])
    put(tmp_path, "x", "notes.csv", "a\n1\n")
    with pytest.raises(UnreadableError, match="none named like monitor output"):
        read_csv(tmp_path, ["grad_unreduced"])


def test_pyarrow_that_is_asked_for_and_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blocks, "load_pyarrow", lambda: None)
    with pytest.raises(UnreadableError, match=r"detaudit\[parquet\]"):
        csv_blocks.choose_parser("pyarrow")
    assert csv_blocks.choose_parser("auto") == (None, "csv")


def test_the_sample_is_read_whole(tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / RANK1).mkdir()
    shutil.copy(sample("gen_ddp_rank1_grad_unreduced_2-3.csv"), tmp_path / RANK1 / "grad_unreduced_2-3.csv")
    cube = read_csv(tmp_path, ["grad_unreduced"]).cubes["grad_unreduced"]
    assert (cube.ranks, cube.steps, cube.values.shape) == ((1,), (2, 3), (1, 14, 2, 3))
    assert cube.values[0, 0, 0].tolist() == [0.10745308, 10.27453724, 10.43551652]


def test_the_activation_sample_with_nan_rows_and_an_empty_module_name(tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / RANK0).mkdir()
    shutil.copy(sample("gen_ddp_rank0_actv_grad_0-0.csv"), tmp_path / RANK0 / "actv_grad_0-0.csv")
    run = read_csv(tmp_path, ["actv_grad"])
    cube = run.cubes["actv_grad"]
    assert cube.targets[0].name == ".input" and math.isnan(cube.values[0, 0, 0, 0]) and run.broken_count == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.floats(0, 1e6)), min_size=1, max_size=40))
def test_whatever_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, int, float]]
) -> None:
    root = tmp_path_factory.mktemp("csv")
    put(root, RANK0, "grad_unreduced_0-9.csv", "name,step,norm\n" + "".join(f"{n},{s},{x!r}\n" for n, s, x in cells))
    cube = read_csv(root, ["grad_unreduced"]).cubes["grad_unreduced"]
    expected = {(name, step): value for name, step, value in cells}
    held = {
        (cube.targets[p].name, cube.steps[s]): float(cube.values[0, p, s, 0])
        for p, s in np.argwhere(cube.present[0, :, :, 0])
    }
    assert held == expected
    assert cube.duplicates == len(cells) - len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS)
def test_a_million_rows_with_one_broken_line(tmp_path: Path, parser: str) -> None:
    lines = [f"0,p{i % 1000},{i // 1000},{1 + i % 7}.25\n" for i in range(10**6)]
    lines[654_321] = "0,p1,what,1\n"
    put(tmp_path, RANK0, "grad_unreduced_0-999.csv", "vpp_stage,name,step,norm\n" + "".join(lines))
    run = read_csv(tmp_path, ["grad_unreduced"], parser)
    assert [line.row for line in run.broken] == [654_323] and run.rows == 10**6 - 1
