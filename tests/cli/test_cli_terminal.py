"""Colour for a person, plain text for everything else."""

from __future__ import annotations

import io
import re

import pytest

from detaudit.cli import terminal

TEXT = "FIRST_DIVERGENCE: step=3 leaf=a[bold]b[/bold] run_A=1\n  x  A=1\nwarning: w :smile:\nnext: detaudit show o\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_terminal(monkeypatch):
    """What `show` writes to a terminal in front of a person, with some variables changed."""

    def shown(**variables):
        screen = Terminal()
        monkeypatch.delenv("NO_COLOR")
        for name, value in {"TERM": "xterm-256color", "COLUMNS": "40", **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdout", screen)
        terminal.show(TEXT)
        return screen.getvalue()

    return shown


def test_the_characters_are_the_same_with_colour(at_terminal):
    """Nor is anything in a leaf's name taken for markup, an emoji or a place to wrap."""
    coloured = at_terminal()
    assert "\x1b[1;31m" in coloured and re.sub(r"\x1b\[[\d;]*m", "", coloured) == TEXT


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_is_not_wanted(at_terminal, name, value):
    assert at_terminal(**{name: value}) == TEXT


def test_no_terminal_no_colour(capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    terminal.show(TEXT)
    assert capsys.readouterr().out == TEXT


def test_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "123")
    assert terminal.width() == 123
    monkeypatch.setenv("COLUMNS", "5")
    assert terminal.width() == 40
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("sys.__stdout__", io.StringIO())
    assert terminal.width() == terminal.WIDTH
