"""The shipped demonstrations, from the command line to the verified report."""

import json

import pytest

from detaudit import cli


def shown(capsys, *argv):
    code = cli.main(["trainsect", *map(str, argv)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_mlp(tmp_path, capsys):
    code, value = shown(capsys, "demo", "mlp", "--out", tmp_path / "demo", "--json")
    verdict = value["verdict"]
    assert code == 0 and (verdict["status"], verdict["shards"]) == ("CONFIRMED (causal)", ["shard-2"])
    assert verdict["bracket"] == [40, 80] and value["inside"][0]["step"] == 57 and value["inside"][0]["sample"] == 311
    report = tmp_path / "demo" / "run" / "diagnosis" / "report.json"
    assert shown(capsys, "verify", report, "--json")[0] == 0
    text = report.read_text()
    report.write_text(text.replace('"shard-2"', '"shard-3"', 1))
    code, checked = shown(capsys, "verify", report, "--json")
    assert code == 1 and not checked["verified"]


@pytest.mark.slow
def test_transformer_stripped(tmp_path, capsys):
    code, value = shown(capsys, "demo", "transformer", "--stripped", "--json")
    assert code == 0 and (value["verdict"]["status"], value["verdict"]["shards"]) == ("UNPROVEN", [])
    assert value["forensic"]["reproduced"] == 0 and "would settle it" in value["verdict"]["reason"]


def test_a_directory_in_use_is_left_alone(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert cli.main(["trainsect", "demo", "mlp", "--out", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_diagnosis_needs_a_target(tmp_path, capsys):
    assert cli.main(["trainsect", "diagnose", str(tmp_path)]) == 2
    assert "--target" in capsys.readouterr().err


def test_a_directory_that_holds_no_run(tmp_path, capsys):
    assert cli.main(["trainsect", "diagnose", str(tmp_path), "--target", "x.py"]) == 2
    capsys.readouterr()
