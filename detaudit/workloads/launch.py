"""How a workload starts: its options, its threads and device, and where its leaves go.

`OMP_WAIT_POLICY` belongs to the calling script: it must stand before the process starts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from detaudit.core.errors import DetauditError, UsageError
from detaudit.workloads.faults import NO_FAULTS, FaultKind, FaultPlan, parse_faults

THREADS = 2
"""Intra-op threads unless OMP_NUM_THREADS or --threads says otherwise: the fewest that race."""

CPU = torch.device("cpu")


class Audit(Protocol):
    """The part of a `detaudit.record` session that a training loop uses."""

    def leaf(self, name: str, value: Tensor, /) -> object:
        """Declare a leaf; its bytes are read before the call returns."""

    def step(self) -> object:
        """Close the step."""


@dataclass(frozen=True)
class Options:
    """What a workload was asked to run. `eval_steps` of 0 leaves the evaluation out."""

    steps: int = 200
    eval_steps: int = 50
    batch: int = 128
    seed: int = 0
    device: torch.device = CPU
    threads: int = THREADS
    faults: FaultPlan = NO_FAULTS


def main(workload: Callable[[Options], str], kinds: Mapping[str, FaultKind], description: str) -> int:
    """Parse the command line, run, print the one-line summary. Returns the exit code; errors go to stderr."""
    try:
        options = parse_options(sys.argv[1:], kinds, description)
        prepare(options)
        print(workload(options))
    except DetauditError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def parse_options(argv: Sequence[str], kinds: Mapping[str, FaultKind], description: str) -> Options:
    """Options from a command line. Raises UsageError for a fault, device or number that is not legal."""
    given = _parser(kinds, description).parse_args(argv)
    for name, least in (("steps", 1), ("eval_steps", 0), ("batch", 2), ("seed", 0), ("threads", 1)):
        if getattr(given, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(given, name)} is too small; it takes >= {least}")
    faults = parse_faults(given.inject, kinds)
    return Options(given.steps, given.eval_steps, given.batch, given.seed, _device(given.device), given.threads, faults)


def prepare(options: Options) -> None:
    """Pin threads and seeds of this process. Warns on stderr when a racing fault cannot race."""
    # cuBLAS may pick its workspace anew in every run unless this stands before CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    if options.faults.racing and options.threads < 2 and options.device.type == "cpu":
        names = ", ".join(options.faults.racing)
        print(f"warning: {names} cannot race with --threads {options.threads}; use 2 or more", file=sys.stderr)


def _parser(kinds: Mapping[str, FaultKind], description: str) -> argparse.ArgumentParser:
    legal = "".join(f"\n  {name}: {kind.meaning}" for name, kind in kinds.items())
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0],
        epilog=f"faults:{legal}\n  late:STEP:FAULT: any of them, from STEP on",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--steps", default=Options.steps, help="training steps (%(default)s)", **defaults)
    parser.add_argument("--eval-steps", default=Options.eval_steps, help="evaluation steps (%(default)s)", **defaults)
    parser.add_argument("--batch", default=Options.batch, help="batch size (%(default)s)", **defaults)
    parser.add_argument("--seed", default=Options.seed, help="seed of every generator (%(default)s)", **defaults)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (%(default)s)")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    parser.add_argument(
        "--threads",
        default=int(threads) if threads.isdecimal() else THREADS,
        help="intra-op threads (OMP_NUM_THREADS, else 2)",
        **defaults,
    )
    parser.add_argument("--inject", default="", metavar="FAULT[,FAULT]", help="make the run nondeterministic")
    return parser


def _device(text: str) -> torch.device:
    kind = text.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UsageError(f"--device {text!r} is not legal; it takes cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {text}: this torch sees no CUDA device; use --device cpu")
    try:
        return torch.device(text)
    except RuntimeError:
        raise UsageError(f"--device {text!r} is not legal; it takes cpu, cuda or cuda:N") from None
