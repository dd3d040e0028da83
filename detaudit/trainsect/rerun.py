"""Replay without a target: the user's own script again, from its start, with batches exchanged at the DataLoader.

Costs the whole prefix each time; `cost` tells before. Each exchange is proved by a batch whose digest changed. The
script's own files are written again, as in an audit. Evaluations are the ones the script takes itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from detaudit.core.errors import InconclusiveError, UsageError
from detaudit.trainsect import cache, launch
from detaudit.trainsect.execute import Mismatch, Request
from detaudit.trainsect.model import MicroBatches, Patch, ReplayResult
from detaudit.trainsect.run import RecordedRun, open_run


@dataclass(frozen=True)
class EvalSource:
    """Where the script leaves its evaluations: one of `spec` (FILE:STEPKEY:LOSSKEY) and `regex` (over stdout)."""

    spec: str = ""
    regex: str = ""


class RerunReplayer:
    """Implements `model.Replayer` by re-execution. `scratch` receives a run directory a replay, removed afterwards."""

    def __init__(self, run: RecordedRun, scratch: Path, evals: EvalSource, cache_directory: Path | None = None) -> None:
        self._command: tuple[str, ...] = tuple(run.settings.get("command", ()))
        if not self._command or not run.settings.get("zero_code"):
            raise UsageError(
                f"{run.directory} was not made by `trainsect record`, so it cannot run again: give --target"
            )
        self.run, self._scratch, self._evals = run, scratch, evals
        self._results = cache.ResultCache(cache_directory)
        self.executed = self.replays = 0

    def cost(self, replays: int, stop: int) -> str:
        """The estimate to print before anything is run."""
        return f"{replays} re-executions of {stop} steps each, from step 0: {replays * stop} updates"

    def replay(
        self,
        start: int,
        stop: int,
        *,
        substitutions: Mapping[int, MicroBatches],
        evaluate_at: Sequence[int],
        patch: Patch | None = None,
        seed: int | None = None,
    ) -> ReplayResult:
        """See `model.Replayer.replay`. Raises UsageError for a patch: nothing is loaded into a running script."""
        if patch is not None or seed is not None:
            raise UsageError(
                "a re-execution loads nothing into the running script: give --target for patches and seeds"
            )
        request = Request(start, stop, dict(sorted(substitutions.items())), tuple(sorted(set(evaluate_at))))
        key = cache.key_of("rerun", self.run.digest, asdict(request), asdict(self._evals))
        found = self._results.get(key)
        if found is None:
            again = self.execute(request, self._scratch / key[:16])
            found = self._result(request, again, key)
            self._results.put(found)
            launch.forget(self._scratch / key[:16])
        return found

    def sample_losses(self, checkpoint: int, ids: Sequence[int]) -> Mapping[int, float] | None:
        """A running script cannot be asked."""
        return None

    def execute(self, request: Request, out: Path, trails: bool = False) -> RecordedRun:
        """Run the script with the substitutions, to `request.stop`; the run directory it left."""
        for step, rows in request.substitutions.items():
            self._check(step, rows)
        launch.forget(out)
        out.mkdir(parents=True)
        config: dict[str, Any] = {
            "every": self.run.settings["every"],
            "pool": self.run.settings["pool"],
            "shards": self.run.settings["shards"],
            "rerun": {
                "run": str(self.run.directory.resolve()),
                "substitutions": {str(step): rows for step, rows in request.substitutions.items()},
                "stop": request.stop,
            },
        }
        launch.run_script(self._command, out, config, trails)
        launch.add_evaluations(out, self._evals.spec, self._evals.regex)
        self.executed += request.stop
        self.replays += 1
        again = open_run(out)
        self._prove(request, again)
        return again

    def _check(self, step: int, rows: MicroBatches) -> None:
        entry = self.run.steps.get(step)
        if entry is None or entry.ids is None or "places" not in entry.loader:
            raise UsageError(
                f"step {step} drew no indices from a DataLoader (an IterableDataset?): nothing can be exchanged there; "
                "record a tape and give --target"
            )
        if [*map(len, rows)] != [*map(len, entry.ids)]:
            raise UsageError(f"step {step}: a substitute of sizes {[*map(len, rows)]} for {[*map(len, entry.ids)]}")

    def _prove(self, request: Request, again: RecordedRun) -> None:
        for step, rows in request.substitutions.items():
            before, after = self.run.steps[step], again.steps.get(step)
            if after is None or after.ids != rows:
                found = None if after is None else after.ids
                raise InconclusiveError(f"step {step}: the exchange did not arrive: asked {rows}, trained on {found}")
            if rows != before.ids and after.batch == before.batch:
                raise InconclusiveError(f"step {step}: other ids, yet the content is still {before.batch}")

    def _result(self, request: Request, again: RecordedRun, key: str) -> ReplayResult:
        losses = {evaluation.step: evaluation.loss for evaluation in again.evaluations}
        absent = [step for step in request.evaluate_at if step not in losses]
        if absent:
            known = ", ".join(map(str, sorted(losses))) or "none"
            raise UsageError(f"the script takes no evaluation at step {absent[0]}; it takes them at {known}")
        return ReplayResult(
            start=request.start,
            stop=request.stop,
            evaluations={step: losses[step] for step in request.evaluate_at},
            states={s: c.state_sha256 for s, c in sorted(again.checkpoints.items()) if request.start <= s},
            losses={s: e.loss for s, e in again.steps.items() if request.start <= s and e.loss is not None},
            events=tuple(event for event in again.events if event.step >= request.start),
            key=key,
            executed=request.stop,
        )


def differences(recorded: RecordedRun, again: RecordedRun, stop: int) -> Mismatch | None:
    """The first thing in which a re-execution of [0, stop) is not the recorded run; None when it is."""
    idle = untouched(recorded, stop) & untouched(again, stop)
    for step in range(min(recorded.steps, default=0), stop):
        checkpoint = recorded.checkpoints.get(step)
        if checkpoint is not None:
            found = again.checkpoints.get(step)
            if found is None or found.state_sha256 != checkpoint.state_sha256:
                return _state_difference(recorded, again, step)
        a, b = recorded.steps[step], again.steps.get(step)
        if b is None:
            return Mismatch(step, "step", "present", "missing")
        rng = next((name for name in a.rng if name not in idle and b.rng.get(name) != a.rng[name]), "")
        if rng:
            return Mismatch(step, f"rng.{rng}", a.rng[rng], b.rng.get(rng, "missing"))
        for leaf in ("ids", "batch", "loss", "skipped"):
            if repr(getattr(a, leaf)) != repr(getattr(b, leaf)):
                return Mismatch(step, leaf, repr(getattr(a, leaf)), repr(getattr(b, leaf)))
    return _state_difference(recorded, again, stop) if stop in recorded.checkpoints else None


def untouched(run: RecordedRun, stop: int) -> frozenset[str]:
    """Those of python's and numpy's generators that no step before `stop` drew from or seeded.

    They start from the operating system's entropy, so in a program that does not use them their states differ in every
    process and decide nothing. A draw ahead of the first step shows in what was drawn: the batches and the state.
    """
    entries = [entry for step, entry in sorted(run.steps.items()) if step < stop]
    return frozenset(
        name for name in ("python", "numpy") if len({entry.rng.get(name) for entry in entries if entry.rng}) <= 1
    )


def _state_difference(recorded: RecordedRun, again: RecordedRun, step: int) -> Mismatch | None:
    from detaudit.trainsect import checkpoint
    from detaudit.trainsect.leaves import first_difference

    if step not in again.checkpoints:
        return Mismatch(step, "checkpoint", "present", "missing")
    kept = [
        {n: t for n, t in checkpoint.read(run.checkpoints[step]).leaves.items() if not checkpoint.is_gradient(n)}
        for run in (recorded, again)
    ]
    found = first_difference(kept[0], kept[1])
    return None if found is None else Mismatch(step, *found)
