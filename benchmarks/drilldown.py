"""What tracing costs: a traced step, with and without re-execution, against the same step plain, interleaved.

    python benchmarks/drilldown.py [--steps N] [--width W] [--layers L] [--threads T]

A transformer step with AdamW. Plain, traced and traced-with-repeats steps alternate in one process; the table gives the
medians of the ratios within each round, with their quartiles. The recorder itself is installed in all three.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time

import torch
from torch import nn

from detaudit.capture import install
from detaudit.core.env import Settings
from detaudit.explain.optrace import Tracer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as directory:
        recorder = install.install(Settings(directory))
        tracers = {"traced": Tracer(recorder, (0, 0), 0), "traced + 3 repeats": Tracer(recorder, (0, 0), 3)}
        step, parameters = training(args.width, args.layers)
        rounds = [one_round(step, tracers) for _ in range(args.steps + 2)][2:]
    print(
        f"torch {torch.__version__}, {platform.processor() or platform.machine()}, {args.threads} thread(s), ", end=""
    )
    print(f"{parameters / 1e6:.2f} M parameters, {args.steps} rounds, plain step "
          f"{1e3 * statistics.median(times['plain'] for times in rounds):.0f} ms")  # fmt: skip
    for name in tracers:
        ratios = [times[name] / times["plain"] for times in rounds]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:20} x{middle:.1f}  (quartiles x{low:.1f} to x{high:.1f})")


def training(width: int, layers: int):
    """A step of training, and the number of parameters."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(16, 64, width)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return step, sum(parameter.numel() for parameter in net.parameters())


def one_round(step, tracers: dict[str, Tracer]) -> dict[str, float]:
    times = {"plain": timed(step)}
    for name, tracer in tracers.items():
        tracer._enter()
        tracer._tracing = True
        times[name] = timed(step)
        tracer._tracing = False
        tracer._leave()
    return times


def timed(step) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
