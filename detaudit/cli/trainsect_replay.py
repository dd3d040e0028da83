"""The verb `trainsect replay`: one replay, with batches exchanged where asked."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from detaudit.cli import options
from detaudit.cli.trainsect_gate import add_interval, interval, require_target
from detaudit.core.errors import EXIT_CLEAN, UnreadableError

SCHEMA = "detaudit.trainsect.replay/1"


class ReplayVerb:
    """Replay an interval from a checkpoint, evaluate, and print what came out.

    The gate is passed first, or a certificate of it that fits is used.
    """

    name = "replay"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_interval(parser)
        parser.add_argument(
            "--substitute", metavar="FILE", type=Path, help="JSON: step -> list of micro-batches of sample ids"
        )
        parser.add_argument(
            "--evaluate", metavar="STEP", type=int, action="append", default=[], help="evaluate before this step"
        )
        parser.add_argument("--out", metavar="DIR", type=Path, help="trails and certificate of the gate (RUN/gate)")
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from detaudit.trainsect import gate
        from detaudit.trainsect.batches import micro
        from detaudit.trainsect.replay import TargetReplayer
        from detaudit.trainsect.run import open_run

        run = open_run(args.run)
        start, stop = interval(args, run)
        target = require_target(args)
        rows = {int(step): micro(ids) for step, ids in _read(args.substitute).items()}
        certificate = gate.require(run, target, start, stop, args.out or args.run / "gate")
        replayer = TargetReplayer(run, target, args.run / "replays")
        result = replayer.replay(start, stop, substitutions=rows, evaluate_at=args.evaluate or [stop])
        if args.json:
            value = {
                "schema": SCHEMA,
                "start": start,
                "stop": stop,
                "evaluations": {str(step): repr(loss) for step, loss in result.evaluations.items()},
                "states": {str(step): sha for step, sha in result.states.items()},
                "events": [f"{event.step}: {event.kind}" for event in result.events],
                "certificate": certificate,
                "key": result.key,
            }
            options.print_json(value)
            return EXIT_CLEAN
        for step, loss in result.evaluations.items():
            print(f"evaluation at step {step}: {loss!r}")
        print(f"state at step {stop}: sha256 {result.states.get(stop, 'no checkpoint there')}")
        return EXIT_CLEAN


def _read(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"--substitute {path}: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableError(f"--substitute {path}: a JSON object of step -> micro-batches is expected")
    return value
