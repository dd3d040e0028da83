"""Options that several verbs share, so that they read and mean the same everywhere."""

from __future__ import annotations

import argparse
import json
import os
import sys

from detaudit.core import env
from detaudit.core.errors import UsageError

COMMAND_USAGE = "detaudit {name} [options] -- COMMAND..."


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_leaves(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--leaves",
        metavar="GLOBS",
        type=env.parse_globs,
        default=(),
        help="only leaves that match one of these globs, parted by commas; '!glob' leaves out",
    )


def add_recording(parser: argparse.ArgumentParser) -> None:
    """What to record of a run: --steps, --every, --stats, --leaves."""
    parser.add_argument("--steps", metavar="N", type=positive, default=0, help="end each run after N steps")
    parser.add_argument("--every", metavar="K", type=positive, default=1, help="record every K-th step (%(default)s)")
    parser.add_argument("--stats", action="store_true", help="record sums of squares and counts beside the digests")
    add_leaves(parser)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number >= 1")
    return number


positive.__name__ = "whole number"  # argparse names the type in its message about text that is no number


def require_command(args: argparse.Namespace, verb: str) -> tuple[str, ...]:
    """The command after `--`. Raises UsageError when there is none."""
    command: tuple[str, ...] = args.command
    if not command:
        raise UsageError(f"no command to run; write it after --, as in `detaudit {verb} -- python train.py`")
    return command


def check_environment() -> None:
    """Raises UsageError for an unknown DETAUDIT_* variable: the recorder would refuse it inside the user's run."""
    env.read({name: value for name, value in os.environ.items() if name.startswith(env.PREFIX)})


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
