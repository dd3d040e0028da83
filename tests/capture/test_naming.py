"""Labels: the user's variable names, found by identity."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from detaudit.capture.leaves import Roots, flatten
from detaudit.capture.naming import Namer, variable_name

module_level = nn.Linear(1, 1)


def test_a_local_variable_names_an_object() -> None:
    generator = nn.Linear(2, 2)
    assert variable_name(generator) == "generator"


def test_the_innermost_frame_wins_and_outer_frames_are_searched() -> None:
    outer = nn.Linear(2, 2)

    def inner() -> str:
        return variable_name(outer_list[0])

    outer_list = [outer]
    assert inner() == "outer"


def test_an_attribute_of_self_and_a_submodule_of_a_variable_are_named() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Linear(2, 2)

        def name(self) -> str:
            return variable_name(self.model)

    assert Trainer().name() == "model"
    net = nn.Sequential(nn.Sequential(nn.Linear(1, 1)))
    found = variable_name(net[0][0])
    assert found == "net.0.0"


def test_a_global_names_an_object() -> None:
    assert variable_name(module_level) == "module_level"


def test_a_nameless_object_gets_class_and_number_and_a_taken_name_a_suffix() -> None:
    namer = Namer()
    things = [nn.Linear(1, 1), nn.Linear(1, 1)]
    assert list(map(namer.name, things)) == ["Linear0", "Linear1"]
    again = namer.name(things[0])
    assert again == "Linear0"

    def make(namer: Namer) -> str:
        net = nn.Linear(1, 1)
        things.append(net)
        return namer.name(net)

    assert [make(namer), make(namer)] == ["net", "net_2"]


def test_looking_for_a_name_keeps_none_of_the_users_tensors_alive() -> None:
    net = nn.Linear(1, 1)

    def use() -> weakref.ref[torch.Tensor]:
        big = torch.zeros(3)
        variable_name(net)
        reference = weakref.ref(big)
        del big
        assert reference() is None, "the frame's snapshot of its locals still holds the tensor"
        return reference

    assert use()() is None
    gc.collect()


def test_a_snapshot_that_the_user_holds_is_left_alone() -> None:
    net = nn.Linear(1, 1)
    held = locals()
    variable_name(net)
    assert held["net"] is net


def test_wrappers_do_not_change_names_and_tied_weights_keep_their_first() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 3)
            self.head = nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    lm = Wrapper(Tied())
    roots = Roots(Namer())
    assert roots.register(lm) == "lm"
    assert roots.names(lm.module.embed.weight) == ["lm.embed.weight", "lm.head.weight"]
    assert roots.path(lm.module.head) == "lm.head"
    assert roots.names(torch.zeros(1)) == []


def test_flatten_walks_nested_containers_and_keeps_plain_ones_whole() -> None:
    x = torch.zeros(2)
    batch = {"ids": [1, 2], "image": x, "nested": (x, {"y": x}), "names": ["a"]}
    assert [name for name, _ in flatten(batch, "batch")] == [
        "batch.ids",
        "batch.image",
        "batch.nested.0",
        "batch.nested.1.y",
        "batch.names",
    ]
    assert [name for name, _ in flatten([1, 2, 3], "loss")] == ["loss"]
