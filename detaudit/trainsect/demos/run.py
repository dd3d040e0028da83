"""Record a demonstration run, and strip one of its recorder data."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType

from detaudit.core.errors import UsageError
from detaudit.trainsect import recording

DEMOS = ("mlp", "transformer")
EXPECTED = {
    ("mlp", False): ("CONFIRMED (causal)", ("shard-2",)),
    ("mlp", True): ("FORENSIC (probable)", ("shard-2",)),
    ("transformer", False): ("CONCENTRATION", ()),
    ("transformer", True): ("UNPROVEN", ()),
}
KEPT = ("run.json", "evaluations.jsonl", "checkpoints")


def module_of(name: str) -> ModuleType:
    """The module of a demonstration. Raises UsageError."""
    if name not in DEMOS:
        raise UsageError(f"there is no demonstration {name!r}; there are {', '.join(DEMOS)}")
    return importlib.import_module(f"detaudit.trainsect.demos.{name}")


def target_of(name: str) -> Path:
    return Path(str(module_of(name).__file__))


def record_demo(name: str, directory: Path, seed: int = 0) -> Path:
    """Train the demonstration with the recorder on, into a new directory. Returns it."""
    demo = module_of(name)
    trainer = demo.Trainer(seed)
    objects = trainer.state()
    recording.start_recording(
        directory,
        model=objects["model"],
        optimizer=objects["optimizer"],
        scheduler=objects.get("scheduler"),
        every=demo.EVERY,
        pool=demo.POOL,
        shards=demo.SHARD_MAP,
    )
    outcome = "exception"
    try:
        for t, ids in enumerate(demo.order(seed)):
            if t % demo.EVALUATE_EVERY == 0:
                recording.record_eval(t, trainer.evaluate(t), data_digest="held-out")
            batch = trainer.fetch(ids, None)
            loss = trainer.step([batch], t)
            recording.record(t, batch, ids=ids, loss=loss)
        recording.record_eval(demo.STEPS, trainer.evaluate(demo.STEPS), data_digest="held-out")
        outcome = "complete"
    finally:
        recording.stop_recording(outcome)
    return directory


def strip(directory: Path, bare: Path, batch_size: int) -> Path:
    """A copy of a run as it would be without the recorder: settings, evaluations and checkpoints."""
    bare.mkdir(parents=True)
    for name in KEPT:
        source = directory / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, bare / name)
    settings = json.loads((bare / "run.json").read_text("utf-8"))
    settings["batch_size"] = batch_size
    (bare / "run.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", "utf-8")
    return bare
