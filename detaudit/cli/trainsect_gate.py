"""The verb `trainsect gate`: is a recorded interval replayed bit-exact?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from detaudit.cli import options
from detaudit.cli.trainsect_record import add_evaluations, check_evaluations
from detaudit.core.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE, UsageError

SCHEMA = "detaudit.trainsect.gate-result/1"


class GateVerb:
    """Replay an interval twice and compare every leaf, with each other and with the recording.

    Exit code 3 with the first divergent step and leaf when they differ. A clean result is a certificate, which replays
    over the same interval need.
    """

    name = "gate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_interval(parser)
        parser.add_argument("--rerun", action="store_true", help="run the recorded script again instead of a target")
        parser.add_argument("--out", metavar="DIR", type=Path, help="trails and certificate (RUN/gate)")
        add_evaluations(parser)
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from detaudit.trainsect import gate, gate_rerun
        from detaudit.trainsect.rerun import EvalSource, RerunReplayer
        from detaudit.trainsect.run import open_run

        check_evaluations(args)
        run = open_run(args.run)
        start, stop = interval(args, run)
        out = args.out or args.run / "gate"
        try:
            if args.rerun:
                if args.target:
                    raise UsageError("give --target or --rerun, not both")
                replayer = RerunReplayer(run, args.run / "reruns", EvalSource(args.eval, args.eval_regex))
                options.progress(replayer.cost(2, stop))
                passed = gate_rerun.identity(replayer, stop, out)
            else:
                options.progress(f"2 replays of [{start}, {stop}): {2 * (stop - start)} updates")
                passed = gate.identity(run, require_target(args), start, stop, out)
        except gate.GateError as error:
            if args.json:
                options.print_json(_halt(error))
            else:
                print(f"HALTED: {error}")
            return EXIT_INCONCLUSIVE
        _show(args, passed)
        return EXIT_CLEAN


def add_interval(parser: argparse.ArgumentParser) -> None:
    """The run, --target, --from and --to."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--target", metavar="FILE", type=Path, help="Python file with build()")
    parser.add_argument("--from", dest="start", metavar="STEP", type=int, help="checkpoint to start at (the first)")
    parser.add_argument("--to", dest="stop", metavar="STEP", type=int, help="checkpoint to end at (the last)")


def interval(args: argparse.Namespace, run: Any) -> tuple[int, int]:
    """The checkpoints named by --from and --to; the first and the last by default."""
    if not run.checkpoints:
        raise UsageError(f"{args.run} holds no checkpoint")
    start = min(run.checkpoints) if args.start is None else args.start
    stop = max(run.checkpoints) if args.stop is None else args.stop
    return start, stop


def require_target(args: argparse.Namespace) -> Path:
    """The file of --target. Raises UsageError when it was not given."""
    if args.target is None:
        raise UsageError("a replay needs --target FILE, a Python file with build()")
    path: Path = args.target
    return path


def _halt(error: Any) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "outcome": "halted",
        "reason": str(error),
        "step": error.step,
        "leaf": error.leaf,
        "expected": error.expected,
        "found": error.found,
    }


def _show(args: argparse.Namespace, passed: Any) -> None:
    if args.json:
        options.print_json(
            {
                "schema": SCHEMA,
                "outcome": "clean",
                "start": passed.start,
                "stop": passed.stop,
                "steps_compared": passed.steps_compared,
                "leaves_compared": passed.leaves_compared,
                "parameters": {str(step): sha for step, sha in passed.parameters.items()},
                "certificate": passed.certificate,
                "warnings": list(passed.warnings),
            }
        )
        return
    print(f"BIT-EXACT: [{passed.start}, {passed.stop}) twice, {passed.leaves_compared} leaves, equal to the recording")
    for step, sha in passed.parameters.items():
        print(f"  checkpoint {step}: parameters sha256 {sha}")
    for line in passed.warnings:
        print(f"warning: {line}")
    print(f"certificate: {passed.certificate}")
