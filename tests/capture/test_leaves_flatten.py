"""Arrays and numpy scalars are leaves themselves: LambdaLR leaves a np.float64 learning rate behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detaudit.capture.leaves import flatten


@pytest.mark.parametrize("value", [np.float64(0.1), np.arange(3), torch.ones(2)])
def test_a_bare_value_is_one_leaf(value):
    assert [(name, found is value) for name, found in flatten(value, "lr")] == [("lr", True)]


def test_arrays_inside_of_a_container_are_walked_to():
    found = dict(flatten({"a": np.arange(2), "b": [torch.ones(1), np.float32(3)]}, "x"))
    assert set(found) == {"x.a", "x.b.0", "x.b.1"}
