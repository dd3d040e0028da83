"""The verb `verify`: are these trails and certificates whole, and does the recorder itself tell the truth?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from detaudit import certificate
from detaudit.cli import options, terminal
from detaudit.cli.trails import find_trails
from detaudit.core.errors import EXIT_INCONCLUSIVE, DetauditError, UsageError
from detaudit.report.table import table
from detaudit.trail.reader import TrailReader

SCHEMA = "detaudit.verify/1"


@dataclass(frozen=True)
class Check:
    """One thing that was verified. `exit_code` is 0 when it holds; `detail` says what was seen either way."""

    what: str
    exit_code: int
    detail: str


class VerifyVerb:
    """Verify trails (every frame, the chain), certificates (SHA-256 of their trails), and with --self the recorder.

    --self digests the golden vectors on this machine and shows that a training run gives the same loss bits with and
    without the recorder; it loads torch. Exit code 2 for damage, 3 for a trail that ended early or a refuted
    certificate.
    """

    name = "verify"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "paths", metavar="PATH", type=Path, nargs="*", help="a trail, a run directory, a certificate or an audit"
        )
        parser.add_argument("--self", dest="own", action="store_true", help="verify the recorder on this machine")
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        if not args.paths and not args.own:
            raise UsageError("nothing to verify: name a trail, a run directory or a certificate, or give --self")
        checks = [check for path in args.paths for check in verify_path(path)]
        if args.own:
            from detaudit.cli.selfcheck import self_checks  # loads torch

            checks.extend(Check(what, EXIT_INCONCLUSIVE if bad else 0, detail) for what, bad, detail in self_checks())
        if args.json:
            options.print_json({"schema": SCHEMA, "checks": [asdict(check) for check in checks]})
        else:
            rows = [["ok" if not check.exit_code else "FAILED", check.what, check.detail] for check in checks]
            terminal.show("\n".join(table(["", "", ""], rows, indent="")) + "\n")
        failed = [check.exit_code for check in checks if check.exit_code]
        return min(failed, default=0)


def verify_path(path: Path) -> Iterator[Check]:
    """The checks of one path: every trail it names, and the certificate where there is one."""
    if path.name == certificate.NAME or path.suffix == ".json":
        yield _certificate_check(path)
        return
    for file in find_trails(path).values():
        yield _trail_check(file)
    if (path / certificate.NAME).is_file():
        yield _certificate_check(path / certificate.NAME)


def _trail_check(file: Path) -> Check:
    try:
        with TrailReader(file) as trail:
            trail.verify_chain()
            seen = f"{trail.frame_count} frames, {len(trail)} steps"
            if trail.dropped_bytes:
                seen += f", {trail.dropped_bytes} bytes of a torn tail dropped"
                return Check(str(file), EXIT_INCONCLUSIVE, seen)
            if not trail.outcome:
                return Check(str(file), EXIT_INCONCLUSIVE, f"{seen}, did not end by itself")
            return Check(str(file), 0, f"{seen}, ended {trail.outcome}")
    except DetauditError as error:
        return Check(str(file), error.exit_code, str(error))


def _certificate_check(path: Path) -> Check:
    try:
        value = certificate.verify(path)
    except DetauditError as error:
        return Check(str(path), error.exit_code, str(error))
    trails, steps = len(value["trails"]), value["steps_compared"]
    return Check(str(path), 0, f"certifies {steps} steps and {value['leaves_compared']} leaves of {trails} trails")
