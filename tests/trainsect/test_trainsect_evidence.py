"""The evidence of a diagnosis: equal bytes for equal runs, and a changed byte shows."""

import copy
import json
import math

import pytest

from detaudit.core.errors import UnreadableError, UsageError
from detaudit.trainsect import check, evidence, evidence_html, evidence_text
from detaudit.trainsect.counts import control, interval
from detaudit.trainsect.diagnosis import Options, diagnose
from tests.trainsect.trainsect_rig import record
from tests.trainsect.trainsect_toys import POOL, Concentration, Single, Toy, order, shard_of


def diagnosed(tmp_path, toy=Single, bad=None, seconds=1.0):
    run, replayer = record(toy(), order(bad={47: [23]} if bad is None else bad), shard_of=shard_of, pool=POOL)
    run.directory = tmp_path
    (tmp_path / "run.json").write_text("{}")
    found = diagnose(run, replayer, Options(), lambda text: None)
    return evidence.report_value(found, {"seconds": seconds}, "target.py"), replayer


def problems(findings):
    return {each.what: each.problem for each in findings if each.problem}


def test_equal_runs_give_equal_bytes_except_timing(tmp_path):
    first, _ = diagnosed(tmp_path)
    second, _ = diagnosed(tmp_path, seconds=99.0)
    assert first["integrity"] == second["integrity"] and first["timing"] != second["timing"]
    second["timing"] = first["timing"]
    assert evidence.dumps(first) == evidence.dumps(second)
    assert evidence_text.markdown(first) == evidence_text.markdown(second)
    assert evidence_html.html(first) == evidence_html.html(second)


def test_the_sentence_names_shard_bracket_batch_and_sample(tmp_path):
    value, _ = diagnosed(tmp_path)
    sentence = "CONFIRMED (causal): SINGLE, shard-2, bracket [40, 60), batch of step 47, sample 23"
    assert value["verdict"]["sentence"] == sentence
    assert set(value["repro"]) == {"identity", "necessity", "sufficiency"}
    page = evidence_text.markdown(value)
    assert sentence in page and "--only necessity" in page and "conditional on checkpoint 40" in page


def test_a_report_verifies_and_reproduces(tmp_path):
    value, replayer = diagnosed(tmp_path)
    value = json.loads(evidence.dumps(value))
    replayer.cache.clear()
    executed = replayer.executed
    assert not problems(check.check_files(value, tmp_path)) and not problems(check.check_replays(value, replayer))
    assert replayer.executed > executed


@pytest.mark.parametrize("name", ["verdict", "collapse", "controls", "replays", "repro", "files", "warnings"])
def test_a_change_anywhere_is_seen(tmp_path, name):
    value, _ = diagnosed(tmp_path)
    changed = copy.deepcopy(value)
    changed[name] = [changed[name], "changed"]
    assert evidence.integrity(changed) != value["integrity"]


def test_a_changed_file_of_the_run_is_named(tmp_path):
    value, _ = diagnosed(tmp_path)
    (tmp_path / "run.json").write_text("{ }")
    assert "SHA-256" in problems(check.check_files(value, tmp_path))["run.json"]
    (tmp_path / "run.json").unlink()
    assert problems(check.check_files(value, tmp_path)) == {"run.json": "is missing"}


def test_a_path_out_of_the_run_is_refused(tmp_path):
    value, _ = diagnosed(tmp_path)
    value["files"] = {"../secret": "0"}
    assert "outside" in problems(check.check_files(value, tmp_path))["../secret"]


def test_a_report_that_rests_on_nothing_fails(tmp_path):
    value, _ = diagnosed(tmp_path)
    value["files"] = {}
    assert "files" in problems(check.check_files(value, tmp_path))


@pytest.mark.parametrize("name", ["identity", "necessity", "sufficiency"])
def test_each_replay_is_really_compared(tmp_path, name):
    value, replayer = diagnosed(tmp_path)
    value = json.loads(evidence.dumps(value))
    if name == "identity":
        value["repro"][name]["states"]["60"] = "0" * 64
    else:
        value["repro"][name]["loss"] = 0.123
    assert set(problems(check.check_replays(value, replayer))) == {name}
    assert set(problems(check.check_replays(value, replayer, [name]))) == {name}


def test_a_replay_that_the_report_lacks(tmp_path):
    value, replayer = diagnosed(tmp_path, Toy)
    assert value["verdict"]["status"] == "NO-COLLAPSE"
    assert problems(check.check_replays(value, replayer, ["necessity"]))
    with pytest.raises(UsageError, match="identity, necessity, sufficiency"):
        check.check_replays(value, replayer, ["other"])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "x"}'])
def test_what_is_no_report_is_unreadable(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UnreadableError):
        evidence.read(tmp_path / "report.json")


def test_the_page_holds_its_plots(tmp_path):
    bad = {42 + k: [(19, 39, 49, 69)[k % 4]] for k in range(16)}
    value, _ = diagnosed(tmp_path, Concentration, bad)
    page = evidence_html.html(value)
    assert page.count("<svg") == 3 and "Dose curve" in page and "<script" not in page and "http-equiv" not in page
    assert value["dose"]["smallest_with_all_collapsed"] >= 12 and not value["verdict"]["shards"]


def test_numbers_that_are_not_finite_stay_json(tmp_path):
    value, _ = diagnosed(tmp_path)
    value["evaluations"].append({"step": 999, "loss": repr(math.nan), "data": ""})
    json.loads(evidence.dumps(value), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize(("k", "low"), [(3, 0.292), (5, 0.478), (8, 0.631), (20, 0.832), (36, 0.903)])
def test_the_interval_of_k_of_k(k, low):
    """The lower bounds of facts 4.5."""
    assert interval(k, k)[0] == pytest.approx(low, abs=1e-3) and interval(k, k)[1] == 1.0
    assert interval(0, k)[1] == pytest.approx(1 - low, abs=1e-3)


def test_a_control_without_replays_has_not_passed():
    assert control("x", [], "all").passed is None and control("x", [True, False], "all").passed is False
    assert control("x", [False], "none").passed and interval(4, 8)[0] < 0.5 < interval(4, 8)[1]
