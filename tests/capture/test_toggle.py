"""Each toggle does in a process of its own what its name says, against a script that asks for the opposite."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from detaudit.capture.patch import Patches
from detaudit.capture.toggle import Entropy, Toggled, actions
from detaudit.core.axes import AXES
from detaudit.core.env import Settings
from detaudit.launch.child import child_environment
from detaudit.trail.manifest import differences
from detaudit.trail.reader import TrailReader
from tests.capture.programs import TRAIN, command, record

pytestmark = pytest.mark.timeout(900)

THREE = TRAIN + "for number in range(3): step(number)\n"

OPPOSITE = """
import random, sys
import numpy as np
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(2)
torch.use_deterministic_algorithms(False)
loader = DataLoader(range(4), 2, num_workers=2, prefetch_factor=3, timeout=60, multiprocessing_context="fork")
seen = []
def backend(graph, inputs):
    seen.append(graph)
    return graph
if {whole}:
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
generator = torch.Generator()
generator.seed()
isinstance(torch.default_generator, torch.Generator) or sys.exit("the type is another")
print("threads", torch.get_num_threads())
print("flag", torch.are_deterministic_algorithms_enabled(), torch.empty(3).isnan().all().item())
print("workers", loader.num_workers, [batch.tolist() for batch in loader] if {whole} else "")
print("compiled", len(seen))
print("python", random.random(), random.Random().random(), random.Random(3).random())
print("numpy", np.random.rand(), np.random.default_rng().random(), np.random.RandomState().rand())
print("given", np.random.default_rng(3).random())
print("torch", torch.rand(1).item(), torch.rand(1, generator=generator).item(), torch.seed())
"""


def output(toggle: str, directory: Path, source: str) -> str:
    """What a program prints under a toggle, without a hash seed from outside."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    env = child_environment(Settings(str(directory), toggle=toggle), environ)
    done = subprocess.run(command(source), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen(toggle: str, directory: Path, whole: bool = False) -> dict[str, str]:
    """What a script that asks for the opposite of every toggle sees, by the first word of its lines. Only the whole of
    it iterates and compiles."""
    lines = output(toggle, directory, OPPOSITE.format(whole=whole)).splitlines()
    return dict(line.split(" ", 1) for line in lines)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return seen("", tmp_path_factory.mktemp("plain"), whole=True)


def test_without_a_toggle_the_script_gets_what_it_asks_for(plain: dict[str, str]) -> None:
    assert plain["threads"] == "2" and plain["flag"].startswith("False") and plain["compiled"] == "1"
    assert plain["workers"] == "2 [[0, 1], [2, 3]]"


CHANGES = {
    "threads-1": ("threads", "1"),
    "deterministic": ("flag", "True False"),
    "deterministic-fill": ("flag", "True True"),
    "workers-0": ("workers", "0 [[0, 1], [2, 3]]"),
    "compile-off": ("compiled", "0"),
}
"""The line that changes, and what it then says."""


@pytest.mark.parametrize("toggle", CHANGES)
def test_one_axis_changes_and_no_other(toggle: str, plain: dict[str, str], tmp_path: Path) -> None:
    line, value = CHANGES[toggle]
    whole = line in ("workers", "compiled")
    found = seen(toggle, tmp_path, whole)
    assert found[line] == value
    for other in {"threads", "flag", "workers", "given"} - {line}:
        assert found[other].split()[0] == plain[other].split()[0]
    assert found["compiled"] == plain["compiled"] or not whole or line == "compiled"


def test_entropy_fixes_what_the_system_drew_and_leaves_what_was_seeded(plain: dict[str, str], tmp_path: Path) -> None:
    one, two = (seen("entropy", tmp_path) for _ in range(2))
    for line in ("python", "numpy", "torch"):
        assert one[line] == two[line] != plain[line]
        assert len(set(one[line].split())) == 3, "generators still differ from one another"
    assert one["given"] == plain["given"] and one["python"].split()[2] == plain["python"].split()[2]


def test_the_hash_salt(tmp_path: Path) -> None:
    salts = [output(toggle, tmp_path, "print(hash('a name'))") for toggle in ("hash-seed", "hash-seed", "", "")]
    assert salts[0] == salts[1] and len(set(salts)) == 3


def test_the_manifest_keeps_toggled_runs_apart_from_plain_ones(tmp_path: Path) -> None:
    manifests = []
    for name, toggle in (("plain", ""), ("toggled", "workers-0")):
        record(THREE, tmp_path / name, toggle=toggle)
        with TrailReader(tmp_path / name / "main.trail") as trail:
            manifests.append(trail.manifest)
    assert differences(*manifests) == ["toggle: A not set, B workers-0"]


def test_an_unknown_name_does_not_train_under_a_wrong_name(tmp_path: Path) -> None:
    env = {**child_environment(Settings(str(tmp_path)), os.environ), "DETAUDIT_TOGGLE": "thread-1"}
    done = subprocess.run(command("print('ran')"), env=env, capture_output=True, text=True, check=False)
    assert "DETAUDIT_TOGGLE='thread-1' is not legal; it takes one of threads-1, " in done.stderr
    assert not (tmp_path / "loaded").exists()


def test_the_entropy_toggle_leaves_an_unseeded_generator_context(tmp_path: Path) -> None:
    done = record("import random\n" + THREE + "random.random()\n", tmp_path, toggle="entropy")
    assert any("python generator was used but never seeded" in note.get("text", "") for note in done.trail().notes)


class TestInProcess:
    """Without a process of its own: what can be put back is."""

    def test_only_known_names_act(self) -> None:
        assert all(set(actions(name)) <= {"start", "numpy.random", "torch"} for name in AXES)
        assert not actions("") and not actions("load") and not actions("hash-seed")

    def test_each_moment_acts_once(self) -> None:
        calls: list[str] = []
        toggled = Toggled("")
        toggled._actions = {"torch": lambda patches: calls.append("torch")}
        for moment in ("start", "torch", "torch"):
            toggled.at(moment)
        assert calls == ["torch"]

    def test_python_generators(self) -> None:
        state, before = random.getstate(), random.seed
        patches = Patches()
        try:
            Entropy().python(patches)
            first = random.random(), random.Random().random()
            assert random.Random(5).random() == 0.6229016948897019
            assert len({random.Random().random() for _ in range(3)}) == 3
            random.SystemRandom().seed()
            patches.remove()
            Entropy().python(patches)
            assert (random.random(), random.Random().random()) == first
        finally:
            patches.remove()
            random.setstate(state)
        assert random.seed == before and random.Random().random() != random.Random().random()

    def test_bits_are_as_many_as_asked_for(self) -> None:
        entropy = Entropy()
        drawn = [entropy.bits(count) for count in (1, 8, 63, 128, 128)]
        assert all(0 <= number < 2**count for number, count in zip(drawn, (1, 8, 63, 128, 128), strict=True))
        assert drawn[3] != drawn[4] and drawn == [again.bits(c) for again in [Entropy()] for c in (1, 8, 63, 128, 128)]
