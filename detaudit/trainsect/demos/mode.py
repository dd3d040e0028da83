"""Evaluation mode for as long as an evaluation lasts: a module's mode is state, and an evaluation changes none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and back into the mode it was in."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
