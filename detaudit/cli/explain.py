"""The verb `explain`: why an audited command diverged, by every toggle experiment."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from detaudit.audit import next_command, write_results
from detaudit.cli import options, terminal
from detaudit.compare.evidence import RunEvidence, open_run
from detaudit.core import env
from detaudit.core.errors import UsageError
from detaudit.core.model import Verdict
from detaudit.explain.toggles import explained
from detaudit.launch import experiment
from detaudit.launch.outdir import DEFAULT
from detaudit.report.json import verdict_json
from detaudit.report.read import read_verdict
from detaudit.report.text import verdict_text


class ExplainVerb:
    """Repeat a diverged audit with one thing changed at a time, and name the best-supported cause.

    DIR is the directory of an audit that diverged. Its command runs again, so call this from the working directory of
    the audit. Every toggle is tried beside plain pairs; the runs are kept in DIR/explain and the reports in DIR are
    written anew.
    """

    name = "explain"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "directory", metavar="DIR", type=Path, nargs="?", default=Path(DEFAULT), help="an audit (%(default)s)"
        )
        parser.add_argument(
            "--pairs", metavar="N", type=options.positive, default=3, help="N pairs of each toggle (%(default)s)"
        )
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        options.check_environment()
        verdict = read_verdict(args.directory / "verdict.json")
        if verdict.first_divergence is None:
            raise UsageError(f"the audit in {args.directory} did not diverge ({verdict.outcome}): nothing to explain")
        if not verdict.command:
            raise UsageError(f"{args.directory}/verdict.json names no command, so there is nothing to repeat")
        runs = [open_run(args.directory / label, label) for label in verdict.pair]
        bench = experiment.bench(verdict, args.directory, recorded(runs[0], verdict), options.progress)
        verdict = explained(verdict, runs, bench.pair, args.pairs, all_axes=True)
        verdict = replace(verdict, next_command=next_command(verdict, args.directory))
        verdict = write_results(verdict, runs, args.directory)
        if args.json:
            sys.stdout.write(verdict_json(verdict))
        else:
            terminal.show(verdict_text(verdict, terminal.width()))
        return verdict.outcome.exit_code


def recorded(run: RunEvidence, verdict: Verdict) -> env.Settings:
    """The settings that an audited run was recorded with, from its trail and the verdict."""
    trail = next(iter(run.trails.values()))
    every, steps = (int(str(trail.manifest.context.get(key, default))) for key, default in (("every", 1), ("steps", 0)))
    return env.Settings(os.curdir, every, steps, bool(trail.stats(0)), env.parse_globs(verdict.selection))
