"""The verb `check`: the double run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from detaudit.audit import Request, check
from detaudit.cli import options, terminal
from detaudit.core.model import Verdict
from detaudit.launch.child import tail_of
from detaudit.launch.outdir import DEFAULT
from detaudit.report.json import verdict_json
from detaudit.report.text import verdict_text


class CheckVerb:
    """Run a training command twice and name the first step and leaf that differ.

    The command needs no change: the recorder is injected into its Python. The runs follow one another in fresh
    processes; their output is kept beside their trails.
    """

    name = "check"
    takes_command = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = options.COMMAND_USAGE.format(name=self.name)
        parser.add_argument("--runs", metavar="N", type=int, default=2, help="how many runs, at least 2 (%(default)s)")
        options.add_recording(parser)
        parser.add_argument(
            "--no-drill",
            action="store_true",
            help="do not run a diverged pair again with its operators traced",
        )
        parser.add_argument(
            "--pairs",
            metavar="N",
            type=options.positive,
            default=3,
            help="at most N traced pairs to explain a divergence, and N of each toggle (%(default)s)",
        )
        parser.add_argument(
            "--explain",
            action="store_true",
            help="repeat a diverged pair with every toggle, not only those that its signature suggests",
        )
        parser.add_argument("--out", metavar="DIR", type=Path, default=Path(DEFAULT), help="results (%(default)s)")
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        request = Request(
            command=options.require_command(args, self.name),
            directory=args.out,
            runs=args.runs,
            steps=args.steps,
            every=args.every,
            stats=args.stats,
            leaves=args.leaves,
            drill=not args.no_drill,
            pairs=args.pairs,
            all_toggles=args.explain,
        )
        verdict = check(request, options.progress)
        _tell_failures(verdict, args.out)
        if args.json:
            sys.stdout.write(verdict_json(verdict))
        else:
            terminal.show(verdict_text(verdict, terminal.width()))
        return verdict.outcome.exit_code


def _tell_failures(verdict: Verdict, directory: Path) -> None:
    """The last lines of a failed run's stderr: what an engineer would look at first."""
    for run in verdict.runs:
        if run.exit_status in (0, None):
            continue
        lines = tail_of(directory / run.label / "stderr.txt")
        if lines:
            options.progress(f"run {run.label}, end of its stderr:\n{lines}")
