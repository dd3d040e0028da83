"""The verdict as Markdown, short: for the summary page of a continuous integration job or an issue."""

from __future__ import annotations

from collections.abc import Iterator

from detaudit.core.model import Divergence, Outcome, Verdict
from detaudit.report.table import printable
from detaudit.report.text import shown_delta, shown_pair, shown_time

MAX_LEAVES = 20


def verdict_markdown(verdict: Verdict) -> str:
    """A heading with the verdict, the sentence, the leaves of the first divergent step, the runs."""
    return "\n".join(_lines(verdict)) + "\n"


def _lines(verdict: Verdict) -> Iterator[str]:
    yield f"### detaudit: {verdict.outcome}"
    yield ""
    yield cell(verdict.reason)
    if verdict.outcome is Outcome.DIVERGED:
        yield from _leaves(verdict)
    for warning in verdict.warnings:
        yield f"- warning: {cell(warning)}"
    if verdict.runs:
        yield ""
        yield "| run | exit status | wall time | last step |"
        yield "|---|---|---|---|"
    for run in verdict.runs:
        wall = "" if run.wall_seconds is None else shown_time(run.wall_seconds)
        status, last = ("" if value is None else value for value in (run.exit_status, run.last_step))
        yield f"| {cell(run.label)} | {status} | {wall} | {last} |"


def _leaves(verdict: Verdict) -> Iterator[str]:
    a, b = verdict.pair
    yield ""
    yield f"| leaf | kind | {a} | {b} | delta |"
    yield "|---|---|---|---|---|"
    for leaf in verdict.diverging_leaves[:MAX_LEAVES]:
        yield _leaf(leaf)
    hidden = len(verdict.diverging_leaves) - MAX_LEAVES
    if hidden > 0:
        yield ""
        yield f"and {hidden} more leaves of step {verdict.diverging_leaves[0].step}"
    yield ""


def _leaf(leaf: Divergence) -> str:
    name = f"{leaf.rank} {leaf.leaf}" if leaf.rank else leaf.leaf
    values = " | ".join(cell(value) for value in (name, str(leaf.kind), *shown_pair(leaf), shown_delta(leaf)))
    return f"| {values} |"


def cell(text: str) -> str:
    """Text that stays in its cell: no markup, no HTML, no line break, whatever a leaf is called."""
    escaped = "".join("\\" + char if char in "\\`*_[]|~#" else char for char in printable(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
