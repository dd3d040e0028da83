"""The comparison of two dumps as text and as JSON. Knows the verdict and nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from detaudit.core.buffers import BufferComparison, BufferStatus, Difference, DumpVerdict, Nearness, Region
from detaudit.report.table import printable, table

SCHEMA = "detaudit.dump/1"
INDENT = " " * 8


def dump_text(verdict: DumpVerdict, width: int = 100) -> str:
    """A block a step, the hypotheses, then `VERDICT:` with its reason in one line."""
    lines: list[str] = []
    processes = len({found.process for found in verdict.buffers})
    place: tuple[int, str] | None = None
    for found in verdict.buffers:
        if (found.step, found.process) != place:
            place = (found.step, found.process)
            lines.append(f"step {found.step}{f' {printable(found.process)}' if processes > 1 else ''}:")
        lines.extend(_buffer_lines(found, width))
    if verdict.hypotheses:
        lines += ["hypotheses, as the cause of the first difference:"]
        rows = [[h.id, h.support, h.title, h.reason] for h in verdict.hypotheses]
        lines += table(["", "", "", ""], rows)
    lines += [f"warning: {printable(line)}" for line in verdict.warnings]
    # Never wrapped: scripts look for this line.
    lines.append(f"VERDICT: {printable(verdict.reason)}")
    return "\n".join(lines) + "\n"


def _buffer_lines(found: BufferComparison, width: int) -> Iterator[str]:
    head = f"  {printable(found.name)}: {found.status}"
    if found.difference is None:
        what = f"({_count(found.elements, 'element')})" if found.status is BufferStatus.EQUAL else f"({found.detail})"
        yield f"{head} {printable(what)}"
        return
    difference = found.difference
    yield f"{head} at idx {difference.first}{_coordinates(found.shape, difference.first)}"
    yield f"{INDENT}A={difference.value_a}  B={difference.value_b}"
    for text in difference_texts(difference):
        yield from textwrap.wrap(text, width, initial_indent=INDENT, subsequent_indent=INDENT)


def difference_texts(difference: Difference) -> tuple[str, str, str]:
    """Where two buffers differ, by how much (empty for what is no number), and in which way."""
    return _where(difference), _how_far(difference), _which_way(difference)


def _coordinates(shape: Sequence[int], index: int) -> str:
    """The place in a buffer of several dimensions, after its flat index."""
    if len(shape) < 2:
        return ""
    places = []
    for size in reversed(shape):
        places.append(index % size)
        index //= size
    return f" {places[::-1]}"


def _where(difference: Difference) -> str:
    region = str(difference.region)
    span = f"idx {difference.first} to {difference.last}"
    if difference.region is Region.ROWS and difference.rows is not None:
        first, last = difference.rows
        region = f"whole rows {first} to {last}" if first != last else f"whole row {first}"
    elif difference.region in (Region.CONTIGUOUS, Region.SCATTERED):
        region = f"{region}, {span}"
    share = f"{difference.unequal} of {_count(difference.elements, 'element')} differ ({region})"
    return f"{share}; first differing 64 KiB: {difference.chunk} of {difference.chunks}"


def _how_far(difference: Difference) -> str:
    parts = []
    if difference.ulp is not None:
        parts.append(f"largest distance {difference.ulp} ulp at idx {difference.ulp_at}")
    if difference.largest is not None:
        relative = f", relative {difference.relative:.3g}" if difference.relative is not None else ""
        parts.append(f"{'absolute' if parts else 'largest distance'} {difference.largest:.6g}{relative}")
    if difference.nonfinite:
        parts.append(f"{difference.nonfinite} pairs with NaN or Inf")
    return "; ".join(parts)


def _which_way(difference: Difference) -> str:
    order = "the same elements in another order" if difference.permutation else "not a permutation"
    return order if difference.nearness is Nearness.EXACT else f"values {difference.nearness}; {order}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def dump_value(verdict: DumpVerdict) -> dict[str, Any]:
    """The verdict as plain JSON types; equal verdicts give equal values."""
    return {
        "schema": SCHEMA,
        "outcome": str(verdict.outcome),
        "exit_code": verdict.outcome.exit_code,
        "verdict": verdict.reason,
        "buffers": [_buffer_value(found) for found in verdict.buffers],
        "hypotheses": [asdict(finding) for finding in verdict.hypotheses],
        "warnings": list(verdict.warnings),
    }


def _buffer_value(found: BufferComparison) -> dict[str, Any]:
    value = asdict(found)
    if found.difference is not None:
        # JSON knows no infinity; Python would write one that no other reader takes.
        numbers = value["difference"]
        for key in ("largest", "relative"):
            if numbers[key] is not None and numbers[key] in (float("inf"), float("-inf")):
                numbers[key] = None
    return value
