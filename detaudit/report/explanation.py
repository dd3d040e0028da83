"""An explanation as plain text: one sentence, then what it rests on, then the cause and its fix."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from detaudit.core.model import Cause, Explanation, ExplanationKind, Toggle
from detaudit.report.table import printable, table


def explanation_lines(found: Explanation, width: int) -> Iterator[str]:
    """The lines of an explanation, prose wrapped at `width` columns; code is never wrapped."""
    yield from _wrapped(f"EXPLANATION ({found.kind}): {headline(found)}", width, "  ")
    if found.code:
        yield f"    {printable(found.code)}"
    if found.rate:
        yield from _wrapped(f"rate: {found.rate}", width, "  ")
    for line in found.evidence:
        yield from _wrapped(f"- {line}", width, "  ")
    if found.toggles:
        yield from table(["toggle", "pairs", "diverged"], [_counts(toggle) for toggle in found.toggles])
    if found.cause is not None:
        yield from _cause(found.cause, width)


def _counts(toggle: Toggle) -> list[str]:
    return [toggle.name, str(toggle.pairs), str(toggle.diverged) if toggle.pairs else "-"]


def headline(found: Explanation) -> str:
    """The first sentence: the operator, its place and what is wrong with it."""
    place = f" at {found.file}:{found.line}" if found.file else ""
    module = f" (module {found.module})" if found.module else ""
    where = f"{found.operator or 'an operator'}{place}{module}"
    return {
        ExplanationKind.OPERATOR: f"{where} gives other results on equal inputs.",
        ExplanationKind.OUTSIDE: f"a value that torch did not produce differs; it is first used by {where}."
        if found.operator
        else "a value that torch did not produce differs.",
        ExplanationKind.RNG: f"a random generator went apart: {where}.",
        ExplanationKind.CONTROL_FLOW: f"the runs took different ways: {where}.",
        ExplanationKind.MEMORY: f"memory that nobody had written was read: {where}.",
        ExplanationKind.NOT_REPRODUCED: "the traced pairs did not show the divergence where they were traced.",
        ExplanationKind.UNPROVEN: "what was traced does not decide the cause"
        + (f"; the trace ends at {where}." if found.operator else "."),
    }[found.kind]


def _cause(cause: Cause, width: int) -> Iterator[str]:
    yield from _wrapped(f"likely cause ({cause.support}): {cause.title} [{cause.id}]", width, "  ")
    if cause.against:
        yield from _wrapped(f"against it: {cause.against}", width, "  ")
    if cause.fix:
        yield "fix:"
        yield from (f"    {printable(line)}" for line in cause.fix.splitlines())


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        printable(text), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
