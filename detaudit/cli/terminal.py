"""Prints a report: plain text, coloured only for a person at a terminal."""

from __future__ import annotations

import os
import shutil
import sys

WIDTH = 100
"""Columns where neither COLUMNS nor a terminal says otherwise."""

STYLES = {
    r"^(FIRST_DIVERGENCE|DIVERGED).*": "bold red",
    r"^  \S.*: DIVERGE.*": "red",
    r"^VERDICT: .*": "bold",
    r"^CLEAN.*": "bold green",
    r"^INCONCLUSIVE.*": "bold yellow",
    r"^warning:": "yellow",
    r"^next: .*": "bold",
}


def width() -> int:
    """Columns of the output: COLUMNS, else the terminal's, else WIDTH."""
    return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)


def wants_colour() -> bool:
    """A terminal, NO_COLOR not set (https://no-color.org), and not a dumb one."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show(text: str) -> None:
    """Write a report to stdout. The characters are the same with and without colour."""
    if not wants_colour():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(text, end="")
    for pattern, style in STYLES.items():
        styled.highlight_regex(f"(?m){pattern}", style)
    Console(soft_wrap=True).print(styled, end="")
