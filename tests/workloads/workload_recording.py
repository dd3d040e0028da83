"""Runs a workload in a process of its own under a recorder made for tests: one SHA-256 a leaf, one JSON line a step.

As a script: `python workload_recording.py OUT WORKLOAD [OPTION...]`. Gradients are noted before the update.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import torch


class FakeAudit:
    """Digests each declared leaf at the moment of the call, and every gradient when the optimizer begins its update."""

    def __init__(self, model=None, optimizer=None):
        self.steps: list[dict[str, str]] = [{}]
        self.shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        if optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: self._gradients(model))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def leaf(self, name, value):
        assert name not in self.steps[-1], f"{name} is declared twice in a step"
        self.shapes[name] = (str(value.dtype).removeprefix("torch."), tuple(value.shape))
        data = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        self.steps[-1][name] = hashlib.sha256(data).hexdigest()

    def step(self):
        self.steps.append({})

    def _gradients(self, model):
        for name, parameter in model.named_parameters():
            self.leaf(f"grad.{name}", parameter.grad)


def first_difference(run_a, run_b):
    """(step, leaf) of the first difference in execution order, None when all is equal."""
    assert len(run_a) == len(run_b)
    for step, (a, b) in enumerate(zip(run_a, run_b, strict=True)):
        assert list(a) == list(b)
        for name in a:
            if a[name] != b[name]:
                return step, name
    return None


def record_once(out: Path, workload: str, *options: str, env: dict[str, str] | None = None):
    """One run in a fresh process: its steps (the last one is the tail) and its stdout."""
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, str(out), workload, *options],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_WAIT_POLICY": "passive", **(env or {})},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def record_pair(directory: Path, workload: str, *options: str):
    """Two runs, one after the other; their steps."""
    return tuple(record_once(directory / f"{label}.json", workload, *options)[0] for label in "ab")


def diverging_pair(record, tries=6):
    """Two runs of `record()` that differ. On a loaded machine the threads of a race may share a core and miss each
    other for a whole run, so a few more runs are allowed to show it."""
    first = record()
    for _ in range(tries):
        second = record()
        if first_difference(first, second):
            return first, second
    raise AssertionError(f"{tries + 1} runs were all equal")


def _main() -> int:
    out, workload = sys.argv[1:3]
    sys.argv[1:] = sys.argv[3:]
    module = import_module(f"detaudit.workloads.{workload}")
    audits = []
    module.detaudit = SimpleNamespace(record=lambda *parts: audits.append(FakeAudit(*parts)) or audits[-1])
    code = module.main(module.run, module.FAULTS, module.__doc__)
    if audits:
        Path(out).write_text(json.dumps(audits[-1].steps))
    return code


if __name__ == "__main__":
    sys.exit(_main())
