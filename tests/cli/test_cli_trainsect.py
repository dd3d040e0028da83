"""`trainsect record`, `gate`, `replay` from the command line; evaluations of scripts that record none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from detaudit.cli import main
from detaudit.cli import trainsect as verb
from detaudit.core.errors import UnreadableError, UsageError
from detaudit.trainsect import evalsource
from tests.trainsect import recorded

SCRIPT = recorded.PROGRAMS / "script.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "run"
    recorded.train(path)
    return path


def test_the_gate_passes_and_halts(run, tmp_path, capsys):
    out = ["--from", "4", "--to", "8", "--out", str(tmp_path / "gate"), "--json"]
    assert verb.main(["gate", str(run), "--target", str(recorded.MLP), *out]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["outcome"] == "clean" and value["parameters"].keys() == {"4", "8"}
    wrong = tmp_path / "wrong.py"
    wrong.write_text(recorded.MLP.read_text().replace("alpha=0.1", "alpha=0.2"))
    assert main(["trainsect", "gate", str(run), "--target", str(wrong), *out]) == 3
    value = json.loads(capsys.readouterr().out)
    assert value["outcome"] == "halted" and value["leaf"].startswith("ema.shadow") and value["step"] == 8


def test_a_replay_with_other_batches(run, tmp_path, capsys):
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"5": [list(range(8))]}))
    call = ["replay", str(run), "--target", str(recorded.MLP), "--from", "4", "--to", "8", "--json"]
    call += ["--out", str(tmp_path / "gate")]
    assert verb.main(call) == 0
    plain = json.loads(capsys.readouterr().out)
    assert verb.main([*call, "--substitute", str(rows)]) == 0
    other = json.loads(capsys.readouterr().out)
    assert plain["states"]["4"] == other["states"]["4"] and plain["states"]["8"] != other["states"]["8"]


def test_usage(run, tmp_path, capsys):
    assert verb.main(["record", "--out", str(tmp_path / "x")]) == 2
    assert verb.main(["gate", str(run)]) == 2
    assert verb.main(["gate", str(run), "--rerun"]) == 2
    assert verb.main(["gate", str(tmp_path)]) == 2
    assert "trainsect record" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_script_is_recorded_and_run_again_without_a_change(tmp_path, monkeypatch, capsys, workers):
    from detaudit.core.errors import UsageError
    from detaudit.trainsect.rerun import EvalSource, RerunReplayer
    from detaudit.trainsect.run import open_run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = "metrics.jsonl:step:eval_loss"
    call = ["record", "--out", "run", "--every", "4", "--eval", spec, "--", sys.executable, str(SCRIPT), workers]
    assert verb.main(call) == 0
    run = open_run("run")
    assert len(run.steps) == 18 and run.shard_of(30) == "shard-1" and run.pool == range(72)
    assert all(entry.ids and entry.batch and entry.loss for entry in run.steps.values())
    assert run.steps[0].loader["places"][0]["workers"] == int(workers)
    assert verb.main(["gate", "run", "--rerun", "--eval", spec, "--to", "8"]) == 0
    replayer = RerunReplayer(run, Path("again"), EvalSource(spec))
    result = replayer.replay(4, 12, substitutions={5: run.steps[0].ids}, evaluate_at=[8])
    assert result.states[4] == run.checkpoints[4].state_sha256
    assert result.states[8] != run.checkpoints[8].state_sha256
    with pytest.raises(UsageError, match="no evaluation at step 9"):
        replayer.replay(4, 12, substitutions={5: run.steps[0].ids}, evaluate_at=[9])


def test_evaluations_from_files(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1, "l": 0.5}\n{"step": 1}\n{"step": 2, "l": "nan"}\n')
    rows = evalsource.from_file("m.jsonl:step:l", tmp_path)
    assert rows[0] == (1, 0.5) and repr(rows[1]) == "(2, nan)"
    (tmp_path / "m.csv").write_text("step,l,t\n3,1e-3,\n4,,9\n")
    assert evalsource.from_file("m.csv:step:l", tmp_path) == [(3, 0.001)]


@pytest.mark.parametrize("text", ["", "no json\n", '{"step": "x", "l": 1}\n', '{"step": 1}\n'])
def test_files_without_evaluations_are_an_error(tmp_path, text):
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(UnreadableError):
        evalsource.from_file("m.jsonl:step:l", tmp_path)


def test_evaluations_from_stdout():
    pattern = evalsource.compile_regex(r"^eval at (?P<step>\d+): (?P<loss>\S+)$")
    assert evalsource.from_text(pattern, "x\neval at 3: 0.25\neval at 4: inf\n") == [(3, 0.25), (4, float("inf"))]
    with pytest.raises(UnreadableError):
        evalsource.from_text(pattern, "nothing")


@pytest.mark.parametrize("text", ["(", "(?P<step>1)", "loss"])
def test_expressions_without_their_groups(text):
    with pytest.raises(UsageError):
        evalsource.compile_regex(text)


@pytest.mark.parametrize("spec", ["a", "a:b", ":b:c", "a::c"])
def test_specifications_that_lack_a_part(spec):
    with pytest.raises(UsageError):
        evalsource.parse(spec)
