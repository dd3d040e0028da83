"""The verb `trainsect record`: a script that knows nothing of Trainsect, recorded."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from detaudit.cli import options
from detaudit.core.errors import EXIT_CLEAN, UsageError
from detaudit.launch import outdir
from detaudit.trainsect import evalsource, launch

SCHEMA = "detaudit.trainsect.record/1"


class RecordVerb:
    """Record a training script without a change to it: checkpoints, batch ids, generator states.

    Exit code 3 when the command failed or nothing was recorded.
    """

    name = "record"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "trainsect record [options] --out RUN -- COMMAND..."
        parser.add_argument("--out", metavar="RUN", type=Path, required=True, help="the run directory to write")
        parser.add_argument(
            "--every", metavar="K", type=options.positive, default=40, help="a checkpoint every K steps (%(default)s)"
        )
        parser.add_argument("--shards", metavar="N", type=options.positive, help="shards are blocks of N sample ids")
        parser.add_argument("--tape", action="store_true", help="keep whole batches (an IterableDataset needs it)")
        add_evaluations(parser)
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        command = options.require_command(args, "trainsect record")
        options.check_environment()
        check_evaluations(args)
        directory = outdir.prepare(args.out)
        options.progress(f"recording: {shlex.join(command)}")
        shards = {"blocks": args.shards} if args.shards else None
        launch.run_script(command, directory, {"every": args.every, "shards": shards, "tape": args.tape})
        count = launch.add_evaluations(directory, args.eval, args.eval_regex)
        _show(args, directory, count)
        return EXIT_CLEAN


def add_evaluations(parser: argparse.ArgumentParser) -> None:
    """--eval and --eval-regex, of which at most one is given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--eval", metavar="FILE:STEP:LOSS", default="", help="evaluations in a JSONL or CSV file, by key"
    )
    group.add_argument(
        "--eval-regex", metavar="REGEX", default="", help="evaluations in stdout, by the groups step and loss"
    )


def check_evaluations(args: argparse.Namespace) -> None:
    """Raises UsageError before anything runs, not after."""
    if args.eval:
        evalsource.parse(args.eval)
    if args.eval_regex:
        evalsource.compile_regex(args.eval_regex)


def _show(args: argparse.Namespace, directory: Path, evaluations: int) -> None:
    from detaudit.trainsect.run import open_run

    run = open_run(directory)
    if not run.steps:
        raise UsageError(f"{directory} holds no step")
    if args.json:
        value = {
            "schema": SCHEMA,
            "directory": str(args.out),
            "steps": len(run.steps),
            "checkpoints": sorted(run.checkpoints),
            "evaluations": evaluations,
            "warnings": list(run.warnings),
        }
        options.print_json(value)
        return
    print(f"RECORDED {len(run.steps)} steps, {len(run.checkpoints)} checkpoints, {evaluations} evaluations")
    for line in run.warnings:
        print(f"warning: {line}")
    print(f"next: trainsect gate {args.out} --rerun")
