"""The verb `dump`: raw bytes of two runs, compared on disk."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from detaudit.cli import options, terminal
from detaudit.core.errors import UsageError

SETS = Path(__file__).resolve().parents[1] / "workloads"
"""Where the shipped workloads keep their hypothesis sets, by the workload's name."""


class DumpVerb:
    """Compare the dumps of two runs: which buffers differ, at which element, by how much, and what explains it.

    A dump holds the raw bytes of leaves; DETAUDIT_DUMP=1 makes one (`detaudit show env` lists the variables). A and B
    are dumps, or runs that hold one; with one argument, the directory of an audit, its runs A and B are compared.
    Hypotheses come from FILE, or from the set that is shipped with a reference workload.
    """

    name = "dump"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("action", choices=("compare",), help="what to do with the dumps")
        parser.add_argument("a", metavar="A", type=Path, help="a dump, a run directory, or the directory of an audit")
        parser.add_argument("b", metavar="B", type=Path, nargs="?", help="a dump or a run directory")
        parser.add_argument("--hypotheses", metavar="FILE", type=Path, help="a hypothesis set (TOML)")
        parser.add_argument(
            "--allow-differences",
            action="store_true",
            help="compare dumps whose command or request differ; the result says so",
        )
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from detaudit.dump.reader import open_dump
        from detaudit.explain.buffers import compare_dumps  # loads numpy
        from detaudit.explain.hypotheses import read_set
        from detaudit.report.dump import dump_text, dump_value

        declared = read_set(args.hypotheses) if args.hypotheses is not None else None
        a, b = (open_dump(path) for path in _sides(args.a, args.b))
        if declared is None:
            shipped = shipped_set(word for dump in a.values() for word in dump.header.command)
            declared = read_set(shipped) if shipped is not None else None
        verdict = compare_dumps(a, b, declared, args.allow_differences)
        if args.json:
            options.print_json(dump_value(verdict))
        else:
            terminal.show(dump_text(verdict, terminal.width()))
        return verdict.outcome.exit_code


def shipped_set(command: Iterable[str]) -> Path | None:
    """The hypothesis set of the reference workload that a command runs, None for any other program."""
    for word in command:
        found = re.search(r"detaudit[./\\]workloads[./\\](\w+)", word)
        if found and (SETS / f"{found[1]}.toml").is_file():
            return SETS / f"{found[1]}.toml"
    return None


def _sides(a: Path, b: Path | None) -> tuple[Path, Path]:
    if b is not None:
        return a, b
    if (a / "A").is_dir() and (a / "B").is_dir():
        return a / "A", a / "B"
    raise UsageError(f"{a} is not the directory of an audit (it has no runs A and B), so a second dump must be named")
