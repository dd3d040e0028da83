"""Off-policy value learning on CartPole-v1 with prioritised replay: the reference workload, clean by default.

The flow is `run`: a `PerTrainer` whose memory is full, then `train` (one `PerTrainer.step` a step), then `evaluate`,
and one line of `summary` on stdout. Leaves are declared as `checksums.<leaf>`.

    python -m detaudit.workloads.per_rl --steps 200 --eval-steps 50 --batch 128 --seed 0 [--inject FAULT[,FAULT]]
"""

from __future__ import annotations

import sys
import time

import torch

import detaudit
from detaudit.workloads.agent import HORIZON
from detaudit.workloads.cartpole import CartPoleLanes
from detaudit.workloads.faults import FaultKind
from detaudit.workloads.launch import Audit, Options, main
from detaudit.workloads.per_trainer import ENCODER_RACE, LANES, PerTrainer
from detaudit.workloads.replay import PRNG_DRIFT
from detaudit.workloads.treefaults import REBUILD_RACE, STALE_READ, WALK_FLIP

FAULTS = {
    STALE_READ: FaultKind("two host threads rebuild the tree without a barrier between levels"),
    REBUILD_RACE: FaultKind("the tree is rebuilt by one racing scatter of leaves into ancestors", races=True),
    PRNG_DRIFT: FaultKind("the sampler's PRNG is re-seeded from the clock, from step 2 on", start=2),
    WALK_FLIP: FaultKind("the tree walk scales by a total that racing threads summed", races=True),
    ENCODER_RACE: FaultKind("the encoder's tile gather races in its backward", races=True),
}


def run(options: Options) -> str:
    """Train and evaluate under `detaudit.record`. The summary depends on the options alone, unless a fault acts."""
    trainer = PerTrainer(options)
    begun = time.perf_counter()
    with detaudit.record(trainer.net, trainer.optimizer) as audit:
        loss = train(trainer, options.steps, audit)
        spent = time.perf_counter() - begun
        returned = evaluate(trainer, options, audit)
    print(f"{options.steps} steps, {1e3 * spent / options.steps:.1f} ms a step", file=sys.stderr)
    return summary(options, loss, returned)


def train(trainer: PerTrainer, steps: int, audit: Audit) -> float:
    """Train for `steps` steps, telling `audit` of every declared leaf and step. Returns the last loss."""
    loss = torch.zeros(())
    for step in range(steps):
        loss = trainer.step(step, audit)
        audit.step()
    return loss.item()


def evaluate(trainer: PerTrainer, options: Options, audit: Audit) -> float:
    """Mean reward that a lane collects in `eval_steps` greedy steps before its pole first falls; fresh environments."""
    lanes = CartPoleLanes(LANES, HORIZON, options.seed + 1)
    standing_L, returned_L = torch.ones(LANES), torch.zeros(LANES)
    for _ in range(options.eval_steps):
        lanes.step(trainer.look(lanes).argmax(-1), torch.ones(LANES))
        returned_L += standing_L
        standing_L *= ~lanes.resetting_L
    audit.leaf("checksums.eval_returns", returned_L)
    return returned_L.mean().item()


def summary(options: Options, loss: float, returned: float) -> str:
    """The line that a run prints on stdout; the loss to its last bit."""
    return (
        f"per_rl steps={options.steps} batch={options.batch} seed={options.seed} "
        f"inject={options.faults.describe()} final_loss={loss.hex()} eval_return={returned:g}"
    )


if __name__ == "__main__":
    sys.exit(main(run, FAULTS, __doc__ or ""))
