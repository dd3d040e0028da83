"""A target: the user's file that can execute single steps of his training again.

    def build():
        return Trainer()        # an object with the methods below

    state()                     name -> module, thing with state_dict/load_state_dict, generator or plain value
    fetch(ids, rng)             one micro-batch of these samples; pure: changes no state and no global generator
    step(micro_batches, t)      exactly one update; may return the training loss
    evaluate(t)                 the evaluation loss; changes neither state nor generators

Optional: `restore(name, value)` for plain values that cannot be changed in place, `sample_losses(ids)` for the loss of
single samples, `shard_of(id)`. `rng` is `sample_rng(step, micro_batch)`: a script whose augmentation draws from it can
be replayed from ids; one that draws elsewhere needs a tape.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from detaudit.core.errors import InconclusiveError, UnreadableError, UsageError
from detaudit.trainsect import checkpoint, generators, state
from detaudit.trainsect.leaves import first_difference
from detaudit.trainsect.recorder import refuse_distributed

METHODS = ("state", "fetch", "step", "evaluate")


def sample_rng(step: int, micro_batch: int) -> np.random.Generator:
    """The generator that a target's `fetch` is given: a function of the step and the micro-batch alone."""
    return np.random.default_rng([step, micro_batch])


def code_sha256(path: Path) -> str:
    """SHA-256 of a target's file. Raises UnreadableError."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UnreadableError(f"the target {path} cannot be read: {error.strerror}") from error


def build(path: Path) -> Any:
    """Execute a target's file and build its object. Raises UsageError naming what is missing."""
    code_sha256(path)
    name = f"_trainsect_target_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the target {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    added = str(path.resolve().parent)
    sys.path.insert(0, added)
    try:
        spec.loader.exec_module(module)
        make = getattr(module, "build", None)
        if not callable(make):
            raise UsageError(
                f"{path} has no function build(); it returns the object that {', '.join(METHODS)} belong to"
            )
        found = make()
    finally:
        sys.path.remove(added)
    lacking = [method for method in METHODS if not callable(getattr(found, method, None))]
    if lacking:
        raise UsageError(f"{path}: the object of build() is a {type(found).__name__} without {', '.join(lacking)}()")
    objects = found.state()
    if not isinstance(objects, Mapping) or not objects:
        raise UsageError(f"{path}: state() returns {objects!r:.60}; it maps names to the parts of the state")
    refuse_distributed(objects)
    return found


def take(target: Any, copy: bool = True) -> checkpoint.Encoded:
    """The state of a target, by default in memory of its own."""
    return checkpoint.encode(state.take(target.state()), copy)


def load(target: Any, saved: checkpoint.Encoded, what: str) -> None:
    """Put a state into a target and make sure that it is there. Raises UsageError for names, shapes or dtypes that do
    not fit, InconclusiveError naming the first leaf that did not arrive."""
    state.put(target.state(), saved.decode(), getattr(target, "restore", None))
    lost = first_difference(saved.leaves, take(target, copy=False).leaves)
    if lost is not None:
        leaf, expected, found = lost
        raise InconclusiveError(
            f"{what}: the leaf {leaf} is not what it was after loading: expected {expected[:60]}, found {found[:60]}; "
            "the target's state() or a load_state_dict in it loses it"
        )


def check_evaluate(target: Any, step: int) -> float:
    """Evaluate twice and hold state and generators to what they were. Raises UsageError naming what was changed."""
    before, drawn = take(target), _generators(target)
    first, second = float(target.evaluate(step)), float(target.evaluate(step))
    changed = first_difference(before.leaves, take(target, copy=False).leaves)
    if changed is not None:
        raise UsageError(f"evaluate({step}) of the target changes {changed[0]}; an evaluation changes no state")
    for name, data in _generators(target).items():
        if data != drawn[name]:
            raise UsageError(f"evaluate({step}) of the target draws from the {name} generator; it must leave it alone")
    if first != second and not (first != first and second != second):
        raise UsageError(f"evaluate({step}) of the target gives {first!r}, then {second!r}, of one state")
    return first


def check_fetch(target: Any, ids: tuple[int, ...], step: int) -> None:
    """Fetch once and hold state and generators to what they were. Raises UsageError."""
    before, drawn = take(target), _generators(target)
    target.fetch(ids, sample_rng(step, 0))
    changed = first_difference(before.leaves, take(target, copy=False).leaves)
    strange = next((name for name, data in _generators(target).items() if data != drawn[name]), "")
    if changed is not None or strange:
        what = changed[0] if changed is not None else f"the {strange} generator"
        raise UsageError(f"fetch() of the target changes {what}; draw from the `rng` it is given")


def declared(target: Any) -> dict[str, Any]:
    """The generators that a target declares in its state."""
    return {name: value for name, value in target.state().items() if isinstance(value, generators.DECLARABLE)}


def _generators(target: Any) -> dict[str, bytes]:
    return generators.take(declared(target))
