"""The JSON of a verdict: its keys are a contract."""

from __future__ import annotations

import json

import pytest

from detaudit.report.json import SCHEMA, verdict_json
from tests.report.test_report_text import SEED, VERDICTS, diverged

KEYS = (
    "schema verdict reason warnings steps_compared leaves_compared first_divergence diverging_leaves equal_before runs "
    "pair created_files manifest_differences overrides leaves command directory certificate next_command explanation"
)


@pytest.mark.parametrize("name", VERDICTS)
def test_keys(name):
    value = json.loads(verdict_json(VERDICTS[name]))
    assert list(value) == KEYS.split() and value["schema"] == SCHEMA == "detaudit.verdict/1"
    assert value["verdict"] == name.split("-")[0]


def test_a_divergence():
    first = json.loads(verdict_json(diverged(*SEED)))["first_divergence"]
    assert first == {
        "step": 3,
        "leaf": "checksums.encoder_output",
        "kind": "value",
        "rank": "",
        "order": 7,
        "optimizer": "",
        "run_a": "6896.334218005304",
        "run_b": "6896.194631539084",
        "delta": pytest.approx(0.139586, abs=1e-6),
        "note": "",
    }


def test_all_diverging_leaves_are_listed():
    assert len(json.loads(verdict_json(VERDICTS["diverged-many"]))["diverging_leaves"]) == 43
