"""The replayer over a target: cached by content, prefixes shared, checked against the recording where it must agree.

`TargetReplayer.replay`: look in the cache; find the furthest snapshot on the way; execute the rest, leaving a snapshot
just before the first substituted step; keep the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from detaudit.core.errors import InconclusiveError, UsageError
from detaudit.trainsect import cache, environment_fit, target
from detaudit.trainsect.execute import Execution, Request
from detaudit.trainsect.model import MicroBatches, Patch, ReplayResult
from detaudit.trainsect.run import RecordedRun


class TargetReplayer:
    """Implements `model.Replayer`. `executed` counts the updates run so far, `replays` the requests that ran any.

    Sets torch's thread count to the recorder's: it decides the order of reductions."""

    def __init__(self, run: RecordedRun, path: Path, cache_directory: Path | None = None) -> None:
        threads = run.settings.get("threads")
        if isinstance(threads, int) and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        self.run, self.path = run, path
        self.built = target.build(path)
        self._execution = Execution(run, self.built)
        self._results = cache.ResultCache(cache_directory)
        self._snapshots = cache.Snapshots()
        self._base = cache.key_of(run.digest, target.code_sha256(path), environment_fit.deciding())
        self.executed = self.replays = 0

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
        """See `model.Replayer.replay`."""
        chosen = {step: rows for step, rows in sorted(substitutions.items()) if start <= step < stop}
        request = Request(start, stop, chosen, tuple(sorted(set(evaluate_at))), patch, seed)
        self._check(request, substitutions)
        key = self.key_of(request)
        found = self._results.get(key)
        if found is None:
            found = self._execute(request, key)
            self._results.put(found)
            return found
        return found

    def key_of(self, request: Request) -> str:
        """The content key of a request."""
        entry = self.run.checkpoints.get(request.start)
        return cache.key_of(self._base, entry.file_sha256 if entry else "", asdict(request))

    def sample_losses(self, checkpoint: int, ids: Sequence[int]) -> Mapping[int, float] | None:
        """See `model.Replayer.sample_losses`."""
        ask = getattr(self._execution.target, "sample_losses", None)
        if not callable(ask):
            return None
        self._execution.begin(checkpoint)
        losses = [float(loss) for loss in ask(tuple(ids))]
        if len(losses) != len(ids):
            raise UsageError(f"sample_losses() of the target gave {len(losses)} losses for {len(ids)} samples")
        return dict(zip(ids, losses, strict=True))

    def _check(self, request: Request, given: Mapping[int, MicroBatches]) -> None:
        if request.stop < request.start:
            raise UsageError(f"a replay from step {request.start} to step {request.stop} goes backwards")
        outside = [step for step in given if not request.start <= step < request.stop]
        if outside:
            raise UsageError(f"step {outside[0]} is substituted but not in [{request.start}, {request.stop})")
        late = [step for step in request.evaluate_at if not request.start <= step <= request.stop]
        if late:
            raise UsageError(f"an evaluation at step {late[0]} is not in [{request.start}, {request.stop}]")

    def _execute(self, request: Request, key: str) -> ReplayResult:
        keys = self._prefix_keys(request)
        first = self._resume(request, keys)
        branch = min(request.substitutions, default=request.stop)
        if first < branch < request.stop:
            self._execution.steps(first, branch, request)
            self._keep(keys[branch])
            self._execution.steps(branch, request.stop, request)
        else:
            self._execution.steps(first, request.stop, request)
        trace = self._execution.finish(request)
        self.executed += request.stop - first
        self.replays += 1
        self._refuse(trace.mismatches, request)
        return ReplayResult(
            start=request.start,
            stop=request.stop,
            evaluations={s: v for s, v in sorted(trace.evaluations.items()) if s in request.evaluate_at},
            states=dict(sorted(trace.states.items())),
            losses=dict(sorted(trace.losses.items())),
            events=tuple(trace.events),
            key=key,
            executed=request.stop - first,
        )

    def _refuse(self, mismatches: Sequence[Any], request: Request) -> None:
        if mismatches:
            first = mismatches[0]
            raise InconclusiveError(
                f"the replay of [{request.start}, {request.stop}) is not of the recorded run: step {first.step}, "
                f"leaf {first.leaf}: recorded {first.expected[:40]}, replayed {first.found[:40]}"
            )

    def _prefix_keys(self, request: Request) -> dict[int, str]:
        """For each step, the key of the state before it: start, seed, and what was fed and patched on the way."""
        patch = request.patch
        entry = self.run.checkpoints.get(request.start)
        key = cache.key_of(self._base, request.start, entry.file_sha256 if entry else "", request.seed)
        keys = {}
        for step in range(request.start, request.stop + 1):
            keys[step] = key
            patched = asdict(patch) if patch is not None and patch.at == step else None
            key = cache.key_of(key, request.substitutions.get(step), patched)
        return keys

    def _resume(self, request: Request, keys: Mapping[int, str]) -> int:
        """Load the furthest snapshot that has shown every evaluation due before it; else the checkpoint."""
        for step in range(request.stop, request.start, -1):
            if keys[step] in self._snapshots:
                state, trace = self._snapshots.get(keys[step])
                if all(due in trace.evaluations for due in request.evaluate_at if due < step):
                    self._execution.restore(state, trace)
                    return step
        self._execution.begin(request.start)
        return request.start

    def _keep(self, key: str) -> None:
        if key not in self._snapshots:
            state = target.take(self._execution.target)
            size = sum(tensor.untyped_storage().nbytes() for tensor in state.tensors)
            self._snapshots.put(key, (state, self._execution.trace.copy()), size + 4096)
