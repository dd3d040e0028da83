"""Recorded runs in memory: a target trained step by step, its checkpoints deep copies, its replays real re-executions.

Nothing is faked but the files: `record` trains the target with a given order, `MemoryReplayer` loads a checkpoint and
trains it again with the batches asked for.
"""

import copy
import fnmatch
import hashlib
import pickle
from pathlib import Path

from detaudit.core.errors import UsageError
from detaudit.trainsect.model import CheckpointEntry, Evaluation, ReplayResult, StepEntry


class MemoryRun:
    def __init__(self, shard_of, pool):
        self.directory, self.settings, self.warnings = Path("memory"), {"batch_size": 4}, []
        self.steps, self.evaluations, self.checkpoints = {}, [], {}
        self.pool, self.shard_of, self.instrumented = pool, shard_of, True

    def stripped(self):
        bare = copy.copy(self)
        bare.steps, bare.instrumented = {}, False
        return bare


def digest(target):
    return hashlib.sha256(pickle.dumps({k: target.__dict__[k] for k in target.leaves})).hexdigest()


class MemoryReplayer:
    def __init__(self, run, states):
        self.run, self.states, self.asked, self.executed, self.cache = run, states, 0, 0, {}

    def replay(self, start, stop, *, substitutions, evaluate_at, patch=None, seed=None):
        key = repr((start, stop, sorted(substitutions.items()), tuple(evaluate_at), patch, seed))
        self.asked += 1
        if key in self.cache:
            return self.cache[key]
        target = copy.deepcopy(self.states[start])
        evaluations, states, losses = {}, {}, {}
        for step in range(start, stop + 1):
            if patch and step == patch.at:
                self._patch(target, patch)
            if step in evaluate_at:
                evaluations[step] = target.evaluate(step)
            if step in self.run.checkpoints or step == stop:
                states[step] = digest(target)
            if step < stop:
                ids = substitutions.get(step) or self.run.steps[step].ids
                known = self.run.steps.get(step)
                assert known is None or [len(m) for m in ids] == [len(m) for m in known.ids]
                losses[step] = target.step(ids, step)
                self.executed += 1
        result = ReplayResult(start, stop, evaluations, states, losses, key=key, executed=stop - start)
        self.cache[key] = result
        return result

    def _patch(self, target, patch):
        source = self.states[patch.source]
        names = {leaf: f"model.{'buffer' if leaf in target.buffers else 'param'}.{leaf}" for leaf in target.leaves}
        hit = [leaf for leaf, name in names.items() if any(fnmatch.fnmatch(name, p) for p in patch.leaves)]
        if not hit:
            raise UsageError(f"no leaf matches {patch.leaves}")
        for leaf in hit:
            setattr(target, leaf, copy.deepcopy(getattr(source, leaf)))

    def sample_losses(self, checkpoint, ids):
        target = self.states[checkpoint]
        return {i: target.sample_loss(i) for i in ids} if hasattr(target, "sample_loss") else None


def record(target, order, *, shard_of, pool, every=20, evaluate_every=5):
    """Train `target` on `order` (a list of id tuples), with checkpoints and evaluations before the steps named."""
    run, states = MemoryRun(shard_of, pool), {}
    for step in range(len(order) + 1):
        if step % every == 0 or step == len(order):
            states[step] = copy.deepcopy(target)
            run.checkpoints[step] = CheckpointEntry(step, Path(f"{step}.ckpt"), "", digest(target), "")
        if step % evaluate_every == 0:
            data = getattr(target, "data_digest", lambda step: "")(step)
            run.evaluations.append(Evaluation(step, target.evaluate(step), data))
        if step < len(order):
            loss = target.step((order[step],), step)
            run.steps[step] = StepEntry(step, (tuple(order[step]),), f"digest{step}", {}, loss=loss)
    return run, MemoryReplayer(run, states)
