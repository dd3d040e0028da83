from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import spike_runs
from spike_dumps import DumpSpec, Effect, write
from spike_runs import Spec

from detaudit.cli import spike as cli
from detaudit.core.errors import DetauditError, UsageError
from detaudit.core.model import Layout, Leaf, Stats, StepRecord

ROOT = Path(__file__).resolve().parents[2]


def call(*argv: str) -> int:
    """Run the verb as the command line will: errors become their exit codes."""
    parser = argparse.ArgumentParser()
    verb = cli.SpikeVerb()
    verb.add_arguments(parser)
    try:
        return verb.run(parser.parse_args(list(argv)))
    except DetauditError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def script(name: str, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), *argv], capture_output=True, text=True, env=env
    )


@pytest.fixture
def csv_run(tmp_path: Path) -> Path:
    return spike_runs.write(Spec(gain=5.0), tmp_path / "run").path


def test_the_three_scripts_find_the_injected_coordinate(tmp_path: Path, csv_run: Path) -> None:
    p1, p2 = tmp_path / "p1.json", tmp_path / "p2.json"
    one = script("trend_db_spike_detector.py", str(csv_run), "--csv", "-o", str(p1))
    assert (one.returncode, one.stdout) == (1, "")
    two = script("phase2_root_cause_selector.py", "--phase1", str(p1))
    root = json.loads(two.stdout)["root_cause_coordinate"]
    assert (root["opt_step"], root["micro_step"], root["rank"], root["target_name"]) == (4, 1, 1, Spec().names[2])
    assert script("phase2_root_cause_selector.py", "--npu", str(p1), "--gpu", str(p1), "-o", str(p2)).returncode == 1
    assert json.loads(p2.read_text())["mode"] == "cross-device"


def test_the_trace_script_takes_the_seeds_flags(tmp_path: Path) -> None:
    folders = write(DumpSpec(layers=5, effects=(Effect(layers=(2, 3, 4)),)), tmp_path)
    flags = [part for side in "abcd" for part in (f"--dump-{side}", str(folders[side.upper()]))]
    done = script("phase3_trace_analyzer.py", *flags)
    result = json.loads(done.stdout)
    assert done.returncode == 1 and result["conclusion"]["earliest_fwd_divergence"] == "decoder.layers.2"


def test_the_scripts_find_the_shared_samples(tmp_path: Path, sample: Any) -> None:
    folder = tmp_path / "Dec01_07-38-18-rank1-1d53e1da"
    folder.mkdir()
    shutil.copy(sample("gen_ddp_rank1_grad_unreduced_2-3.csv"), folder / "grad_unreduced_2-3.csv")
    database = str(sample("gen_ddp_2rank_monitor_data.trend.db"))
    for arguments in ([str(tmp_path), "--csv"], [database]):
        p1 = tmp_path / "p1.json"
        script("trend_db_spike_detector.py", *arguments, "-o", str(p1))
        root = json.loads(script("phase2_root_cause_selector.py", "--phase1", str(p1)).stdout)["root_cause_coordinate"]
        assert (root["rank"], root["optimizer_step"], root["micro_step"]) == (1, 2, 1)


def test_scripts_print_errors_to_stderr_and_nothing_to_stdout(tmp_path: Path) -> None:
    done = script("trend_db_spike_detector.py", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "") and "no monitor CSV" in done.stderr


def test_the_verb_goes_through_all_phases(tmp_path: Path, csv_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p1, p2, p3 = (str(tmp_path / f"p{n}.json") for n in (1, 2, 3))
    assert call("detect", str(csv_run), "-o", p1) == 1
    assert "Candidate coordinates" in capsys.readouterr().out
    assert call("select", "--phase1", p1, "-o", p2) == 1
    folders = write(DumpSpec(layers=5, effects=(Effect(layers=(2, 3, 4)),)), tmp_path / "dumps")
    flags = [part for side in "abcd" for part in (f"--dump-{side}", str(folders[side.upper()]))]
    assert call("trace", *flags, "--phase2", p2, "-o", p3) == 1
    assert (
        "dump A is step 0 rank 0, the root coordinate is step 4 rank 1" in json.loads(Path(p3).read_text())["notes"][0]
    )
    capsys.readouterr()
    for form in ("text", "markdown", "html", "json"):
        assert call("report", "--phase1", p1, "--phase2", p2, "--phase3", p3, "--format", form, "--lang", "zh") == 0
        out = capsys.readouterr().out
        assert ("Spike 根因定位分析" in out) == (form != "json")
    page = tmp_path / "report.html"
    assert call("report", "--phase1", p1, "--phase2", p2, "--phase3", p3, "--format", "html", "-o", str(page)) == 0
    assert page.read_text().startswith("<!doctype html>")


def test_json_of_every_phase_is_on_stdout_alone(
    tmp_path: Path, csv_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("detect", str(csv_run), "--json") == 1
    first = capsys.readouterr().out
    assert json.loads(first)["phase"] == 1
    (tmp_path / "p1.json").write_text(first)
    assert call("select", "--phase1", str(tmp_path / "p1.json"), "--json") == 1
    assert json.loads(capsys.readouterr().out)["phase"] == 2
    assert call("report", "--phase1", str(tmp_path / "p1.json"), "--json") == 0
    assert list(json.loads(capsys.readouterr().out)) == ["phase1"]


@pytest.mark.parametrize(
    ("spec", "code"), [(Spec(), 1), (Spec(scope="none"), 0), (Spec(scope="none", missing=(1,)), 3)]
)
def test_exit_codes_of_detect(tmp_path: Path, spec: Spec, code: int) -> None:
    assert call("detect", str(spike_runs.write(spec, tmp_path).path), "--json") == code


def test_a_question_is_printed_and_exits_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "Dec01_00-00-00-rank0-00000000" / "grad_unreduced_0-0.csv"
    path.parent.mkdir()
    path.write_text("name,step,micro_step,norm\nw,0,0,1.0\nw,0,1,1.1\n")
    assert call("detect", str(tmp_path)) == 3
    assert "--accumulation cumulative|independent" in capsys.readouterr().out
    assert call("detect", str(tmp_path), "--json") == 3
    assert "--accumulation" in json.loads(capsys.readouterr().out)["questions"][0]
    for side in ("A", "C"):
        write(DumpSpec(layers=2, sides=(side,)), tmp_path / f"n{side}")
    both = tmp_path / "d"
    for rank, side in enumerate("AC"):
        shutil.copytree(tmp_path / f"n{side}" / side / "step0" / "rank0", both / "step0" / f"rank{rank}")
    assert call("trace", "--dump-a", str(both / "step0" / "rank0"), "--dump-b", str(both / "step0" / "rank0")) == 3
    assert "--no-control" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["select"],
        ["select", "--npu", "x"],
        ["select", "--phase1", "a", "--npu", "b", "--gpu", "c"],
        ["report"],
        ["detect", "/does/not/exist"],
        ["select", "--phase1", "/does/not/exist"],
    ],
)
def test_wrong_calls_exit_two(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err


@pytest.mark.parametrize(
    "argv",
    [
        ["detect", "x", "--rate", "0.9"],
        ["detect", "x", "--ratio", "1"],
        ["detect", "x", "--limit", "0"],
        ["select", "--majority", "2"],
        ["trace", "--dump-a", "a", "--dump-b", "b", "--coordinate", "5"],
        ["detect", "x", "--csv", "--dump"],
    ],
)
def test_illegal_values_name_what_is_legal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        call(*argv)
    assert caught.value.code == 2 and "error:" in capsys.readouterr().err


def test_a_read_only_directory_is_said(
    tmp_path: Path, csv_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert call("detect", str(csv_run), "-o", str(tmp_path / "p1.json")) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_progress_goes_to_stderr_in_tenths(capsys: pytest.CaptureFixture[str]) -> None:
    show = cli._progress()
    for done in range(1, 201):
        show("reading x", done, 200)
    show("reading y", 1, 3)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 11 and "reading x: 200/200" in captured.err


def test_trails_reach_the_room_through_one_function(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = Layout((Leaf("grad.w", "float32", (2,)),))

    def reader(directory: str) -> dict[int, list[StepRecord]]:
        assert directory == "runs"
        norms = [1.0 + 0.01 * (s % 5) for s in range(12)]
        norms[9] = 70.0
        return {0: [StepRecord(s, layout, (0,), 0, (Stats(0, x * x, 0, 0, 0, 0),)) for s, x in enumerate(norms)]}

    monkeypatch.setattr(cli, "open_trails", reader)
    assert call("detect", "runs", "--trail", "--json") == 1
    assert json.loads(capsys.readouterr().out)["groups"][0]["optimizer_step"] == 9


def test_a_directory_without_trails_is_a_usage_error(tmp_path: Path) -> None:
    pytest.importorskip("detaudit.trail.reader", reason="the trail room is not part of this checkout")
    with pytest.raises(UsageError, match="no \\*\\.trail"):
        cli.open_trails(str(tmp_path))


def test_the_help_is_the_docstring_and_names_the_exit_codes() -> None:
    assert cli.SpikeVerb.name == "spike" and "Exit 0" in (cli.SpikeVerb.__doc__ or "")


def modules() -> list[Path]:
    return sorted((ROOT / "detaudit" / "spike").glob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.stem)
def test_the_room_imports_core_and_numpy_alone_and_stays_small(path: Path) -> None:
    allowed = {"detaudit", "numpy", "pyarrow", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] in allowed, name
            assert not name.startswith("detaudit.") or name.startswith(("detaudit.core", "detaudit.spike")), name
    assert len(path.read_text().splitlines()) <= 400


def test_the_offline_verb_loads_neither_torch_nor_numpy_to_print_its_help() -> None:
    code = (
        "import sys, argparse; from detaudit.cli.spike import SpikeVerb;"
        "SpikeVerb().add_arguments(argparse.ArgumentParser());"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'pyarrow', 'matplotlib'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_whole_run_never_loads_torch(csv_run: Path) -> None:
    code = (
        f"import sys; from detaudit.cli.spike import script; script('detect', 'x', [{str(csv_run)!r}]);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.strip().endswith("False"), done.stderr
