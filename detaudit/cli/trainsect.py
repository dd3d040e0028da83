"""The verb `trainsect`, a command line of its own: `trainsect VERB` and `detaudit trainsect VERB` are the same."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from typing import Protocol

from detaudit.cli.trainsect_diagnose import DemoVerb, DiagnoseVerb, VerifyVerb
from detaudit.cli.trainsect_gate import GateVerb
from detaudit.cli.trainsect_record import RecordVerb
from detaudit.cli.trainsect_replay import ReplayVerb


class SubVerb(Protocol):
    """One verb of Trainsect; its docstring is its help."""

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


VERBS: tuple[SubVerb, ...] = (RecordVerb(), GateVerb(), ReplayVerb(), DiagnoseVerb(), VerifyVerb(), DemoVerb())


class TrainsectVerb:
    """Bisect a training run: record it, replay it bit-exact, find the data that broke it."""

    name = "trainsect"
    takes_command = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
        for verb in VERBS:
            text = inspect.cleandoc(verb.__doc__ or "")
            sub = verbs.add_parser(
                verb.name,
                help=text.splitlines()[0],
                description=text,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            verb.add_arguments(sub)
            sub.set_defaults(trainsect_verb=verb)

    def run(self, args: argparse.Namespace) -> int:
        verb: SubVerb = args.trainsect_verb
        return verb.run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `trainsect`."""
    from detaudit import cli

    return cli.main(["trainsect", *(sys.argv[1:] if argv is None else argv)])
