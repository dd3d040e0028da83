"""The text form of faults: names, late starts, lists, and what is refused."""

import pytest

from detaudit.core.errors import UsageError
from detaudit.workloads.faults import FaultKind, parse_faults

KINDS = {"a": FaultKind("first", races=True), "b": FaultKind("second", start=2), "c": FaultKind("third")}


def test_a_fault_acts_from_its_own_start():
    plan = parse_faults("a,b", KINDS)
    assert plan.active("a", 0)
    assert [plan.active("b", step) for step in range(4)] == [False, False, True, True]
    assert not plan.active("c", 100)


def test_late_moves_the_start():
    plan = parse_faults("late:150:b", KINDS)
    assert not plan.active("b", 149)
    assert plan.active("b", 150)


def test_the_order_of_naming_decides_between_two():
    assert parse_faults("c,a", KINDS).first_active(("a", "c"), 0) == "c"
    assert parse_faults("late:5:c,a", KINDS).first_active(("a", "c"), 0) == "a"
    assert parse_faults("b", KINDS).first_active(("a", "c"), 9) == ""


@pytest.mark.parametrize("text", ["none", "a", "b", "late:7:b", "late:1:a,c"])
def test_describe_is_the_text_form(text):
    assert parse_faults("" if text == "none" else text, KINDS).describe() == text


def test_racing_names_those_that_need_threads():
    assert parse_faults("b,late:3:a", KINDS).racing == ("a",)


def test_an_unknown_fault_lists_the_legal_ones():
    with pytest.raises(UsageError, match=r"unknown fault 'z'; the legal ones are a, b, c, and late:STEP:FAULT"):
        parse_faults("a,z", KINDS)


@pytest.mark.parametrize("text", ["late:b", "late:x:b", "late:-1:b", "late:1:2:b", "late::b"])
def test_a_bad_late_says_how_to_write_it(text):
    with pytest.raises(UsageError, match="late:STEP:FAULT"):
        parse_faults(text, KINDS)


def test_a_fault_named_twice_is_refused():
    with pytest.raises(UsageError, match="named twice"):
        parse_faults("a,late:4:a", KINDS)
