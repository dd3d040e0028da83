"""Small trainings with a known cause of collapse. Samples 0..79 in shards of ten; bad ones are given by id."""

import math
import random

POOL = range(80)


def shard_of(sample):
    return f"shard-{sample // 10}"


def order(steps=120, batch=4, seed=0, bad=None, hold=None):
    """`bad`: {step: ids} put at the front of those steps' batches; ids named there or in `hold` are drawn nowhere
    else before step 100."""
    rng = random.Random(seed)
    bad = bad or {}
    held = set(hold or ()) | {i for ids in bad.values() for i in ids}
    free = [i for i in POOL if i not in held]
    made = []
    for step in range(steps):
        ids = list(bad.get(step, ()))
        made.append(tuple(ids + rng.sample(free, batch - len(ids))))
    return made


class Toy:
    """A weight that decays to its floor; `harm(ids, step)` moves `damage`, and the evaluation loss follows it."""

    leaves, buffers = ("weight", "damage", "trace"), ()

    def __init__(self):
        self.weight, self.damage, self.trace = 2.0, 0.0, ()

    def harm(self, ids, step):
        return 0.0

    def step(self, micro_batches, step):
        ids = [i for micro in micro_batches for i in micro]
        self.weight += 0.05 * (0.5 - self.weight) + 1e-4 * math.sin(sum(ids))
        self.damage = max(self.damage, 0.0) + self.harm(ids, step)
        return self.weight

    def evaluate(self, step):
        return self.weight * math.exp(min(50.0, self.damage))


class Single(Toy):
    def harm(self, ids, step):
        return 2.0 if 23 in ids else 0.0

    def sample_loss(self, sample):
        return 9.0 if sample == 23 else 1.0 + sample / 1000


class Independent(Toy):
    def harm(self, ids, step):
        return 2.0 if {23, 61} & set(ids) and self.damage == 0 else 0.0


class Pair(Toy):
    """Harm only when both have been seen since the last checkpoint: neither alone does any."""

    def harm(self, ids, step):
        self.trace = tuple(sorted({*self.trace, *(i for i in ids if i in (23, 61))}))
        return 2.0 if self.trace == (23, 61) and self.damage == 0 else 0.0


class Order(Toy):
    """Collapses when five batches in a row come from one shard each, which a permutation breaks."""

    def harm(self, ids, step):
        same = len({i // 10 for i in ids}) == 1
        self.trace = (*self.trace, 1) if same else ()
        return 2.0 if len(self.trace) == 5 else 0.0


class Concentration(Toy):
    """Collapses when twelve bad samples (ids ending in 9, shards 1 3 4 6) have come inside one window."""

    BAD = (19, 39, 49, 69)

    def harm(self, ids, step):
        before = len(self.trace)
        self.trace = (*self.trace, *(i for i in ids if i in self.BAD))
        return 2.0 if before < 12 <= len(self.trace) else 0.0


class EvalData(Toy):
    """The training is healthy; from step 60 on it is evaluated on poisoned data."""

    def evaluate(self, step):
        return self.weight * (30.0 if step >= 60 else 1.0)

    def data_digest(self, step):
        return "b" * 16 if step >= 60 else "a" * 16


class Buffers(Toy):
    """One sample poisons running statistics; the weights stay healthy."""

    leaves, buffers = ("weight", "damage", "trace"), ("damage",)

    def harm(self, ids, step):
        return 2.0 if 23 in ids else 0.0


class Latent:
    """Facts 4.1: curvature a, weight w, loss 0.5 a w^2; poison at 60..63 lifts a past 2/lr, w explodes much later.
    Curvature is frozen once |w| > 1."""

    leaves, buffers = ("a", "w"), ()

    def __init__(self):
        self.a, self.w = 1.0, 1.0

    def step(self, micro_batches, step):
        ids = [i for micro in micro_batches for i in micro]
        if abs(self.w) <= 1:
            self.a += 0.02 * (1.0 - self.a) * (self.a < 20) + (6.0 if 23 in ids else 0.0)
        self.w = max(-1e6, min(1e6, self.w - 0.1 * self.a * self.w + 1e-5))
        return 0.5 * self.a * self.w**2

    def evaluate(self, step):
        return 1.0 + 0.5 * self.w**2
