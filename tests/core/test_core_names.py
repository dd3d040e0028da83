"""Leaf names, the choice of leaves, and one order over two layouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detaudit.core.names import WRAPPER_SEGMENTS, Selection, join, merged_order, occurrence, strip_wrappers

STRIPPED = {
    "module.layer1.weight": "layer1.weight",
    "_orig_mod.layer1.weight": "layer1.weight",
    "module._orig_mod.a.module.b": "a.b",
    "_fsdp_wrapped_module.x._checkpoint_wrapped_module.y": "x.y",
    "modules.weight": "modules.weight",
    "my_module.weight": "my_module.weight",
    "module": "",
    "": "",
}


@pytest.mark.parametrize("path", STRIPPED)
def test_strip_wrappers(path):
    assert strip_wrappers(path) == STRIPPED[path]


segments = st.sampled_from(["a", "b", "weight", *sorted(WRAPPER_SEGMENTS)])


@given(st.lists(segments))
def test_stripping_twice_is_stripping_once(parts):
    once = strip_wrappers(".".join(parts))
    assert strip_wrappers(once) == once
    assert not WRAPPER_SEGMENTS & set(once.split("."))


def test_join_and_occurrence():
    assert join("param", "", "net", "w") == "param.net.w"
    assert join() == join("") == ""
    assert [occurrence("loss", index) for index in range(3)] == ["loss", "loss#1", "loss#2"]


SELECTIONS = [
    ("", "anything", True),
    ("param.*", "param.net.w", True),
    ("param.*", "grad.net.w", False),
    ("param.*,grad.*", "grad.net.w", True),
    ("!act.*", "act.relu", False),
    ("!act.*", "param.w", True),
    ("param.*,!param.b", "param.b", False),
    ("!param.b,param.*", "param.w", True),
    ("loss", "loss", True),
    ("loss", "loss#3", True),
    ("loss", "loss_2", False),
    ("!loss", "loss#3", False),
    ("Param.*", "param.w", False),
    ("checksums.*", "checksums.v_grad", True),
]


@pytest.mark.parametrize(("globs", "name", "chosen"), SELECTIONS)
def test_selection(globs, name, chosen):
    selection = Selection.parse(glob for glob in globs.split(",") if glob)
    assert (name in selection) is chosen


def test_selection_describes_itself_and_knows_when_it_is_everything():
    selection = Selection.parse(["!act.*", "param.*", "!param.b"])
    assert selection.describe() == "param.*,!act.*,!param.b"
    assert Selection.parse(selection.describe().split(",")) == selection
    assert not selection.everything
    assert Selection().everything and Selection.parse([]).describe() == ""
    assert selection.excludes("act.x") and not selection.excludes("param.w")


def test_opting_in_needs_the_class_by_name():
    assert Selection.parse(["actgrad.*"]).opts_into("actgrad")
    assert Selection.parse(["actgrad.net.*", "param.*"]).opts_into("actgrad")
    for globs in ([], ["*"], ["!actgrad.*"], ["act*"]):
        assert not Selection.parse(globs).opts_into("actgrad")


orders = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(orders, orders)
def test_merged_order(left, right):
    order = merged_order(left, right)
    assert sorted(order) == sorted({*left, *right}), "every name once"
    assert [name for name in order if name in left] == left, "the left order is kept"
    common = [name for name in right if name in left]
    for index, name in enumerate(right):
        if name in left:
            continue
        before = [other for other in right[:index] if other in left]
        anchor = before[-1] if before else None
        place = order.index(anchor) if anchor else -1
        between = order[place + 1 : order.index(name)]
        assert not set(between) & set(left), "it follows the common name that precedes it on the right"
    new = [name for name in right if name not in left]
    if common == [name for name in left if name in common]:
        assert [name for name in order if name in new] == new, "orders that agree keep both"


@given(orders)
def test_merged_order_of_a_layout_with_itself_and_with_nothing(names):
    assert merged_order(names, names) == merged_order(names, []) == merged_order([], names) == names
