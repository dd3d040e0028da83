"""The recorder in a process of its own: what it leaves however the process ends, and that it changes nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from detaudit.core.env import Settings
from detaudit.core.model import StepKind
from detaudit.launch.child import child_environment
from detaudit.trail.reader import TrailReader
from tests.capture.programs import TRAIN, command, plain, record

TEN = TRAIN + "for number in range(10): step(number)\n"


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one recorded run of ten steps."""
    directory = tmp_path_factory.mktemp("ten")
    assert record(TEN, directory, stats=True).status == 0
    return directory


def test_recorder_on_and_off_give_the_same_bits(tmp_path: Path) -> None:
    watched = record(TEN, tmp_path / "run")
    assert watched.stdout == plain(TEN)
    assert watched.stderr == ""
    assert len(watched.trail()) == 11


def test_a_step_holds_its_leaves_in_execution_order(ten: Path) -> None:
    with TrailReader(ten / "main.trail") as trail:
        names = trail.layout(1).names
        kinds = [name.split(".")[0] for name in names]
        expected = ["rng", "input", "act", "loss", "grad", "optim", "param", "rng"]
        assert [kind for index, kind in enumerate(kinds) if index == 0 or kinds[index - 1] != kind] == expected
        assert trail.layout(0).kind is StepKind.UPDATE and trail.layout(0).optimizer == "opt"
        assert "init.param.net.0.weight" in trail.layout(0).names
        assert trail.layout(10).kind is StepKind.TAIL
        assert "param.net.3.bias" in trail.layout(10).names


def test_stats_stand_beside_the_digests(ten: Path) -> None:
    with TrailReader(ten / "main.trail") as trail:
        stats = dict(zip(trail.layout(1).names, trail.stats(1), strict=True))
        assert stats["loss"].sumsq > 0 and stats["param.net.0.weight"].sumsq > 0


def test_two_equal_runs_leave_equal_bytes(ten: Path, tmp_path: Path) -> None:
    record(TEN, tmp_path / "again", stats=True)
    assert (tmp_path / "again" / "main.trail").read_bytes() == (ten / "main.trail").read_bytes()


def test_every_keeps_each_kth_step_and_the_tail_and_steps_ends_the_run(tmp_path: Path) -> None:
    every = record(TEN, tmp_path / "every", every=4)
    assert every.trail().steps == [0, 4, 8, 10]
    assert "param.net.0.weight" in every.trail().layout(3).names
    limited = record(TEN, tmp_path / "limit", steps=3)
    assert limited.status == 0
    assert limited.trail().steps == [0, 1, 2] and limited.trail().outcome == "step limit"
    assert limited.stdout.count("\n") == 2, "the run ends inside its third update"


def test_an_excluded_leaf_is_not_recorded_and_activation_gradients_are_opt_in(tmp_path: Path) -> None:
    chosen = record(TEN, tmp_path / "run", leaves=("!optim.*", "actgrad.*"))
    names = chosen.trail().layout(1).names
    assert not any(name.startswith("optim.") for name in names)
    assert "actgrad.net.0" in names and "param.net.0.weight" in names


@pytest.mark.parametrize(
    ("ending", "status", "outcome"),
    [
        ("raise RuntimeError('x')", 1, "exception RuntimeError"),
        ("import os; os._exit(7)", 7, "os._exit(7)"),
        ("raise SystemExit(4)", 4, "complete"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
)
def test_the_trail_is_whole_however_the_process_ends(tmp_path: Path, ending: str, status: int, outcome: str) -> None:
    ended = record(TRAIN + f"for number in range(5): step(number)\n{ending}\n", tmp_path / "run")
    assert ended.status == status
    trail = ended.trail()
    assert trail.outcome == outcome
    assert trail.steps[:5] == [0, 1, 2, 3, 4]
    assert trail.dropped_bytes == 0


def test_a_process_that_never_trains_leaves_a_marker_and_no_trail(tmp_path: Path) -> None:
    idle = record("import torch; torch.nn.Linear(1, 1)(torch.zeros(1))", tmp_path / "run")
    assert idle.trails == [] and (idle.directory / "loaded").exists()


def test_a_forked_child_that_trains_has_a_trail_of_its_own(tmp_path: Path) -> None:
    source = TRAIN + "step(0)\nimport os\nif os.fork() == 0:\n    step(1); os._exit(0)\nos.wait(); step(2)\n"
    forked = record(source, tmp_path / "run")
    assert forked.trails == ["main", "main-fork1"]
    assert forked.trail("main").steps == [0, 1, 2]
    assert forked.trail("main-fork1").steps[0] == 0


def test_the_hidden_sitecustomize_is_still_run_and_nothing_happens_without_the_variable(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins; builtins.marked_by_user = True\n")
    source = "import builtins, sys; print(builtins.marked_by_user, 'detaudit' in sys.modules)"
    env = child_environment(Settings(str(tmp_path)), {**os.environ, "PYTHONPATH": str(other)})
    on = subprocess.run(command(source), env=env, capture_output=True, text=True, check=True)
    off = subprocess.run(command(source), env=env | {"DETAUDIT_DIR": ""}, capture_output=True, text=True, check=True)
    assert (on.stdout, off.stdout) == ("True True\n", "True False\n")


def test_a_recorder_that_cannot_write_lets_the_training_go_on(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
    full = record(TRAIN + limit + "for number in range(20): step(number)\n", tmp_path / "run", sound=False)
    assert full.status == 0 and full.stdout.count("\n") == 20
    assert "recording stopped" in full.stderr
    trail = full.trail()
    assert trail.outcome == "" and 0 < len(trail) < 20


def test_nan_and_inf_losses_are_noted_once_with_their_first_step(tmp_path: Path) -> None:
    source = TRAIN + "step(0)\nnet[0].weight.data.fill_(float('nan'))\nstep(1); step(2)\n"
    notes = [note for note in record(source, tmp_path / "run").trail().notes if note["note"] == "nonfinite"]
    assert notes == [{"note": "nonfinite", "leaf": "loss", "what": "NaN", "step": 1}]


def kill_at_random(directory: Path, chance: random.Random) -> None:
    source = TRAIN + "number = 0\nwhile True:\n    step(number); number += 1\n"
    env = child_environment(Settings(str(directory)), dict(os.environ))
    child = subprocess.Popen(command(source), env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    target = chance.randrange(1, 40)
    for _ in range(target):
        child.stdout.readline()
    time.sleep(chance.random() * 0.01)
    child.send_signal(signal.SIGKILL)
    finished = target + len(child.stdout.read().splitlines())
    child.wait()
    child.stdout.close()
    with TrailReader(directory / "main.trail") as trail:
        trail.verify_chain()
        # A step is printed after it was recorded, so each printed step must be there.
        assert trail.steps == list(range(len(trail.steps))) and len(trail.steps) >= finished
        assert len(trail.steps) <= finished + 1


@pytest.mark.parametrize("seed", range(3))
def test_sigkill_at_a_random_moment_loses_at_most_the_unfinished_step(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_sigkill_at_many_random_moments(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, random.Random(seed))


def test_a_compiled_model_has_no_graph_break_and_no_warning_and_the_same_bits(tmp_path: Path) -> None:
    source = """
import warnings; warnings.simplefilter("error", UserWarning)
import torch; import torch._dynamo.utils as utils
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
fast = torch.compile(net, backend="eager", fullgraph=True)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(3):
    loss = fast(torch.randn(4, 8)).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(loss.item().hex())
print(dict(utils.counters["graph_break"]))
"""
    compiled = record(source, tmp_path / "run")
    assert compiled.status == 0, compiled.stderr
    assert compiled.stdout == plain(source)
    assert compiled.stdout.endswith("{}\n")
    assert "act.fast" in compiled.trail().layout(1).names


def test_a_sharded_parameter_is_digested_by_its_local_part(tmp_path: Path) -> None:
    source = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
net = nn.Linear(4, 4)
fully_shard(net, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
opt = torch.optim.AdamW(net.parameters(), lr=0.1)
for number in range(3):
    net(torch.randn(2, 4)).square().mean().backward(); opt.step(); opt.zero_grad()
dist.destroy_process_group()
"""
    sharded = record(source, tmp_path / "run")
    assert sharded.status == 0, sharded.stderr
    layout = sharded.trail("rank0").layout(1)
    assert "param.net.weight" in layout.names and "grad.net.weight" in layout.names
    assert not [leaf for leaf in layout.leaves if leaf.unsupported]


def test_no_module_of_the_users_is_hidden_by_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.py").write_text("mine = True\n")
    env = child_environment(Settings(str(tmp_path)), {**os.environ, "PYTHONPATH": str(tmp_path)})
    source = "import bootstrap, sys; print(bootstrap.mine, any('injected' in entry for entry in sys.path))"
    done = subprocess.run(command(source), env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
