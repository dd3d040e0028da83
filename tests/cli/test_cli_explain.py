"""`detaudit explain` and `check --explain`, with a stand-in for the training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from detaudit import cli
from detaudit.core.axes import AXES, PLAIN

FAKE = str(Path(__file__).parents[1] / "fake_training.py")


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs the command line in an empty working directory: (exit code, stdout, stderr)."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def run(*argv):
        code = cli.main([str(word) for word in argv])
        return (code, *capsys.readouterr())

    return run


def command(how):
    return ("--", sys.executable, FAKE, how)


class TestExplain:
    def test_an_audit_that_was_not_drilled_into(self, call):
        call("check", "--no-drill", "--stats", "--steps", "8", *command("cured:entropy"))
        code, out, err = call("explain", "detaudit-out", "--pairs", "1")
        assert code == 1 and out.startswith("FIRST_DIVERGENCE: step=4 leaf=loss ")
        assert "EXPLANATION (unproven)" in out and "- the operators were not traced\n" in out
        assert "\n  toggle              pairs  diverged\n  plain                   1         1\n" in out
        assert "\n  entropy                 1         0\n" in out and "fix:\n    " in out
        assert out.rstrip().endswith("next: detaudit show detaudit-out --step 4")
        assert err.count("repeated ") == len(AXES) and "repeated on one intra-op thread" in err
        written = json.loads(Path("detaudit-out/verdict.json").read_text())
        assert written["explanation"]["toggles"][0] == {"name": PLAIN, "pairs": 1, "diverged": 1}
        assert written["explanation"]["cause"]["support"] in ("experiment", "signature", "weak")
        assert Path("detaudit-out/explain/entropy/1/A/main.trail").exists()

    def test_json_and_again(self, call):
        call("check", "--pairs", "1", *command("cured:hash-seed"))
        texts = [call("explain", "--pairs", "1", "--json")[1] for _ in range(2)]
        assert texts[0] == texts[1]
        value = json.loads(texts[0])
        counts = {item["name"]: item["diverged"] for item in value["explanation"]["toggles"]}
        assert counts["hash-seed"] == 0 and counts["threads-1"] == 1

    @pytest.mark.parametrize(
        ("how", "words"), [("clean", "did not diverge (clean): nothing to explain"), ("fail:4", "(inconclusive)")]
    )
    def test_nothing_to_explain(self, call, how, words):
        call("check", *command(how))
        code, out, err = call("explain")
        assert code == 2 and out == "" and words in err

    def test_no_audit(self, call):
        code, _, err = call("explain", "nowhere")
        assert code == 2 and "nowhere/verdict.json cannot be read" in err


class TestCheckExplain:
    def test_all_toggles(self, call):
        code, out, _ = call("check", "--explain", "--pairs", "1", "--json", *command("diverge:4"))
        names = [toggle["name"] for toggle in json.loads(out)["explanation"]["toggles"]]
        assert code == 1 and names == [PLAIN, *(name for name in AXES if name != "workers-0")]

    def test_not_both(self, call):
        code, out, err = call("check", "--explain", "--no-drill", *command("clean"))
        assert code == 2 and out == "" and "which --no-drill forbids" in err and not Path("detaudit-out").exists()

    def test_no_drill_runs_nothing_again(self, call):
        _, out, err = call("check", "--no-drill", *command("diverge:4"))
        assert "repeated" not in err and "EXPLANATION" not in out
        assert "next: detaudit show detaudit-out --step 4" in out
