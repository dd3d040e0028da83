"""The verb `show`: what a trail holds, and what the DETAUDIT_* variables say."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detaudit.cli import options, terminal
from detaudit.cli.trails import open_trails
from detaudit.core import env
from detaudit.core.errors import UsageError
from detaudit.core.model import Leaf
from detaudit.core.names import Selection
from detaudit.report.table import table
from detaudit.trail.reader import TrailReader

SCHEMA = "detaudit.show/1"
ENVIRONMENT = "env"


class ShowVerb:
    """Show what a trail holds: its steps, layouts, notes and digests. `show env` shows the DETAUDIT_* variables.

    Without --step or --leaf only the summary of each trail; with them the digests.
    """

    name = "show"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("path", metavar="PATH", help="a trail, a run directory, an audit, or the word env")
        parser.add_argument("--step", metavar="N", type=int, help="the digests of step N")
        parser.add_argument("--leaf", metavar="GLOB", help="the digests of leaves that match, of every step or of N")
        parser.add_argument("--manifest", action="store_true", help="what the run was: command, versions, variables")
        options.add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.path == ENVIRONMENT:
            return _show_environment(args.json)
        trails = open_trails(Path(args.path))
        value = {label: trail_value(trail, args.step, args.leaf, args.manifest) for label, trail in trails.items()}
        _refuse_empty(value, args)
        if args.json:
            options.print_json({"schema": SCHEMA, "trails": value})
        else:
            blocks = ["\n".join(_trail_lines(label, trail)) for label, trail in value.items()]
            terminal.show("\n\n".join(blocks) + "\n")
        return 0


def trail_value(trail: TrailReader, step: int | None, glob: str | None, manifest: bool) -> dict[str, Any]:
    """The asked parts of a trail as plain JSON types: always the summary, and `manifest` and `leaves` on demand."""
    value: dict[str, Any] = {
        "file": str(trail.path),
        "steps": len(trail),
        "first_step": trail.steps[0] if trail.steps else None,
        "last_step": trail.steps[-1] if trail.steps else None,
        "frames": trail.frame_count,
        "dropped_bytes": trail.dropped_bytes,
        "outcome": trail.outcome,
        "stats": trail.has_stats,
        "layouts": _layout_values(trail),
        "notes": trail.notes,
    }
    if manifest:
        value["manifest"] = {"decisive": dict(trail.manifest.decisive), "context": dict(trail.manifest.context)}
    if step is not None or glob is not None:
        value["leaves"] = list(_leaf_values(trail, step, glob))
    return value


def _layout_values(trail: TrailReader) -> list[dict[str, Any]]:
    uses: dict[int, list[int]] = {}
    for position, step in enumerate(trail.steps):
        uses.setdefault(trail.layout_id(position), []).append(step)
    return [
        {
            "kind": str(layout.kind),
            "optimizer": layout.optimizer,
            "leaves": len(layout.leaves),
            "unsupported": [f"{leaf.name}: {leaf.unsupported}" for leaf in layout.leaves if leaf.unsupported],
            "steps": len(uses.get(index, ())),
            "first_step": min(uses.get(index, ()), default=None),
        }
        for index, layout in enumerate(trail.layouts)
    ]


def _leaf_values(trail: TrailReader, step: int | None, glob: str | None) -> Iterator[dict[str, Any]]:
    chosen = Selection.parse([glob] if glob is not None else [])
    positions = range(len(trail)) if step is None else [trail.position(step)]
    for position in positions:
        if position is None:
            continue
        record = trail.record(position)
        for order, (leaf, digest) in enumerate(zip(record.layout.leaves, record.digests, strict=True)):
            if leaf.name in chosen:
                stats = {"sumsq": record.stats[order].sumsq} if record.stats else {}
                yield {"step": record.step, "order": order, **_leaf_value(leaf, digest), **stats}


def _leaf_value(leaf: Leaf, digest: int) -> dict[str, Any]:
    return {
        "leaf": leaf.name,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "digest": "" if leaf.unsupported else f"{digest:016x}",
        "unsupported": leaf.unsupported,
        "aliases": list(leaf.aliases),
    }


def _refuse_empty(value: Mapping[str, dict[str, Any]], args: argparse.Namespace) -> None:
    """An answer without a row would read like "nothing there"; say what was asked and what there is."""
    if (args.step is None and args.leaf is None) or any(trail["leaves"] for trail in value.values()):
        return
    what = [f"step {args.step}"] if args.step is not None else []
    what += [f"a leaf matching {args.leaf!r}"] if args.leaf is not None else []
    there = "; ".join(f"{label}: steps {trail['first_step']} to {trail['last_step']}" for label, trail in value.items())
    raise UsageError(f"no trail of {args.path} holds {' with '.join(what)} ({there})")


def _trail_lines(label: str, value: Mapping[str, Any]) -> Iterator[str]:
    yield f"trail {label}: {value['file']}"
    span = f" ({value['first_step']} to {value['last_step']})" if value["steps"] else ""
    dropped = f", {value['dropped_bytes']} bytes of a torn tail dropped" if value["dropped_bytes"] else ""
    yield f"  steps {value['steps']}{span}, {value['frames']} frames{dropped}"
    yield f"  ended {value['outcome'] or '(did not end by itself)'}, {'with' if value['stats'] else 'without'} stats"
    for index, layout in enumerate(value["layouts"]):
        closed = f"{layout['kind']} {layout['optimizer']}".strip()
        yield f"  layout {index}: {layout['leaves']} leaves, closed by {closed}, {layout['steps']} steps"
        yield from (f"    unsupported: {line}" for line in layout["unsupported"])
    for note in value["notes"]:
        yield f"  note {note['note']}: " + ", ".join(f"{k}={v}" for k, v in note.items() if k != "note")
    for part in ("decisive", "context"):
        if "manifest" in value:
            yield f"  {part}:"
            yield from table(["", ""], [[k, str(v)] for k, v in value["manifest"][part].items()], indent="    ")
    if "leaves" in value:
        yield from _leaf_lines(value["leaves"])


def _leaf_lines(leaves: list[dict[str, Any]]) -> Iterator[str]:
    with_stats = any("sumsq" in leaf for leaf in leaves)
    head = ["step", "order", "leaf", "dtype", "shape", "digest", *(["sumsq"] if with_stats else [])]
    rows = []
    for leaf in leaves:
        digest = leaf["digest"] or f"({leaf['unsupported']})"
        row = [leaf["step"], leaf["order"], leaf["leaf"], leaf["dtype"], "x".join(map(str, leaf["shape"])), digest]
        rows.append([str(cell) for cell in [*row, *([leaf.get("sumsq", "")] if with_stats else [])]])
    yield from table(head, rows)


def _show_environment(as_json: bool) -> int:
    """The table of variables with value and source; unknown ones are an error, after the table."""
    rows = [
        {
            "name": name,
            "value": os.environ.get(name, row.default),
            "source": "environment" if name in os.environ else "default",
            "legal": row.legal,
            "meaning": row.meaning,
        }
        for name, row in env.TABLE.items()
    ]
    if as_json:
        options.print_json({"schema": SCHEMA, "env": rows})
    else:
        head = ["name", "value", "source", "legal", "meaning"]
        terminal.show("\n".join(table(head, [list(row.values()) for row in rows], indent="")) + "\n")
    options.check_environment()
    return 0
