"""Dumps of real processes under the recorder: what they hold, and that they change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from detaudit.dump.reader import open_dump
from tests.capture.programs import TRAIN, plain, record

pytestmark = pytest.mark.timeout(900)

FOUR = TRAIN + "for number in range(4): step(number)\n"
LOADED = "import sys; print([name for name in sys.modules if name.startswith('detaudit.dump')])\n"


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """A run of four steps of which step 1 and 2 are dumped whole, in a directory with a blank."""
    run = record(FOUR + LOADED, tmp_path_factory.mktemp("a run"), dump=True, dump_steps=(1, 2))
    assert run.status == 0 and run.stderr == ""
    return run


def test_dump_on_and_off_and_no_recorder_give_the_same_bits_and_off_loads_nothing(dumped, tmp_path):
    off = record(FOUR + LOADED, tmp_path / "off")
    assert off.stdout.splitlines()[-1] == "[]" != dumped.stdout.splitlines()[-1]
    losses = dumped.stdout.splitlines()[:-1]
    assert losses == off.stdout.splitlines()[:-1] == plain(FOUR).splitlines() and len(losses) == 4
    assert list(dumped.trail()) == list(off.trail())
    assert not (off.directory / "dump").exists()


def test_every_leaf_the_trail_digests_from_memory_is_there_with_the_trail_s_digest(dumped):
    (dump,) = open_dump(dumped.directory).values()
    trail = dumped.trail()
    for step in (1, 2):
        position = trail.position(step)
        digests = dict(zip(trail.layout(position).names, trail.digests(position), strict=True))
        held = {leaf: int(entry.digest, 16) for (at, leaf), entry in dump.entries.items() if at == step}
        assert {leaf for leaf in digests if not leaf.startswith("rng.")} == set(held)
        assert {leaf: digests[leaf] for leaf in held} == held
    assert {step for step, _ in dump.entries} == {1, 2} and not dump.end.unseen_steps
    dump.verify()


def test_the_bytes_are_the_values(dumped):
    (dump,) = open_dump(dumped.directory).values()
    printed = float.fromhex(dumped.stdout.splitlines()[2].split()[1])
    assert np.frombuffer(dump.data(dump.entries[2, "loss"]), "float32") == np.float32(printed)


@pytest.mark.slow
def test_chosen_leaves(tmp_path):
    run = record(FOUR, tmp_path / "run", dump=True, dump_steps=(0, 3), dump_leaves=("param.*", "!*.bias", "nothing"))
    (dump,) = open_dump(run.directory).values()
    assert list(dump.entries) == [(step, f"param.net.{n}.weight") for step in (0, 3) for n in (0, 3)]
    assert dump.end.unseen_leaves == ("nothing",)


@pytest.mark.slow
def test_the_output_of_a_root_module_is_dumped_although_its_digest_is_taken_over(tmp_path):
    run = record(FOUR, tmp_path / "run", dump=True, dump_steps=(1,), dump_leaves=("act.net", "act.net.3"))
    (dump,) = open_dump(run.directory).values()
    whole, last = (dump.data(dump.entries[1, leaf]) for leaf in ("act.net", "act.net.3"))
    assert whole == last and len(whole) == 16


@pytest.mark.slow
def test_a_step_beyond_the_end(tmp_path):
    run = record(FOUR, tmp_path / "run", dump=True, dump_steps=(500,))
    (dump,) = open_dump(run.directory).values()
    assert run.status == 0 and not dump.entries and dump.end.unseen_steps == (500,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "outcome"),
    [("raise RuntimeError('x')", "exception RuntimeError"), ("import os; os._exit(7)", "os._exit(7)"),
     ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None)],
)  # fmt: skip
def test_the_dump_is_sound_however_the_process_ends(tmp_path, ending, outcome):
    run = record(FOUR + ending, tmp_path / "run", dump=True, dump_steps=(3,), dump_leaves=("loss",))
    (dump,) = open_dump(run.directory).values()
    dump.verify()
    assert list(dump.entries) == [(3, "loss")]
    assert (dump.end.outcome if dump.end else None) == outcome


@pytest.mark.slow
def test_the_step_limit_ends_the_dump_too(tmp_path):
    run = record(FOUR, tmp_path / "run", steps=2, dump=True, dump_steps=(0, 1, 2), dump_leaves=("loss",))
    (dump,) = open_dump(run.directory).values()
    assert [step for step, _ in dump.entries] == [0, 1]
    assert (dump.end.outcome, dump.end.unseen_steps) == ("step limit", (2,))


@pytest.mark.slow
def test_a_dump_that_is_there_already_is_kept_and_the_run_is_not_sound(tmp_path):
    place = tmp_path / "dump here"
    record(FOUR, tmp_path / "one", dump=True, dump_directory=str(place))
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    again = record(FOUR, tmp_path / "two", sound=False, dump=True, dump_directory=str(place))
    assert again.stdout == plain(FOUR), "the training goes on"
    assert "a dump is never overwritten" in again.stderr
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_the_session_of_a_script_that_records_itself(tmp_path):
    source = (
        "import torch, detaudit\n"
        "net = torch.nn.Linear(2, 1)\n"
        "with detaudit.record(net, out=OUT) as audit:\n"
        "    audit.leaf('per.tree', torch.arange(4))\n"
        "    audit.step()\n"
    ).replace("OUT", repr(str(tmp_path / "own")))
    env = {**os.environ, "DETAUDIT_DUMP": "1", "DETAUDIT_DUMP_LEAVES": "per.*"}
    subprocess.run([sys.executable, "-c", source], env=env, check=True)
    (dump,) = open_dump(tmp_path / "own").values()
    assert dump.data(dump.entries[0, "per.tree"]) == np.arange(4).tobytes()
    assert dump.end.outcome == "complete"
    assert Path(tmp_path / "own" / "main.trail").is_file()
