"""Runs recorded for the tests: the program of `programs/mlp.py`, trained in this process."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import numpy as np
import torch

from detaudit.trainsect import recording

PROGRAMS = Path(__file__).parent / "programs"
MLP = PROGRAMS / "mlp.py"


def load(path):
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def orders(samples, batch, steps, micro=1, seed=7):
    """The ids of each step: a permutation an epoch, cut into micro-batches."""
    generator = np.random.default_rng(seed)
    ids = np.concatenate([generator.permutation(samples) for _ in range(steps * batch * micro // samples + 1)])
    return [
        tuple(tuple(int(i) for i in ids[(t * micro + m) * batch : (t * micro + m + 1) * batch]) for m in range(micro))
        for t in range(steps)
    ]


def train(directory, steps=12, every=4, micro=1, trainer=None, evaluate=2, objects=None, **options):
    """Record a run and return its trainer. The loop is not the target's: RNG is consumed between the steps."""
    program = load(MLP)
    random.seed(11)
    np.random.seed(12)
    torch.manual_seed(13)
    trainer = trainer or program.Trainer()
    state = trainer.state() if objects is None else objects(trainer)
    recording.start_recording(
        directory,
        model=state.pop("model"),
        optimizer=state.pop("optimizer"),
        objects=state,
        every=every,
        pool=program.SAMPLES,
        shards={"blocks": 24},
        **options,
    )
    try:
        for t, ids in enumerate(orders(program.SAMPLES, program.BATCH, steps, micro)):
            if evaluate and t % evaluate == 0:
                recording.record_eval(t, trainer.evaluate(t), data_digest="held-out")
            random.random(), np.random.rand(2), torch.rand(3)  # a loader's draws
            batches = [trainer.fetch(row, None) for row in ids]
            loss = trainer.step(batches, t)
            recording.record(t, batches if micro > 1 else batches[0], ids=ids, loss=loss)
        if evaluate and steps % evaluate == 0:
            recording.record_eval(steps, trainer.evaluate(steps), data_digest="held-out")
    except BaseException:
        recording.stop_recording("exception")
        raise
    recording.stop_recording()
    return trainer
