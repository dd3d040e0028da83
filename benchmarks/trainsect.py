"""What Trainsect's recording costs a training step, checkpoints apart, and what a checkpoint costs.

Recorded and plain blocks of steps alternate in one process, on one model; the order within a pair changes from pair to
pair. The figure is the median of the ratios of the pairs with a bootstrap interval (2.5 to 97.5 %, 2,000 draws).

    python benchmarks/trainsect.py [--pairs N] [--steps N] [--width D]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from detaudit.trainsect.recorder import Options, Recording

GOAL = 1.01


class Training:
    """A pre-norm transformer with dropout and AdamW on random tokens `[8, 64]`."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.1)
        self.embed = nn.Embedding(4096, width)
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.model = nn.Sequential(self.embed, self.body, nn.Linear(width, 4096))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.tokens = torch.randint(0, 4096, (64, 8, 64))

    def step(self, t: int) -> tuple[torch.Tensor, float]:
        tokens = self.tokens[t % 64]
        loss = nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return tokens, loss.item()


def block(training: Training, recording: Recording | None, steps: int) -> float:
    """Processor seconds of the block: on a shared machine wall time measures the neighbours."""
    started = time.process_time()
    for t in range(steps):
        tokens, loss = training.step(t)
        if recording is not None:
            recording.record(recording.step, tokens, ids=range(8), loss=loss)
    return time.process_time() - started


def pairs(training: Training, recording: Recording, count: int, steps: int) -> list[float]:
    """The ratio recorded / plain of each pair of blocks."""
    found = []
    for index in range(count):
        seconds = {}
        for recorded in (True, False) if index % 2 else (False, True):
            (recording._arm if recorded else recording._disarm)()
            seconds[recorded] = block(training, recording if recorded else None, steps)
        found.append(seconds[True] / seconds[False])
    return found


def interval(ratios: list[float], draws: int = 2000) -> tuple[float, float]:
    """The bootstrap interval of the median."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=2, help="steps of a block")
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    training = Training(args.width)
    count = sum(p.numel() for p in training.model.parameters())
    print(f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()}")
    with tempfile.TemporaryDirectory() as folder:
        objects = {"model": training.model, "optimizer": training.optimizer}
        recording = Recording(Path(folder, "run"), objects, Options(every=10**9))
        block(training, recording, 2)  # holds the checkpoint of step 0, and the first states of the generators
        ratios = pairs(training, recording, args.pairs, args.steps)
        low, high = interval(ratios)
        started = time.perf_counter()
        recording.write_checkpoint()
        checkpoint = time.perf_counter() - started
        recording._disarm()
        step = block(training, None, args.steps) / args.steps
        recording.stop()
        size = sum(path.stat().st_size for path in Path(folder, "run", "checkpoints").glob("*.pt")) / 2
        what = f"{args.pairs} pairs of {args.steps} steps"
        print(f"{count / 1e6:.1f} M parameters, {1000 * step:.0f} ms of processor time a step, {what}")
        median = statistics.median(ratios)
        met = "met" if high <= GOAL else "missed" if low > GOAL else "not decided by this run"
        print(f"recorded / plain: median {median:.4f} [{low:.4f}, {high:.4f}]; goal {GOAL}: {met}")
        print(f"one checkpoint: {checkpoint:.2f} s, {size / 1e6:.0f} MB (SHA-256 of every leaf and of the file, fsync)")
        print(f"load at the end {os.getloadavg()}")


if __name__ == "__main__":
    main()
