"""Plain aligned tables: text to the left, numbers to the right, ASCII, no trailing blanks."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """The lines of a table. A column whose cells all look like numbers is aligned to the right. An empty head has no
    head line."""
    cells = [[printable(cell) for cell in row] for row in rows]
    lines = ([list(head)] if any(head) else []) + cells
    count = len(head)
    widths = [max((columns(line[i]) for line in lines), default=0) for i in range(count)]
    right = [bool(cells) and all(_numeric(row[i]) for row in cells) for i in range(count)]
    return [indent + _line(line, widths, right) for line in lines]


def printable(text: str) -> str:
    """The text with everything that would move a terminal's cursor escaped: names come from users."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def columns(text: str) -> int:
    """How many terminal columns a text takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        blanks = " " * (width - columns(cell))
        padded.append(blanks + cell if to_right else cell + blanks)
    return "  ".join(padded).rstrip()


def _numeric(cell: str) -> bool:
    try:
        float(cell.rstrip("%") or "0")
    except ValueError:
        return cell == "-"
    return True
