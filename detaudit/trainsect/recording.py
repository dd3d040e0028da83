"""The public functions of recording: one recording a process.

start_recording("run", model=model, optimizer=optimizer, scheduler=scheduler)
for step, (ids, batch) in enumerate(loader):
    ...                                   # forward, backward, update
    record(step, batch, ids=ids, loss=loss)
stop_recording()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detaudit.core.errors import UsageError
from detaudit.trainsect.recorder import RNG_BUDGET, Options, Recording

_current: Recording | None = None


def start_recording(
    run_dir: str | Path,
    *,
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    ema: Any = None,
    objects: Mapping[str, Any] | None = None,
    every: int = 40,
    pool: int | None = None,
    shards: Mapping[str, Any] | None = None,
    rng_budget: int = RNG_BUDGET,
    tape: bool = False,
    first_step: int = 0,
) -> Recording:
    """Begin to record this process's training into `run_dir`, which holds no recording yet.

    `objects` names what else is state: modules, anything with a state_dict, generators, mutable containers, or a
    function that returns plain values. `every` is the distance of checkpoints in steps, `pool` the number of samples,
    `shards` how ids map to shards ({"blocks": N}, {"bounds": [...]} or {"names": [...], "bounds": [...]}).

    Raises UsageError for a second recording, an existing one in `run_dir`, or a state with no exact form (its path is
    named); InconclusiveError for a distributed run.
    """
    global _current
    if _current is not None:
        raise UsageError("this process is being recorded already; call stop_recording() first")
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "ema": ema}
    clash = set(objects or {}) & {name for name, value in named.items() if value is not None}
    if clash:
        raise UsageError(f"objects= names {', '.join(sorted(clash))}, which is given already")
    state = {name: value for name, value in named.items() if value is not None} | dict(objects or {})
    options = Options(every, pool, shards, rng_budget, tape, first_step=first_step)
    _current = Recording(Path(run_dir), state, options)
    return _current


def record(step: int, batch: Any = None, *, ids: Any = None, loss: Any = None, skipped: bool | None = None) -> None:
    """Close a step after its update.

    `ids` are the sample ids, a list for each micro-batch where there are several (then `batch` is a list too); left
    out, they are those that a DataLoader delivered. `loss` is the training loss. `skipped` is found out by itself from
    the declared optimizers. Raises UsageError for a step out of order or an id outside of the pool.
    """
    _open().record(step, batch, ids, loss, skipped)


def record_eval(step: int, loss: Any, *, data_digest: str = "") -> None:
    """Record an evaluation loss of the state before update `step`; `data_digest` tells what it was taken on."""
    _open().record_eval(step, loss, data_digest)


def stop_recording(outcome: str = "complete") -> None:
    """End the recording: the final state, the end of the log. Any outcome but `complete` writes no final state."""
    global _current
    recording = _open()
    _current = None
    recording.stop(outcome)


def _open() -> Recording:
    if _current is None:
        raise UsageError("nothing is being recorded; call start_recording(...) first")
    return _current
