"""Sections as plain text and as Markdown. Equal input gives equal bytes."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from detaudit.spike.tables import Section, Table


def text(title: str, sections: Sequence[Section]) -> str:
    """Plain text with aligned columns."""
    lines = [title, "=" * _width(title), ""]
    for section in sections:
        lines += [section.title, "-" * _width(section.title), ""]
        for table in section.tables:
            lines += _text_table(table)
        lines += [f"{name}: {statement}" for name, statement in section.statements]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _text_table(table: Table) -> list[str]:
    lines = [table.title]
    if not table.rows:
        return [*lines, "  (none)", ""]
    columns = [[row[i] for row in [table.head, *table.rows]] for i in range(len(table.head))]
    widths = [max(_width(cell) for cell in column) for column in columns]
    for row in [table.head, *table.rows]:
        padded = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        lines.append(("  " + "  ".join(padded)).rstrip())
    if table.note:
        lines.append(f"  {table.note}")
    return [*lines, ""]


def _width(cell: str) -> int:
    """Columns that a terminal gives a text: two for an East Asian wide character."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in cell)


def markdown(title: str, sections: Sequence[Section]) -> str:
    """GitHub-flavoured Markdown."""
    lines = [f"# {title}", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for table in section.tables:
            lines += [f"### {table.title}", ""]
            if table.rows:
                lines += [_row(table.head), _row(["---"] * len(table.head)), *(_row(row) for row in table.rows), ""]
            else:
                lines += ["(none)", ""]
            if table.note:
                lines += [table.note, ""]
        lines += [f"- **{name}**: {_escaped(statement)}" for name, statement in section.statements]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
