"""The command line: a list of verbs, and the one place that turns errors into exit codes.

`main` reads top to bottom: split off the audited command, parse, run the verb, map what it raised. Results go to
stdout, progress and errors to stderr. Exit codes: 0 clean or done, 1 diverged, 2 usage or unreadable input,
3 inconclusive, refused or not comparable.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Protocol

import detaudit
from detaudit.cli.check import CheckVerb
from detaudit.cli.diff import DiffVerb
from detaudit.cli.doctor import DoctorVerb
from detaudit.cli.dump import DumpVerb
from detaudit.cli.explain import ExplainVerb
from detaudit.cli.export import ExportVerb
from detaudit.cli.ranks import RanksVerb
from detaudit.cli.record import RecordVerb
from detaudit.cli.show import ShowVerb
from detaudit.cli.spike import SpikeVerb
from detaudit.cli.trainsect import TrainsectVerb
from detaudit.cli.verify import VerifyVerb
from detaudit.core.errors import DetauditError

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

DESCRIPTION = "Is this training run bit-exact when it runs again, and if not: which step, which tensor?"
EXIT_CODES = """\
exit codes:
  0  clean, or done
  1  diverged
  2  usage, or unreadable input
  3  inconclusive, refused or not comparable"""


class Verb(Protocol):
    """One verb of the command line; its docstring is its help. A verb that audits a command, given after `--`, has
    `takes_command = True` and finds it in `args.command`."""

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


VERBS: tuple[Verb, ...] = (
    CheckVerb(),
    ExplainVerb(),
    RecordVerb(),
    DiffVerb(),
    RanksVerb(),
    ShowVerb(),
    VerifyVerb(),
    ExportVerb(),
    DumpVerb(),
    DoctorVerb(),
    SpikeVerb(),
    TrainsectVerb(),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. Argparse errors, --help and --version leave by SystemExit."""
    args = parse(list(sys.argv[1:] if argv is None else argv))
    try:
        code: int = args.verb.run(args)
        sys.stdout.flush()
        return code
    except DetauditError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def parse(argv: list[str]) -> argparse.Namespace:
    """The parsed command line, with the verb in `verb` and what stood after `--` in `command`."""
    parser = build_parser()
    takes_command = {verb.name for verb in VERBS if getattr(verb, "takes_command", False)}
    command: list[str] = []
    if "--" in argv and argv[0] in takes_command:
        place = argv.index("--")
        argv, command = argv[:place], argv[place + 1 :]
    args, extra = parser.parse_known_args(argv)
    if extra:
        cure = "; the command to audit goes after --" if args.verb.name in takes_command else ""
        parser.error(f"unrecognized arguments: {' '.join(extra)}{cure}")
    args.command = tuple(command)
    return args


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; the CLI reference in docs/notes is generated from it."""
    parser = argparse.ArgumentParser(
        prog="detaudit",
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"detaudit {detaudit.__version__}")
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
        sub.set_defaults(verb=verb)
    return parser
