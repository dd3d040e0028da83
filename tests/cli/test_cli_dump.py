"""The verb `dump` and the script beside it: what they print and how they exit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detaudit import cli
from detaudit.cli.dump import shipped_set
from tests.made_dumps import make_dump, shifted

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare-per-state.py"
OWN = '[buffers.mine]\nleaf = "checksums.priority_tree"\n'
OWN += '[hypotheses.X]\ntitle = "t"\nbuffer = "mine"\nexplanation = "e"\n'


@pytest.fixture
def call(capsys):
    def run(*argv):
        code = cli.main(["dump", "compare", *map(str, argv)])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def pair(tmp_path):
    """Runs A and B of an audit in a directory with a blank; in B the tree differs at step 2, as in the seed."""
    audit = tmp_path / "the audit"
    make_dump(audit / "A" / "dump")
    make_dump(audit / "B" / "dump", {(2, "tree"): shifted("tree", 2)})
    return audit


def test_diverged_reads_as_in_the_seed(call, pair):
    code, out, err = call(pair / "A", pair / "B")
    lines = out.splitlines()
    assert code == 1 and err == ""
    place = lines.index("step 2:")
    assert lines[place + 1] == "  prng: EQUAL (8 elements)" and "  tree: DIVERGE at idx 1" in lines[place:]
    assert lines[-1].startswith("VERDICT: HYPOTHESIS C (tree-rebuild nondeterminism): tree is the first to differ")


def test_the_audit_s_directory_and_a_run_s_dump_are_as_good(call, pair):
    whole = call(pair)
    assert whole == call(pair / "A" / "dump", pair / "B" / "dump") == call(pair / "A" / "dump" / "main", pair / "B")


def test_clean(call, pair):
    code, out, _ = call(pair / "A", pair / "A")
    assert code == 0 and out.splitlines()[-1] == "VERDICT: all four buffers match across all dumped steps (0, 1, 2)."


def test_json(call, pair):
    code, out, _ = call(pair, "--json")
    value = json.loads(out)
    assert code == value["exit_code"] == 1 and value["schema"] == "detaudit.dump/1"
    assert {h["id"]: h["support"] for h in value["hypotheses"]} == {
        "A": "ruled out",
        "B": "ruled out",
        "C": "supported",
    }
    assert value["buffers"][-1]["difference"]["first"] == 1


def test_a_set_of_one_s_own(call, pair, tmp_path):
    (tmp_path / "own set.toml").write_text(OWN)
    code, out, _ = call(pair, "--hypotheses", tmp_path / "own set.toml")
    assert code == 1 and out.splitlines()[-1] == "VERDICT: HYPOTHESIS X (t): mine is the first to differ, at step 2. e"


def test_another_program_has_no_shipped_set(call, tmp_path):
    for label in "AB":
        make_dump(tmp_path / label, command=("train.py",))
    code, out, _ = call(tmp_path)
    assert code == 0 and "hypotheses" not in out and "  checksums.priority_tree: EQUAL" in out


@pytest.mark.parametrize(
    ("word", "name"),
    [("/x/detaudit/workloads/per_rl.py", "per_rl.toml"), ("detaudit.workloads.per_rl", "per_rl.toml"),
     ("/x/detaudit/workloads/digits.py", None), ("per_rl.py", None), ("detaudit.workloads./etc/passwd", None)],
)  # fmt: skip
def test_which_set_is_shipped(word, name):
    found = shipped_set(["python", word])
    assert (found.name if found else None) == name


class TestBadInput:
    def refused(self, call, code, words, *argv):
        found, out, err = call(*argv)
        assert (found, out) == (code, "") and err.startswith("error: ") and words in err

    def test_missing(self, call, pair, tmp_path):
        self.refused(call, 2, "does not exist", pair / "A", tmp_path / "no such place")
        self.refused(call, 2, "a second dump must be named", pair / "A")
        (tmp_path / "run").mkdir()
        self.refused(call, 2, "holds no dump", pair / "A", tmp_path / "run")

    def test_truncated(self, call, pair):
        file = next((pair / "B").rglob("*.raw"))
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data[:-1])
        self.refused(call, 2, "is cut short", pair)

    def test_two_workloads(self, call, pair, tmp_path):
        make_dump(tmp_path / "digits", command=("/x/detaudit/workloads/digits.py",))
        self.refused(call, 3, "not comparable: command:", pair / "A", tmp_path / "digits")
        code, out, _ = call(pair / "A", tmp_path / "digits", "--allow-differences")
        assert code == 0 and "warning: the dumps differ in command" in out

    def test_another_shape(self, call, pair, tmp_path):
        make_dump(tmp_path / "C", {(0, "tree"): shifted("tree", 0)[:-1]})
        code, out, _ = call(pair / "A", tmp_path / "C")
        assert code == 3 and "  tree: NOT COMPARABLE (float32[16] in A, float32[15] in B)" in out
        assert "VERDICT: undecided: tree of step 0 cannot be compared" in out

    @pytest.mark.parametrize(
        ("text", "words"),
        [("", "no buffer is declared"), ("=", "is not TOML"), (OWN.replace('"mine"', '"m"'), "unknown buffer 'm'"),
         (OWN.replace("[hyp", 'fed_by = ["mine"]\n[hyp'), "in a cycle within one step: mine -> mine")],
    )  # fmt: skip
    def test_hypotheses(self, call, pair, tmp_path, text, words):
        (tmp_path / "wrong.toml").write_text(text)
        self.refused(call, 2, words, pair, "--hypotheses", tmp_path / "wrong.toml")

    def test_a_set_for_another_workload(self, call, pair, tmp_path):
        (tmp_path / "own.toml").write_text(OWN.replace("checksums.priority_tree", "x.y"))
        self.refused(
            call, 3, "hold none of the buffers of the set 'own': x.y", pair, "--hypotheses", tmp_path / "own.toml"
        )

    def test_no_hypotheses_file(self, call, pair):
        self.refused(call, 2, "cannot be read: No such file", pair, "--hypotheses", pair / "none.toml")


def test_the_script_is_the_verb(pair, call, tmp_path):
    """From any directory, without the package being importable from there, and without loading torch."""
    code, out, _ = call(pair)
    probe = "import runpy, sys; sys.argv = sys.argv[1:]\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\n"
    probe += "finally: assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", probe, SCRIPT, pair / "A", pair / "B"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, out, "")


def test_record_refuses_what_only_a_pair_can_know(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DETAUDIT_DUMP", "1")
    monkeypatch.setenv("DETAUDIT_DUMP_STEPS", "first-divergence")
    assert cli.main(["record", "--out", str(tmp_path / "r"), "--", "true"]) == 2
    assert "takes two runs, and this is one" in capsys.readouterr().err
