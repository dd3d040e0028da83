"""What recording costs a training step: recorded and plain steps of one transformer, interleaved in one process.

Blocks alternate between arms; each block is a few steps, of which the first is not counted (it names and digests the
initial state). The figure is the median of the ratios of neighbouring blocks, with its quartiles. Peers in the same
run: torch's DebugMode with tensor hashes. Memory is the difference of peak resident sizes of two fresh processes.

    python benchmarks/overhead.py [--rounds N] [--curve] [--memory] [--peer]
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from detaudit.capture import install
from detaudit.core.env import Settings

STEPS = 4
GOALS = {"all but module outputs": 1.03, "all leaves": 1.05}


class Training:
    """A pre-norm transformer of 6.6 million parameters with AdamW on random tokens `[8, T]`."""

    def __init__(self, tokens: int) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True, dropout=0.1)
        self.embed = nn.Embedding(4096, 256)
        self.body = nn.TransformerEncoder(layer, 7, enable_nested_tensor=False)
        self.head = nn.Linear(256, 4096)
        self.head.weight = self.embed.weight
        self.model = nn.Sequential(self.embed, self.body, self.head)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.ids = torch.randint(0, 4096, (8, tokens // 8))

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def step(self) -> None:
        self.opt.zero_grad()
        logits = self.model(self.ids)
        nn.functional.cross_entropy(logits.flatten(0, 1), self.ids.flatten()).backward()
        self.opt.step()


@contextmanager
def plain() -> Iterator[None]:
    yield


@contextmanager
def recorded(leaves: tuple[str, ...] = ()) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as directory:
        install.install(Settings(directory, leaves=leaves))
        try:
            yield
        finally:
            install.uninstall("complete")
            assert list(Path(directory).glob("*.trail")), "nothing was recorded"


@contextmanager
def debug_mode() -> Iterator[None]:
    from torch.utils._debug_mode import DebugMode

    with DebugMode(), DebugMode.log_tensor_hashes(hash_fn="hash_tensor"):
        yield


ARMS: dict[str, Callable[[], object]] = {
    "all but module outputs": lambda: recorded(("!act.*",)),
    "all leaves": recorded,
}


def block(training: Training, arm: Callable[[], object], steps: int = STEPS) -> float:
    """Seconds a step within an arm, the first step not counted."""
    with arm():  # type: ignore[attr-defined]
        training.step()
        started = time.perf_counter()
        for _ in range(steps - 1):
            training.step()
        return (time.perf_counter() - started) / (steps - 1)


def ratios(training: Training, arm: Callable[[], object], rounds: int, steps: int = STEPS) -> list[float]:
    """Recorded over plain, from blocks in the order plain, arm, plain: the mean of both neighbours is the base."""
    found = []
    before = block(training, plain, steps)
    for _ in range(rounds):
        with_arm = block(training, arm, steps)
        after = block(training, plain, steps)
        found.append(with_arm / ((before + after) / 2))
        before = after
    return found


def show(label: str, found: list[float], goal: float | None = None) -> None:
    low, middle, high = statistics.quantiles(found, n=4)
    verdict = "" if goal is None else ("met" if middle <= goal else "MISSED")
    wanted = "" if goal is None else f"<= {goal:.2f}"
    print(f"{label:32} {middle:7.3f}  [{low:.3f}, {high:.3f}]  {wanted:8} {verdict}", flush=True)


def memory(arm: str, tokens: int) -> int:
    """Peak resident bytes of a fresh process that trains 12 steps."""
    source = (
        "import sys, benchmarks.overhead as o\n"
        f"t = o.Training({tokens})\n"
        f"arm = o.ARMS.get({arm!r}, o.plain)\n"
        "with arm():\n    [t.step() for _ in range(12)]\n"
        # Not getrusage: its ru_maxrss survives exec, so a child begins with the peak of the process that started it.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", source], cwd=root, capture_output=True, text=True, check=True)
    return int(done.stdout) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--curve", action="store_true", help="128 to 4,096 tokens instead of 1,024 alone")
    parser.add_argument("--memory", action="store_true", help="peak resident size, with and without the recorder")
    parser.add_argument("--peer", action="store_true", help="torch's DebugMode with hash_tensor on the same steps")
    args = parser.parse_args()
    training = Training(1024)
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, {platform.machine()}, {training.parameters:,} parameters")
    print(f"{'step time over plain':32} {'median':>7}  [quartiles]       goal")
    for tokens in (128, 256, 512, 1024, 2048, 4096) if args.curve else (1024,):
        training = Training(tokens)
        print(f"{tokens} tokens, {block(training, plain) * 1e3:.0f} ms a plain step")
        for label, arm in ARMS.items():
            show("  " + label, ratios(training, arm, args.rounds), GOALS[label] if tokens == 1024 else None)
        if args.peer:
            show("  DebugMode, hash_tensor", ratios(training, debug_mode, 3, steps=2))
    if args.memory:
        base, ours = memory("plain", 1024), memory("all leaves", 1024)
        print(
            f"peak resident: plain {base / 2**20:.0f} MiB, recorded {ours / 2**20:.0f} MiB, "
            f"difference {(ours - base) / 2**20:+.0f} MiB (goal <= 32 beyond the largest leaf)"
        )
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
