"""The verb `export`: trails as rows for other tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from detaudit.cli import options
from detaudit.cli.trails import open_trails
from detaudit.core.errors import UsageError
from detaudit.trail.export import write_csv, write_jsonl
from detaudit.trail.reader import TrailReader

SCHEMA = "detaudit.export/1"


class ExportVerb:
    """Write the trails of a run as JSON lines or CSV, one row a leaf and step.

    The column `rank` names the trail, so that all ranks of a run fit into one file.
    """

    name = "export"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("path", metavar="PATH", type=Path, help="a trail, a run directory or an audit")
        parser.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="(%(default)s)")
        parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.json and args.output is None:
            raise UsageError("--json reports on the file that -o writes; add -o FILE (the rows themselves: --format)")
        trails = open_trails(args.path)
        if args.output is None:
            _write(trails, sys.stdout, args.format)
            return 0
        try:
            with args.output.open("w", encoding="utf-8", newline="") as file:
                count = _write(trails, file, args.format)
        except OSError as error:
            raise UsageError(f"{args.output} cannot be written: {error.strerror}") from error
        if args.json:
            value = {"schema": SCHEMA, "file": str(args.output), "format": args.format, "rows": count}
            options.print_json({**value, "trails": list(trails)})
        else:
            options.progress(f"wrote {count} rows to {args.output}")
        return 0


def _write(trails: Mapping[str, TrailReader], out: TextIO, form: str) -> int:
    if form == "jsonl":
        return sum(write_jsonl(trail, out, label) for label, trail in trails.items())
    if len({trail.has_stats for trail in trails.values()}) > 1:
        raise UsageError("some of these trails hold stats and some do not; export them one by one, or as jsonl")
    rows = enumerate(trails.items())
    return sum(write_csv(trail, out, label, head=index == 0) for index, (label, trail) in rows)
