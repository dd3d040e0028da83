"""The contract of the command line, frozen: verbs, flags, exit codes, what goes to stdout and what to stderr.

A verb or flag that is added on purpose is added to VERBS here; the docs must then name it too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

import detaudit
from detaudit import cli
from detaudit.core import errors
from tests.made_dumps import make_dump
from tests.made_runs import make_run, make_trail

ROOT = Path(__file__).parents[2]
FAKE = str(ROOT / "tests" / "fake_training.py")

RECORDING = {"--steps", "--every", "--stats", "--leaves"}
VERBS = {
    "check": {"--runs", "--no-drill", "--pairs", "--explain", "--out", *RECORDING},
    "explain": {"--pairs"},
    "record": {"--out", *RECORDING},
    "diff": {"--leaves", "--allow-differences"},
    "ranks": {"--leaves"},
    "show": {"--step", "--leaf", "--manifest"},
    "verify": {"--self"},
    "export": {"--format", "-o", "--output"},
    "dump": {"--hypotheses", "--allow-differences"},
    "doctor": set(),
}
SPIKE = {"-o", "--output", "--lang"}
SPIKE_VERBS = {
    "detect": {"--csv", "--trend", "--dump", "--trail", "--parser", "--metric", "--rate", "--ratio", "--window"}
    | {"--accumulation", "--world-size", "--limit"},
    "select": {"--phase1", "--npu", "--gpu", "--majority", "--growth"},
    "trace": {"--phase1", "--phase2", "--coordinate", "--micro-step", "--no-control"}
    | {f"--dump-{side}" for side in "abcd"},
    "report": {"--phase1", "--phase2", "--phase3", "--format"},
}
TRAINSECT_VERBS = {
    "record": {"--out", "--every", "--eval", "--eval-regex", "--shards", "--tape"},
    "gate": {"--target", "--rerun", "--from", "--to", "--out", "--eval", "--eval-regex"},
    "replay": {"--target", "--from", "--to", "--out", "--substitute", "--evaluate"},
    "diagnose": {"--target", "--predicate", "--budget", "--relative", "--out"},
    "verify": {"--target", "--run", "--only", "--no-replay"},
    "demo": {"--stripped", "--out"},
}


def parsers(parser=None):
    parser = parser or cli.build_parser()
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return action.choices


def flags(parser):
    return {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}


class TestShape:
    def test_verbs(self):
        assert list(parsers()) == [*VERBS, "spike", "trainsect"]

    @pytest.mark.parametrize("verb", VERBS)
    def test_flags(self, verb):
        assert flags(parsers()[verb]) == VERBS[verb] | {"--json"}

    @pytest.mark.parametrize("verb", SPIKE_VERBS)
    def test_flags_of_spike(self, verb):
        assert flags(parsers(parsers()["spike"])[verb]) == SPIKE_VERBS[verb] | SPIKE | {"--json"}

    @pytest.mark.parametrize("verb", TRAINSECT_VERBS)
    def test_flags_of_trainsect(self, verb):
        assert flags(parsers(parsers()["trainsect"])[verb]) == TRAINSECT_VERBS[verb] | {"--json"}

    @pytest.mark.parametrize("verb", VERBS)
    def test_the_docstring_is_the_help(self, verb):
        help_text = parsers()[verb].format_help()
        found = next(entry for entry in cli.VERBS if entry.name == verb)
        assert found.__doc__.split("\n")[0] in help_text

    def test_exit_codes(self):
        codes = errors.EXIT_CLEAN, errors.EXIT_DIVERGED, errors.EXIT_USAGE, errors.EXIT_INCONCLUSIVE
        assert codes == (0, 1, 2, 3)
        assert all(f"  {code}  " in cli.EXIT_CODES for code in codes)

    @pytest.mark.parametrize("word", ["detaudit", *VERBS, *sorted(set().union(*VERBS.values()) - {"-o"}), "--json"])
    def test_the_docs_name_every_verb_and_flag(self, word):
        reference = (ROOT / "docs" / "notes" / "cli-reference.md").read_text(encoding="utf-8")
        assert word in reference
        if not word.startswith("-"):
            assert f"detaudit {word}" in (ROOT / "README.md").read_text(encoding="utf-8") or word == "detaudit"

    @pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words its help anew in later versions")
    def test_the_reference_is_up_to_date(self):
        script = ROOT / "scripts" / "cli_reference.py"
        done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


class TestParsing:
    def test_what_follows_the_dashes_is_the_command_whole(self):
        args = cli.parse(["check", "--runs", "3", "--", "torchrun", "--runs", "9", "--", "train.py"])
        assert args.runs == 3 and args.command == ("torchrun", "--runs", "9", "--", "train.py")

    def test_dashes_of_other_verbs_keep_their_meaning(self):
        args = cli.parse(["diff", "--", "-a", "-b"])
        assert (args.a, args.b) == (Path("-a"), Path("-b"))

    def test_leaves(self):
        assert cli.parse(["diff", "a", "--leaves", "loss, !rng.*"]).leaves == ("loss", "!rng.*")

    @pytest.mark.parametrize(
        "argv",
        [
            [],
            ["audit"],
            ["check", "--every", "0", "--", "true"],
            ["check", "--steps", "-1", "--", "true"],
            ["check", "--run", "3", "--", "true"],
            ["check", "python", "train.py"],
            ["diff"],
            ["export", "x", "--format", "parquet"],
            ["dump", "a", "b"],
            ["dump", "compare"],
            ["record", "--", "true"],
        ],
        ids=" ".join,
    )
    def test_argparse_errors_exit_2(self, argv, capsys):
        with pytest.raises(SystemExit) as stop:
            cli.main(argv)
        out, err = capsys.readouterr()
        assert stop.value.code == 2 and out == "" and "error: " in err

    def test_a_command_without_dashes_is_told_the_cure(self, capsys):
        with pytest.raises(SystemExit):
            cli.main(["check", "python", "train.py"])
        assert "the command to audit goes after --" in capsys.readouterr().err

    def test_version(self, capsys):
        with pytest.raises(SystemExit) as stop:
            cli.main(["--version"])
        assert stop.value.code == 0 and capsys.readouterr().out == f"detaudit {detaudit.__version__}\n"


class Raising:
    """A verb that raises what a test gives it."""

    name = "doctor"

    def __init__(self, error):
        self.error = error

    def add_arguments(self, parser):
        pass

    def run(self, args):
        print("result")
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errors.UsageError("no such thing"), 2, "error: no such thing\n"),
        (errors.TrailCorruptError("frame 3"), 2, "error: frame 3\n"),
        (errors.NotComparableError("other torch"), 3, "error: other torch\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_become_exit_codes_in_one_place(monkeypatch, capsys, error, code, words):
    monkeypatch.setattr(cli, "VERBS", (Raising(error),))
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr() == ("result\n", words)


def test_a_defect_of_ours_is_not_dressed_up(monkeypatch):
    monkeypatch.setattr(cli, "VERBS", (Raising(ZeroDivisionError()),))
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


def test_a_closed_pipe_is_quiet(tmp_path):
    trail = make_trail(tmp_path / "a.trail", steps=4000)
    command = f"'{sys.executable}' -m detaudit export '{trail}'; echo $? >&2"
    done = subprocess.run(["bash", "-c", f"({command}) | head -n 1"], capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == 1 and done.stderr == f"{cli.EXIT_BROKEN_PIPE}\n"


class TestStreams:
    """Results on stdout, progress on stderr; --json on every verb gives one JSON value and nothing else."""

    @pytest.fixture
    def runs(self, tmp_path):
        make_run(tmp_path / "runs" / "A")
        make_run(tmp_path / "runs" / "B", changes={(3, "loss"): 1})
        for label in "AB":
            make_dump(tmp_path / "runs" / label / "dump")
        return tmp_path / "runs"

    @pytest.fixture(params=["check", "record", "diff", "show", "verify", "export", "dump"])
    def argv(self, request, runs, tmp_path):
        command = ["--", sys.executable, FAKE]
        return {
            "check": ["check", "--out", f"{tmp_path}/out", "--json", *command],
            "record": ["record", "--out", f"{tmp_path}/out", "--json", *command],
            "diff": ["diff", f"{runs}/A", f"{runs}/B", "--json"],
            "show": ["show", f"{runs}/A", "--json"],
            "verify": ["verify", f"{runs}/A", "--json"],
            "export": ["export", f"{runs}/A", "-o", f"{tmp_path}/rows.jsonl", "--json"],
            "dump": ["dump", "compare", f"{runs}/A", f"{runs}/B", "--json"],
        }[request.param]

    def test_json(self, argv, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code = cli.main(argv)
        value = json.loads(capsys.readouterr().out)
        assert value["schema"] == f"detaudit.{'verdict' if argv[0] in ('check', 'diff') else argv[0]}/1"
        assert code == (1 if argv[0] == "diff" else 0)

    def test_equal_calls_give_equal_bytes(self, runs, capsys):
        texts = []
        for _ in range(2):
            cli.main(["diff", str(runs)])
            cli.main(["show", str(runs), "--manifest", "--step", "3"])
            cli.main(["dump", "compare", str(runs)])
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1]

    def test_plain_text_is_the_product_without_a_terminal(self, runs, capsys, monkeypatch):
        monkeypatch.delenv("NO_COLOR")
        cli.main(["diff", str(runs)])
        assert "\x1b" not in capsys.readouterr().out


OFFLINE = """
import sys
from detaudit.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
heavy = {"torch", "numpy", "rich", "matplotlib", "cupy"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""


@pytest.mark.parametrize("what", ["--help", "diff A B", "show A --step 3", "verify A B", "export A", "show env"])
def test_offline_verbs_and_help_load_neither_torch_nor_numpy(tmp_path, what):
    make_run(tmp_path / "A")
    make_run(tmp_path / "B")
    command = [sys.executable, "-c", OFFLINE, *what.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr


def test_python_m_detaudit(tmp_path):
    done = subprocess.run([sys.executable, "-m", "detaudit", "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == f"detaudit {detaudit.__version__}\n"
