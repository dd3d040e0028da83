"""The gate over the inventory of state: a clean control, and for each row what is missing halts with its leaf."""

from __future__ import annotations

import shutil
import types

import numpy as np
import pytest
import torch

from detaudit.core.errors import EXIT_INCONCLUSIVE, InconclusiveError, UsageError
from detaudit.trainsect import gate, generators
from detaudit.trainsect import target as target_room
from detaudit.trainsect.gate import GateError
from detaudit.trainsect.run import open_run
from tests.trainsect import recorded


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "run"
    recorded.train(path)
    return path


@pytest.fixture(scope="module")
def run(directory):
    return open_run(directory)


def target(tmp_path, body):
    """A target over the program's Trainer, changed by `body`, which sees `Trainer`."""
    path = tmp_path / "target.py"
    source = recorded.MLP.read_text() + "\n\n" + body
    path.write_text(source)
    return path


def halt(run, path, tmp_path, start=4, stop=8):
    with pytest.raises(GateError) as error:
        gate.identity(run, path, start, stop, tmp_path / "out")
    assert error.value.exit_code == EXIT_INCONCLUSIVE
    return error.value


def test_the_clean_control(run, tmp_path):
    passed = gate.identity(run, recorded.MLP, 0, 12, tmp_path / "out")
    assert passed.steps_compared == 12 and passed.leaves_compared > 50
    assert list(passed.parameters) == [0, 4, 8, 12] and len(set(passed.parameters.values())) == 4
    assert passed.evaluations.keys() == {0, 2, 4, 6, 8, 10, 12}
    assert gate.fits(tmp_path / "out", run, recorded.MLP, 4, 12) == ""


LOSES = {
    "model.param.head.weight": "state.model.param.head.weight",
    "model.buffer.body.1.running_mean": "model.buffer.body.1.running_mean",
    "model.buffer.calls": "model.buffer.calls",
    "model.training.body.3": "model.training.body.3",
    "model.requires_grad.head.bias": "model.requires_grad.head.bias",
    "optimizer.state.0.step": "optimizer.state.0.step",
    "optimizer.state.0.exp_avg": "optimizer.state.0.exp_avg",
    "optimizer.param_groups.0.lr": "optimizer.param_groups.0.lr",
    "scheduler.last_epoch": "scheduler.last_epoch",
    "ema.shadow.head.bias": "ema.shadow.head.bias",
    "loop.seen": "loop.seen",
    "noise": "noise",
}


@pytest.mark.parametrize("leaf", list(LOSES))
def test_a_row_of_the_state_that_is_not_put_back_is_named(run, tmp_path, monkeypatch, leaf):
    """Loading loses one leaf: what Lightning, torchtitan, accelerate and DeepSpeed each did with one of these."""
    real = target_room.state.put

    def lossy(objects, saved, restore=None):
        real(objects, saved, restore)
        model, optimizer = objects["model"], objects["optimizer"]
        first = next(model.parameters())
        if leaf == "noise":
            objects["noise"].bit_generator.state = np.random.default_rng(99).bit_generator.state
        elif leaf.startswith("model.training"):
            model.body[3].eval()
        elif leaf.startswith("model.requires_grad"):
            model.head.bias.requires_grad_(False)
        elif leaf == "optimizer.param_groups.0.lr":
            optimizer.param_groups[0]["lr"] = 0.01
        elif leaf.startswith("optimizer.state"):
            optimizer.state[first][leaf.rpartition(".")[2]].zero_()
        elif leaf == "scheduler.last_epoch":
            objects["scheduler"].last_epoch = 0
        elif leaf.startswith("ema"):
            objects["ema"].shadow["head.bias"] += 1
        elif leaf == "loop.seen":
            objects["loop"]["seen"] = 0
        else:
            name = leaf.split(".", 2)[2]
            dict([*model.named_parameters(), *model.named_buffers()])[name].data.add_(1)

    monkeypatch.setattr(target_room.state, "put", lossy)
    with pytest.raises(InconclusiveError, match=leaf.replace(".", r"\.")):
        gate.identity(run, recorded.MLP, 4, 8, tmp_path / "out")


@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_a_generator_that_is_not_pinned_is_named(run, tmp_path, monkeypatch, name):
    real = generators.pin
    monkeypatch.setattr(
        generators, "pin", lambda states, declared: real({n: s for n, s in states.items() if n != name}, declared)
    )
    found = halt(run, recorded.MLP, tmp_path)
    assert found.leaf == f"rng.{name}" and found.step in (4, 5)


def test_a_gradient_left_over_from_an_accumulation_is_named(tmp_path):
    body = """
class Residue(Trainer):
    def step(self, micro_batches, t):
        (x, y), = micro_batches
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        return None
"""
    program = target(tmp_path, body + "\n\ndef build():\n    return Residue()\n")
    trainer = recorded.load(program).build()
    recorded.train(tmp_path / "run", steps=4, every=2, trainer=trainer)
    run = open_run(tmp_path / "run")
    assert gate.identity(run, program, 2, 4, tmp_path / "clean").steps_compared == 2
    forgetful = body + "\n        self.optimizer.zero_grad()\n"
    forgetful = forgetful.replace("        return None\n", "")
    halted = tmp_path / "halted"
    halted.mkdir()
    path = target(halted, forgetful + "\n\ndef build():\n    return Residue()\n")
    found = halt(run, path, halted, 0, 4)
    assert found.step == 2 and found.leaf.startswith("model.")


WRONG = {
    "other content": ("x, y = super().fetch(ids, rng)\n        return x + 1e-6, y", "batch"),
    "other dtype": ("x, y = super().fetch(ids, rng)\n        return x.double().float(), y.int()", "batch"),
    "other order": ("return super().fetch(ids[::-1], rng)", "batch"),
}


@pytest.mark.parametrize("body, leaf", WRONG.values(), ids=list(WRONG))
def test_batches_that_are_not_the_recorded_ones_are_named(run, tmp_path, body, leaf):
    """Loader base seed, sampler epoch, permutation and cursor all end in this: other batches than were recorded."""
    source = f"class T(Trainer):\n    def fetch(self, ids, rng):\n        {body}\n\n\ndef build():\n    return T()\n"
    found = halt(run, target(tmp_path, source), tmp_path)
    assert (found.step, found.leaf) == (4, leaf)


def test_a_draw_before_the_forward_is_named(run, tmp_path):
    source = "class T(Trainer):\n    def step(self, b, t):\n        torch.rand(1)\n        return super().step(b, t)\n"
    found = halt(run, target(tmp_path, source + "\n\ndef build():\n    return T()\n"), tmp_path)
    assert (found.step, found.leaf) == (4, "rng.torch")


def test_a_nondeterministic_step_halts_with_step_and_leaf(run, tmp_path):
    source = """
import itertools
COUNT = itertools.count()


class T(Trainer):
    def step(self, micro_batches, t):
        loss = super().step(micro_batches, t)
        if t == 6:
            with torch.no_grad():
                self.model.head.bias += 1e-7 * (1 + id(self) % 97 + next(COUNT))
        return loss


def build():
    return T()
"""
    found = halt(run, target(tmp_path, source), tmp_path)
    assert (found.step == 7 and found.leaf in ("loss", "model.param.head.bias")) or found.step == 8


def test_two_replays_that_differ_in_what_the_recording_does_not_hold(tmp_path):
    """Between checkpoints only the pair of trails sees it: a side channel that heals before the next checkpoint."""
    recorded.train(tmp_path / "run", steps=4, every=4, evaluate=0)
    source = """
import builtins


class T(Trainer):
    def __init__(self):
        super().__init__()
        builtins._builds = getattr(builtins, "_builds", 0) + 1

    def step(self, micro_batches, t):
        loss = super().step(micro_batches, t)
        self.loop["odd"] = builtins._builds if t == 1 else 0
        if t == 3:
            del self.loop["odd"]
        return loss


def build():
    return T()
"""
    found = halt(open_run(tmp_path / "run"), target(tmp_path, source), tmp_path, 0, 4)
    assert (found.step, found.leaf) == (1, "state.loop.odd")


def test_another_environment_is_named(run, tmp_path, monkeypatch):
    settings = {**run.settings, "manifest": {"decisive": {**run.settings["manifest"]["decisive"], "numpy": "0.1"}}}
    other = types.SimpleNamespace(**{**vars(run), "settings": settings})
    found = halt(other, recorded.MLP, tmp_path)
    assert found.leaf == "manifest.numpy" and found.expected == "0.1"


def test_other_determinism_flags_are_named(run, tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        found = halt(run, recorded.MLP, tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    assert found.leaf == "manifest.deterministic_algorithms"


def test_a_gpu_recording_is_refused_without_one(run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    other = types.SimpleNamespace(**{**vars(run), "settings": {**run.settings, "device": ["cuda:0"]}})
    assert "GPU" in str(halt(other, recorded.MLP, tmp_path))


def test_evaluations_that_are_not_the_recorded_ones_halt(run, tmp_path):
    source = "class T(Trainer):\n    def evaluate(self, t):\n        return super().evaluate(t) + 1e-9\n"
    found = halt(run, target(tmp_path, source + "\n\ndef build():\n    return T()\n"), tmp_path)
    assert (found.step, found.leaf) == (4, "evaluation")


EVALUATES = {
    "changes buffers": ("self.model.train()\n        self.model(self.x)\n        return 0.0", "changes model.buffer"),
    "draws": ("return torch.rand(1).item()", "draws from the torch generator"),
    "clock": ("import time\n        return time.perf_counter()", "of one state"),
}


@pytest.mark.parametrize("body, text", EVALUATES.values(), ids=list(EVALUATES))
def test_an_evaluation_that_is_none_is_refused(run, tmp_path, body, text):
    source = f"class T(Trainer):\n    def evaluate(self, t):\n        {body}\n\n\ndef build():\n    return T()\n"
    with pytest.raises(UsageError, match=text):
        gate.identity(run, target(tmp_path, source), 4, 8, tmp_path / "out")


BROKEN = {
    "no build": ("del build", "no function build"),
    "no method": ("def build():\n    return object()", "without state, fetch, step, evaluate"),
    "other names": (
        "class T(Trainer):\n    def state(self):\n        return {'net': self.model}\n\n\ndef build():\n    return T()",
        "the state of the target is net",
    ),
    "other shapes": (
        "class T(Trainer):\n    def __init__(self):\n        super().__init__()\n"
        "        self.model.head = nn.Linear(12, 5)\n\n\ndef build():\n    return T()",
        r"model\.param\.head\.weight: the target has torch\.float32 \[5, 12\], the checkpoint torch\.float32 \[3, 12\]",
    ),
}


@pytest.mark.parametrize("body, text", BROKEN.values(), ids=list(BROKEN))
def test_a_target_that_does_not_fit_says_why(run, tmp_path, body, text):
    with pytest.raises(UsageError, match=text):
        gate.identity(run, target(tmp_path, body + "\n"), 4, 8, tmp_path / "out")


def test_a_certificate_fits_only_what_it_was_made_for(run, directory, tmp_path):
    out = tmp_path / "out"
    gate.identity(run, recorded.MLP, 4, 8, out)
    assert "covers the steps" in gate.fits(out, run, recorded.MLP, 4, 12)
    assert "another target" in gate.fits(out, run, target(tmp_path, "\n"), 4, 8)
    shutil.copytree(directory, tmp_path / "copy")
    other = types.SimpleNamespace(**{**vars(run), "digest": "00"})
    assert "another run" in gate.fits(out, other, recorded.MLP, 4, 8)
    trail = next((out / "A").glob("*.trail"))
    trail.write_bytes(trail.read_bytes()[:-1] + b"x")
    assert gate.fits(out, run, recorded.MLP, 4, 8)


def test_a_certificate_is_made_once(run, tmp_path, monkeypatch):
    first = gate.require(run, recorded.MLP, 4, 8, tmp_path / "out")
    monkeypatch.setattr(gate, "identity", lambda *args: pytest.fail("made again"))
    assert gate.require(run, recorded.MLP, 4, 8, tmp_path / "out") == first


@pytest.mark.parametrize(
    "start, stop, text", [(4, 4, "holds no step"), (0, 6, "no checkpoint of step 6"), (0, 16, "step 12")]
)
def test_intervals_that_cannot_be_judged(run, tmp_path, start, stop, text):
    with pytest.raises((UsageError, GateError), match=text):
        gate.identity(run, recorded.MLP, start, stop, tmp_path / "out")
