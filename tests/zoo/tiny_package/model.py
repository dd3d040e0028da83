"""The model of the package."""

from torch import nn


def build_model(width: int = 24) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 1))
