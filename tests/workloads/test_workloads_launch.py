"""The command line that both workloads share."""

import sys

import pytest
import torch

from detaudit.core.errors import UsageError
from detaudit.workloads import per_rl
from detaudit.workloads.launch import main, parse_options, prepare


def parse(*argv):
    return parse_options(argv, per_rl.FAULTS, "A workload.\nMore.")


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_defaults_are_those_of_the_issue():
    options = parse()
    assert (options.steps, options.eval_steps, options.batch, options.seed, options.threads) == (200, 50, 128, 0, 2)
    assert options.device == torch.device("cpu") and options.faults.describe() == "none"


def test_threads_follow_the_environment_unless_given(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert parse().threads == 1
    assert parse("--threads", "3").threads == 3


@pytest.mark.parametrize("argv", [("--steps", "0"), ("--eval-steps", "-1"), ("--batch", "1"), ("--threads", "0")])
def test_numbers_too_small_are_named(argv):
    with pytest.raises(UsageError, match=f"{argv[0]} {argv[1]} is too small"):
        parse(*argv)


@pytest.mark.parametrize("device", ["tpu", "cuda:x" if torch.cuda.is_available() else "cuda", ""])
def test_a_device_that_is_not_there(device):
    with pytest.raises(UsageError, match="--device"):
        parse("--device", device)


def test_a_race_without_threads_warns(capsys):
    prepare(parse("--threads", "1", "--inject", "encoder-race,prng-drift"))
    assert capsys.readouterr().err == "warning: encoder-race cannot race with --threads 1; use 2 or more\n"


def test_an_unknown_fault_is_exit_code_2(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["per_rl", "--inject", "gremlin"])
    assert main(per_rl.run, per_rl.FAULTS, per_rl.__doc__) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: unknown fault 'gremlin'; the legal ones are tree-stale-read, tree-rebuild-race")


def test_the_summary_goes_to_stdout(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["w", "--steps", "3"])
    assert main(lambda options: f"{options.steps} steps", per_rl.FAULTS, "W.") == 0
    assert capsys.readouterr().out == "3 steps\n"


def test_help_names_every_fault(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    shown = capsys.readouterr().out
    assert all(fault in shown for fault in per_rl.FAULTS)
