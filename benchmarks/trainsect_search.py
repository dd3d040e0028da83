"""What the search of Trainsect costs: questions, and on a real run updates, against two plain ways.

    python benchmarks/trainsect_search.py [--instances N] [--demo]

`questions` counts the distinct questions of QuickXplain, of the whole tree and of leave-one-out to a memoised oracle,
and how often each names the right cause. `demo` diagnoses the shipped MLP run, then finds its step by bisection that
restarts from zero each time, and its shard by leave-one-out from zero, in the same process; updates executed decide.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path

from detaudit.trainsect.search import Oracle, all_sets, quickxplain

CASES: dict[str, list[set[int]]] = {
    "single": [{0}],
    "two independent": [{0}, {1}],
    "pair interaction": [{0, 1}],
    "triple interaction": [{0, 1, 2}],
    "a or (b and c)": [{0}, {1, 2}],
    "3 of 4": [set(each) for each in itertools.combinations(range(4), 3)],
}


def questions(instances: int, n: int = 64) -> None:
    print(f"questions at n={n}, mean/max over {instances} instances; leave-one-out always asks {n}")
    for case, sets in CASES.items():
        one, tree, right = [], [], 0
        for seed in range(instances):
            units = [f"shard-{i}" for i in range(n)]
            chosen = random.Random(f"{case}:{n}:{seed}").sample(units, 4)
            hidden = [frozenset(chosen[i] for i in each) for each in sets]
            asks = [Oracle(lambda real, h=hidden: any(each <= real for each in h)) for _ in range(2)]  # type: ignore[misc]
            for oracle in asks:
                oracle.know(units, True)
                oracle.know((), False)
            quickxplain(asks[0], units)
            all_sets(asks[1], units)
            one.append(asks[0].asked)
            tree.append(asks[1].asked)
            named = {out for out in units if not any(each <= set(units) - {out} for each in hidden)}
            right += named == set().union(*hidden)
        print(
            f"  {case:20} one set {statistics.mean(one):5.1f}/{max(one):3}  all sets {statistics.mean(tree):5.1f}/"
            f"{max(tree):3}  leave-one-out right {right / instances:4.0%}"
        )


def demo() -> None:
    import torch

    from detaudit.trainsect.counterfactual import Arms, Clock
    from detaudit.trainsect.demos.run import record_demo, target_of
    from detaudit.trainsect.diagnosis import Options, diagnose
    from detaudit.trainsect.filling import shards_in, substitute
    from detaudit.trainsect.replay import TargetReplayer
    from detaudit.trainsect.run import open_run

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        run = open_run(record_demo("mlp", Path(made) / "run"))
        began, replayer = time.perf_counter(), TargetReplayer(run, target_of("mlp"))
        found = diagnose(run, replayer, Options(), lambda text: None)
        assert found.threshold is not None
        print(f"  trainsect, shard, batch and sample with controls: {found.status} {found.shards}", end=" ")
        print(f"{replayer.replays} replays, {replayer.executed} updates, {time.perf_counter() - began:.1f} s")
        plain = PlainCount(run, target_of("mlp"), found.threshold.horizon)
        arms = Arms(run, plain, found.threshold, Clock(lambda text: None))
        filling = arms.validate(0, enough=1)[0]
        recorded = arms.recorded(0, arms.horizon)
        plain.reset()
        low, high = 0, arms.horizon
        while high - low > 1:
            middle = (low + high) // 2
            subs = substitute(recorded, filling, None, range(middle, arms.horizon))
            collapsed = arms.play("bisect", f"real before {middle}", 0, subs).outcome.collapsed
            low, high = (low, middle) if collapsed else (middle, high)
        print(f"  bisection of the steps, restarted from zero: step {low}, {plain.text()}")
        plain.reset()
        named = []
        for shard, positions in shards_in(run, recorded).items():
            if not arms.play("out", shard, 0, substitute(recorded, filling, positions, ())).outcome.collapsed:
                named.append(shard)
        print(f"  leave-one-out of the shards, from zero: {named}, {plain.text()}")


class PlainCount:
    """A replayer built anew for each request: no cache, no shared prefix."""

    def __init__(self, run: object, path: Path, horizon: int) -> None:
        self.run, self.path, self.horizon = run, path, horizon
        self.reset()

    def reset(self) -> None:
        self.replays = self.executed = 0
        self.began = time.perf_counter()

    def text(self) -> str:
        return f"{self.replays} replays, {self.executed} updates, {time.perf_counter() - self.began:.1f} s"

    def replay(self, *args, **settings):  # type: ignore[no-untyped-def]
        from detaudit.trainsect.replay import TargetReplayer

        result = TargetReplayer(self.run, self.path).replay(*args, **settings)  # type: ignore[arg-type]
        self.replays += 1
        self.executed += result.executed
        return result

    def sample_losses(self, checkpoint: int, ids: object) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=60)
    parser.add_argument("--demo", action="store_true", help="also a real run (a minute)")
    args = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}")
    questions(args.instances)
    if args.demo:
        print("updates on the MLP demonstration")
        demo()


if __name__ == "__main__":
    main()
