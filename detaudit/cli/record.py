"""The verb `record`: one run, its trails kept."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from detaudit.cli import options, terminal
from detaudit.compare.evidence import RunEvidence
from detaudit.compare.runs import why_unusable
from detaudit.core import env
from detaudit.core.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE
from detaudit.launch import child, outdir
from detaudit.report.json import run_value
from detaudit.report.table import table

SCHEMA = "detaudit.record/1"


class RecordVerb:
    """Run a training command once and keep its trails, to be compared later with `detaudit diff`.

    Exit code 3 when nothing was recorded or the command failed.
    """

    name = "record"
    takes_command = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = options.COMMAND_USAGE.format(name=self.name)
        parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="directory that receives the trails")
        options.add_recording(parser)
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        command = options.require_command(args, self.name)
        options.check_environment()
        directory = outdir.prepare(args.out).resolve()
        options.progress(f"recording: {shlex.join(command)}")
        settings = env.Settings(str(directory), args.every, args.steps, args.stats, args.leaves)
        settings = env.with_dump(settings, os.environ)
        env.refuse_first_divergence(settings)
        evidence = child.run(command, "run", settings, os.environ)
        problem = why_unusable(evidence)
        if args.json:
            options.print_json(_value(evidence, args.out, problem))
        else:
            terminal.show(_text(evidence, args.out, problem))
        if evidence.report.exit_status:
            options.progress(f"end of its stderr:\n{child.tail_of(directory / 'stderr.txt')}")
        return EXIT_INCONCLUSIVE if problem else EXIT_CLEAN


def _value(evidence: RunEvidence, directory: Path, problem: str) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "directory": str(directory),
        "recorded": not problem,
        "reason": problem,
        "run": run_value(evidence.report),
        "trails": [
            {"name": name, "file": trail.path.name, "steps": len(trail), "leaves": leaf_count(evidence, name)}
            for name, trail in evidence.trails.items()
        ],
    }


def _text(evidence: RunEvidence, directory: Path, problem: str) -> str:
    if problem:
        return f"NOT RECORDED: {problem}\n"
    rows = [
        [str(directory / trail.path.name), str(len(trail)), str(leaf_count(evidence, name))]
        for name, trail in evidence.trails.items()
    ]
    lines = ["RECORDED", *table(["trail", "steps", "leaves"], rows), f"next: detaudit diff {directory} OTHER"]
    return "\n".join(lines) + "\n"


def leaf_count(evidence: RunEvidence, name: str) -> int:
    """The number of distinct leaf names of a trail."""
    return len({leaf for layout in evidence.trails[name].layouts for leaf in layout.names})
