"""The verdict as plain text, for an engineer at a terminal or a log. Equal verdicts give equal bytes.

`verdict_text` picks `_diverged`, `_clean` or `_inconclusive`; all three end with `_ending`: warnings, files, overrides,
the table of runs and the next command. The first lines of a diverged verdict are a contract, as in the seed note.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from detaudit.core.model import Divergence, DivergenceKind, Outcome, RunReport, Verdict
from detaudit.report.explanation import explanation_lines
from detaudit.report.table import printable, table

WIDTH = 100
MAX_LEAVES = 40
MAX_FILES = 10
MIN_DIGITS = 6


def verdict_text(verdict: Verdict, width: int = WIDTH) -> str:
    """The report, ending with a newline. Prose is wrapped at `width` columns; the contract lines never are."""
    body = {
        Outcome.CLEAN: _clean,
        Outcome.DIVERGED: _diverged,
        Outcome.INCONCLUSIVE: _inconclusive,
    }[verdict.outcome]
    return "\n".join([*body(verdict, width), *_ending(verdict, width)]) + "\n"


def _diverged(verdict: Verdict, width: int) -> Iterator[str]:
    first = verdict.first_divergence
    if first is None:
        yield from _wrapped(f"DIVERGED: {verdict.reason}", width)
        return
    yield first_line(first, verdict.pair)
    yield f"All leaves diverging at step={first.step}:"
    yield from _leaf_rows(verdict.diverging_leaves, verdict.pair)
    yield ""
    yield from _wrapped(f"{_sentence(verdict.reason)} {_before(verdict)}", width, indent="")
    if verdict.explanation is not None:
        yield ""
        yield from explanation_lines(verdict.explanation, width)


def first_line(first: Divergence, pair: tuple[str, str] = ("A", "B")) -> str:
    """`FIRST_DIVERGENCE: step=... leaf=... run_A=... run_B=... delta=...`; rank and kind follow where they matter."""
    a, b = shown_pair(first)
    line = (
        f"FIRST_DIVERGENCE: step={first.step} leaf={printable(first.leaf)} "
        f"run_{pair[0]}={a} run_{pair[1]}={b} delta={shown_delta(first)}"
    )
    if first.kind is not DivergenceKind.VALUE:
        line += f" kind={first.kind}"
    return line + (f" rank={printable(first.rank)}" if first.rank else "")


def _leaf_rows(leaves: Sequence[Divergence], pair: tuple[str, str]) -> Iterator[str]:
    with_rank = any(leaf.rank for leaf in leaves)
    rows = []
    for leaf in leaves[:MAX_LEAVES]:
        a, b = shown_pair(leaf)
        what = leaf.note if leaf.kind is DivergenceKind.VALUE else f"{leaf.kind} {leaf.note}".strip()
        row = [leaf.leaf, f"{pair[0]}={a}", f"{pair[1]}={b}", f"delta={shown_delta(leaf)}", what]
        rows.append([*row[:1], leaf.rank, *row[1:]] if with_rank else row)
    yield from table([""] * len(rows[0]) if rows else [], rows)
    hidden = len(leaves) - MAX_LEAVES
    if hidden > 0:
        yield f"  ... and {hidden} more (--json lists all)"


def shown_pair(divergence: Divergence) -> tuple[str, str]:
    """Both values, as short as they can be and still differ: at least six significant digits of a sum of squares."""
    a, b = divergence.run_a, divergence.run_b
    if divergence.delta is None:
        return _shown(a), _shown(b)
    for digits in range(MIN_DIGITS, 18):
        left, right = (f"{float(value):.{digits}g}" for value in (a, b))
        if left != right:
            return left, right
    return f"{float(a):.{MIN_DIGITS}g}", f"{float(b):.{MIN_DIGITS}g}"


def _shown(value: str) -> str:
    return printable(value).replace(" ", "") or "absent"


def shown_delta(divergence: Divergence) -> str:
    return "n/a" if divergence.delta is None else f"{divergence.delta:.{MIN_DIGITS}g}"


def _before(verdict: Verdict) -> str:
    count = verdict.equal_before
    if count > 1:
        return f"The {count} compared leaves of that step before it are equal."
    return "The one compared leaf before it is equal." if count else "No compared leaf of that step comes before it."


def _clean(verdict: Verdict, width: int) -> Iterator[str]:
    yield from _wrapped(f"CLEAN: {verdict.reason}", width)


def _inconclusive(verdict: Verdict, width: int) -> Iterator[str]:
    yield from _wrapped(f"INCONCLUSIVE: {verdict.reason}", width)


def _ending(verdict: Verdict, width: int) -> Iterator[str]:
    for warning in verdict.warnings:
        if warning != verdict.reason:
            yield from _wrapped(f"warning: {warning}", width)
    for override in verdict.overrides:
        yield from _wrapped(f"override: {override}", width)
    if verdict.overrides:
        for line in verdict.manifest_differences:
            yield from _wrapped(f"  {line}", width, indent="    ")
    if verdict.created_files:
        yield "files that run A created or changed:"
        yield from (f"  {printable(name)}" for name in verdict.created_files[:MAX_FILES])
        hidden = len(verdict.created_files) - MAX_FILES
        if hidden > 0:
            yield f"  ... and {hidden} more"
    if verdict.runs:
        yield ""
        yield from table(["run", "exit status", "wall time", "recorder", "last step", "ended"], _run_rows(verdict.runs))
    if verdict.certificate:
        yield f"certificate: {printable(verdict.certificate)}"
    if verdict.next_command:
        yield f"next: {printable(verdict.next_command)}"


def _run_rows(runs: Sequence[RunReport]) -> list[list[str]]:
    return [
        [
            run.label,
            "-" if run.exit_status is None else str(run.exit_status),
            "-" if run.wall_seconds is None else shown_time(run.wall_seconds),
            "-" if run.overhead is None else f"{100 * run.overhead:.1f}%",
            "-" if run.last_step is None else str(run.last_step),
            run.outcome or "-",
        ]
        for run in runs
    ]


def shown_time(seconds: float) -> str:
    """`0m 45s (45.2 s)`, as in the seed note and exact enough to compare."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m {rest:02d}s ({seconds:.1f} s)"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """Wrapped prose; words such as leaf names and paths are never broken."""
    return textwrap.wrap(
        printable(text), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
