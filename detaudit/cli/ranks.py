"""The verb `ranks`: the ranks of one run against each other."""

from __future__ import annotations

import argparse
from pathlib import Path

from detaudit.cli import options, trails
from detaudit.compare.ranks import RankComparison, compare_ranks
from detaudit.core.errors import EXIT_CLEAN, EXIT_DIVERGED
from detaudit.core.names import Selection


class RanksVerb:
    """Find the first step at which the replicas of one run disagree, and which rank is alone.

    Compares parameters, gradients at the update and optimizer state, which data-parallel training keeps equal on all
    ranks; --leaves chooses others. Sharded parameters (FSDP) differ by design: leave them out.
    """

    name = "ranks"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("path", metavar="RUN", type=Path, help="a run directory with a trail for each rank")
        options.add_leaves(parser)
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        result = compare_ranks(trails.open_trails(args.path), Selection.parse(args.leaves))
        if args.json:
            options.print_json(_value(result))
        else:
            print(_text(result))
        return EXIT_CLEAN if result.disagreement is None else EXIT_DIVERGED


def _text(result: RankComparison) -> str:
    found = result.disagreement
    if found is None:
        return f"AGREE: {len(result.ranks)} ranks, {result.steps_compared} steps, {result.leaves_compared} leaves"
    groups = " | ".join(", ".join(group) for group in found.groups)
    alone = f"; {found.alone} is alone" if found.alone else ""
    return f"FIRST_DISAGREEMENT: step={found.step} leaf={found.leaf}{alone}\n  equal to each other: {groups}"


def _value(result: RankComparison) -> dict[str, object]:
    found = result.disagreement
    return {
        "schema": "detaudit.ranks/1",
        "agree": found is None,
        "step": found.step if found else None,
        "leaf": found.leaf if found else None,
        "groups": [list(group) for group in found.groups] if found else [],
        "alone": found.alone if found else None,
        "ranks": list(result.ranks),
        "steps_compared": result.steps_compared,
        "leaves_compared": result.leaves_compared,
    }
