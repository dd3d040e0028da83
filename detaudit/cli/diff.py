"""The verb `diff`: two recorded runs, compared on disk."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from detaudit.cli import options, terminal
from detaudit.compare.evidence import open_run
from detaudit.compare.runs import judge
from detaudit.core.errors import UsageError
from detaudit.core.names import Selection
from detaudit.report.json import verdict_json
from detaudit.report.text import verdict_text


class DiffVerb:
    """Compare two recorded runs and name the first step and leaf that differ.

    A and B are trail files or directories of trails. With one argument, the directory of an audit, its runs A and B
    are compared.
    """

    name = "diff"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("a", metavar="A", type=Path, help="a trail, a run directory, or the directory of an audit")
        parser.add_argument("b", metavar="B", type=Path, nargs="?", help="a trail or a run directory")
        options.add_leaves(parser)
        parser.add_argument(
            "--allow-differences",
            action="store_true",
            help="compare runs whose command, versions or thread counts differ; the verdict says so",
        )
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        a, b = _sides(args.a, args.b)
        verdict = judge(open_run(a, "A"), open_run(b, "B"), Selection.parse(args.leaves), args.allow_differences)
        if args.json:
            sys.stdout.write(verdict_json(verdict))
        else:
            terminal.show(verdict_text(verdict, terminal.width()))
        return verdict.outcome.exit_code


def _sides(a: Path, b: Path | None) -> tuple[Path, Path]:
    if b is not None:
        return a, b
    if (a / "A").is_dir() and (a / "B").is_dir():
        return a / "A", a / "B"
    raise UsageError(f"{a} is not the directory of an audit (it has no runs A and B), so a second run must be named")
