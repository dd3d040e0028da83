"""Plain tables."""

from __future__ import annotations

from detaudit.report.table import printable, table


def test_text_left_numbers_right_no_trailing_blanks():
    assert table(["leaf", "n"], [["a", "5"], ["long", "10"], ["b", "-"]]) == [
        "  leaf   n",
        "  a      5",
        "  long  10",
        "  b      -",
    ]


def test_no_head_and_no_rows():
    assert table(["", ""], [["a", "b"]], indent="") == ["a  b"]
    assert table([], []) == [] and table(["a"], []) == ["  a"]


def test_wide_characters_take_two_columns():
    assert table(["", ""], [["層", "x"], ["ab", "y"]], indent="") == ["層  x", "ab  y"]


def test_control_characters_are_escaped():
    assert printable("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
