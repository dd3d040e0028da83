"""Pairing operators: insertions on either side, and never by position alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detaudit.explain import align as module
from detaudit.explain.align import align
from tests.explain.made_traces import Made


def trace(names: str):
    made = Made()
    for name in names:
        made.op(name)
    return made.trace


def test_equal_sequences():
    found = align(trace("abcab"), trace("abcab"))
    assert found.partner == found.partner_b == [0, 1, 2, 3, 4] and found.parting is None


def test_an_insertion_does_not_shift_the_rest():
    found = align(trace("abab"), trace("axbab"))
    assert found.partner == [0, 2, 3, 4] and found.partner_b == [0, None, 1, 2, 3] and found.parting == (1, 1)


def test_insertions_on_both_sides():
    found = align(trace("aqbcd"), trace("abcxd"))
    assert found.partner == [0, None, 1, 2, 4] and found.partner_b == [0, 2, 3, None, 4]


def test_the_place_counts():
    a, b = Made().op("add", line=1).trace, Made().op("add", line=2).trace
    assert align(a, b).partner == [None]


def test_nothing_in_common_and_nothing_at_all():
    assert align(trace("ab"), trace("cd")).partner == [None, None]
    assert align(trace(""), trace("")).parting is None
    assert align(trace(""), trace("a")).partner_b == [None]


def test_beyond_the_limit_of_the_search_nothing_is_guessed(monkeypatch):
    monkeypatch.setattr(module, "MAX_SEARCH", 2)
    assert align(trace("axbyc"), trace("apbqc")).partner == [0, None, None, None, 4]


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_pairs_are_equal_operators_in_order(left, right):
    found = align(trace(left), trace(right))
    pairs = [(index, other) for index, other in enumerate(found.partner) if other is not None]
    assert all(left[index] == right[other] for index, other in pairs)
    assert [other for _, other in pairs] == sorted({other for _, other in pairs})
    assert all(found.partner_b[other] == index for index, other in pairs)
    assert (found.parting is None) == (left == right)
